package policyfile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const limits = `policies:
  - name: login
    algorithm: token_bucket
    limit: 5
    period: 1m
    burst: 10
    note: as agreed
  - &budget
    name: budget
    algorithm: fixed_window
    limit: 1e5
    calendar: month
    time_zone: Europe/Vienna
    shadow: true
    askers: true
    max_ttl: 1h
  - {name: api, algorithm: gcra, limit: 3, period: 1s, on_error: fail_open, durability: relaxed, block_for: 10m}
overrides:
  - policy: login
    key: alice
    limit: 100
    until: 2027-01-31
    note: trial
  - {policy: api, key: 203.0.113.7, unlimited: true}
  - {policy: api, key: 12345, shadow: false, until: 2027-01-31T18:00:00Z}
`

func read(t *testing.T, text string) File {
	t.Helper()
	f, err := Read("limits.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRead(t *testing.T) {
	t.Parallel()
	f := read(t, limits)
	want := []limiter.StoredPolicy{
		{Policy: limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Burst: 10}, Note: "as agreed"},
		{Policy: limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_000, Calendar: limiter.Month, TimeZone: "Europe/Vienna", Shadow: true},
			Askers: true, MaxTTL: time.Hour},
		{Policy: limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 3, Period: time.Second, OnError: limiter.FailOpen, Durability: limiter.Relaxed, BlockFor: 10 * time.Minute}},
	}
	if len(f.Policies) != len(want) {
		t.Fatalf("got %+v", f.Policies)
	}
	for i, p := range f.Policies {
		if p != want[i] {
			t.Errorf("got %+v, want %+v", p, want[i])
		}
	}
	o := f.Overrides
	if len(o) != 3 || o[0].Policy != "login" || o[0].Key != "alice" || *o[0].Limit != 100 || o[0].Note != "trial" ||
		!o[0].Until.Equal(time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)) ||
		!o[1].Unlimited || o[1].Key != "203.0.113.7" || o[2].Key != "12345" || *o[2].Shadow || o[2].Until.Hour() != 18 {
		t.Errorf("got %+v", o)
	}
}

// TestReadAgain: what is written, as YAML and as JSON, is read as the same.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	f := read(t, limits)
	var text strings.Builder
	if err := f.Write(&text); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(f.Portable())
	if err != nil {
		t.Fatal(err)
	}
	for _, written := range []string{text.String(), string(data)} {
		if plan := Compare(f, read(t, written), true); len(plan.Changes) > 0 {
			t.Errorf("%s\nchanges %+v", written, plan.Changes)
		}
	}
}

// TestReadFaults: each fault has the line and the field, and all are reported.
func TestReadFaults(t *testing.T) {
	t.Parallel()
	ok := "name: a, algorithm: gcra, limit: 1, period: 1s"
	for text, want := range map[string][]string{
		"":                                   {"limits.yaml: is empty"},
		"5":                                  {"limits.yaml:1: the file must be a mapping"},
		"policies: [":                        {"limits.yaml: line 1"},
		"polices: []":                        {`limits.yaml:1: the file has no field "polices": use policies, overrides`},
		"policies: {}":                       {"limits.yaml:1: policies must be a list"},
		"policies:\n- {" + ok + "}\n- 5":     {"limits.yaml:3: policies[1] must be a mapping"},
		"policies:\n- {" + ok + ", brst: 5}": {`limits.yaml:2: policies[0] has no field "brst"`},
		"policies:\n- name: a\n  algorithm: gcra\n  limit: ten\n  period: 1s\n- name: B\n  limit: 1": {
			`limits.yaml:4: policies[0].limit is "ten": must be a number`, `limits.yaml:6: policies[1].name is "B": must match`},
		"policies:\n- {name: a, algorithm: gcra, limit: 1}":                                        {"limits.yaml:2: policies[0].period is missing: must be positive"},
		"policies:\n- {name: a, algorithm: gcra, limit: 1, period: 1x}":                            {`limits.yaml:2: policies[0].period is "1x": must be a duration`},
		"policies:\n- {name: a, algorithm: gcra, limit: .nan, period: 1s}":                         {"must be a number"},
		"policies:\n- {" + ok + ", shadow: maybe}":                                                 {`policies[0].shadow is "maybe": must be true or false`},
		"policies:\n- {" + ok + ", note: [a]}":                                                     {"policies[0].note must be a text"},
		"policies:\n- {" + ok + ", limit: 2}":                                                      {"policies[0] has limit twice"},
		"policies:\n- {" + ok + "}\n- {" + ok + "}":                                                {`limits.yaml:3: policies[1].name "a" is that of line 2, too`},
		"policies:\n- {name: a, algorithm: fixed_window, limit: 1, calendar: month, time_zone: X}": {`policies[0].time_zone is "X"`},
		"overrides:\n- {policy: a, key: k}":                                                        {"limits.yaml:2: overrides[0] changes nothing"},
		"overrides:\n- {policy: a, limit: 5}":                                                      {"overrides[0].key is missing"},
		"overrides:\n- {policy: a, key: k, limit: 5, unlimited: true}":                             {"choose one"},
		"overrides:\n- {policy: a, key: k, limit: 5, until: tomorrow}":                             {`overrides[0].until is "tomorrow": must be a date`},
		"overrides:\n- {policy: a, key: k, limit: 5}\n- {policy: a, key: k, limit: 6}":             {"limits.yaml:3: overrides[1] is for the same policy and key as line 2"},
	} {
		_, err := Read("limits.yaml", strings.NewReader(text))
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s\ngot %v, want %s", text, err, part)
			}
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	before := read(t, limits)
	after := read(t, `
policies:
  - {name: login, algorithm: token_bucket, limit: 8, period: 1m, burst: 10}
  - {name: new, algorithm: gcra, limit: 1, period: 1s}
overrides:
  - {policy: login, key: alice, limit: 100}
`)
	plan := Compare(before, after, false)
	var text strings.Builder
	WriteText(&text, plan.Changes)
	want := `~ policy login
    limit: 5 → 8
    note: "as agreed" → default
+ policy new
    algorithm: gcra
    limit: 1
    period: 1s
~ override of login for "alice"
    note: trial → default
    until: 2027-01-31T00:00:00Z → default
`
	if text.String() != want {
		t.Errorf("got\n%s", &text)
	}
	edit := plan.Edit()
	if len(edit.Set) != 2 || len(edit.Delete) != 0 || len(edit.SetOverrides) != 1 || len(edit.DeleteOverrides) != 0 {
		t.Errorf("got %+v", edit)
	}
	if edit := Compare(before, after, true).Edit(); len(edit.Delete) != 2 || len(edit.DeleteOverrides) != 2 {
		t.Errorf("pruned: got %+v", edit)
	}
	after.Overrides = nil // those of policies that stay are kept
	if edit := Compare(before, after, true).Edit(); len(edit.Delete) != 2 || len(edit.DeleteOverrides) != 2 || edit.DeleteOverrides[0].Policy != "api" {
		t.Errorf("pruned without overrides: got %+v", edit)
	}
	if plan := Compare(before, before, true); len(plan.Changes) != 0 {
		t.Errorf("the same: got %+v", plan.Changes)
	}
}

// FuzzRead: no file makes Read panic, and what it reads is valid and is read again.
func FuzzRead(f *testing.F) {
	f.Add(limits)
	f.Add("- {name: a, algorithm: gcra, limit: 1, period: 1s}")
	f.Add("a: &a [*a]")
	f.Add("policies: &p\n- *p\n")
	f.Add(`{"policies":[{"name":"a","algorithm":"gcra","limit":1,"period":"1s"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Read("f", strings.NewReader(text))
		if err != nil {
			return
		}
		for _, p := range file.Policies {
			if err := p.Policy.Validate(); err != nil {
				t.Errorf("%q: %v", text, err)
			}
		}
		var again strings.Builder
		if err := file.Write(&again); err != nil {
			t.Fatal(err)
		}
		back, err := Read("f", strings.NewReader(again.String()))
		if err != nil || len(Compare(file, back, true).Changes) > 0 {
			t.Errorf("%q was written as %q, read as %+v: %v", text, &again, back, err)
		}
	})
}
