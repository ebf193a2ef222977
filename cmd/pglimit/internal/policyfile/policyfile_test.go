package policyfile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
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
    anchor: 2024-01-31
    shadow: true
    askers: true
    max_ttl: 1h
  - {name: api, algorithm: gcra, limit: 3, period: 1s, on_error: fail_open, durability: relaxed, block_for: 10m}
  - {name: code, algorithm: attempts, limit: 3, period: 24h, block_for: 1m, block_growth: 1.5, block_max: 12h}
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
	f := must.OK(Read("limits.yaml", strings.NewReader(text)))(t)
	return f
}

func TestRead(t *testing.T) {
	t.Parallel()
	f := read(t, limits)
	want := []policies.Stored{
		{Policy: limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Burst: 10}, Note: "as agreed"},
		{Policy: limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_000, Calendar: limiter.Month, TimeZone: "Europe/Vienna", Anchor: "2024-01-31", Shadow: true},
			Askers: true, MaxTTL: time.Hour},
		{Policy: limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 3, Period: time.Second, OnError: limiter.FailOpen, Durability: limiter.Relaxed, BlockFor: 10 * time.Minute}},
		{Policy: limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 3, Period: 24 * time.Hour, BlockFor: time.Minute, BlockGrowth: 1.5, BlockMax: 12 * time.Hour}},
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
		!o[0].Until.Equal(time.Date(2027, 2, 1, 0, 0, 0, 0, time.Local)) ||
		!o[1].Unlimited || o[1].Key != "203.0.113.7" || o[2].Key != "12345" || *o[2].Shadow || o[2].Until.Hour() != 18 {
		t.Errorf("got %+v", o)
	}
}

// TestReadAgain: what is written, as YAML and as JSON, is read as the same.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	f := read(t, limits)
	f.Policies[0].Note = "\x1b[2J \u007f\u0085\u009b \u202e\u2066\u200e\u200f\u061c \U0001F600 <&>"
	f.Policies[1].Note = "two\n\tlines\u202e\\u202e\n" // as a block without the mark
	f.Overrides[0].Key = "\u009b2J"
	var text strings.Builder
	must.Succeed(t, f.Write(&text))
	data := must.OK(json.Marshal(f.Portable()))(t)
	if !strings.Contains(text.String(), `\x9B \u202e\u2066\u200e\u200f\u061c`) {
		t.Errorf("a terminal would obey %s", &text)
	}
	for _, written := range []string{text.String(), printable.Escape(string(data))} {
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
		"policies: []\n---\n- {" + ok + "}":  {"limits.yaml:2: another document: a file has one"},
		"policies: []\n---\n[":               {"limits.yaml: line 3"},
		"policies:\n- &p {<<: *p}":           {"policies[0] is more than 100 levels deep"},
		"polices: []":                        {`limits.yaml:1: the file has no field "polices": use policies, overrides`},
		"policies: {}":                       {"limits.yaml:1: policies must be a list"},
		"policies:\n- {" + ok + "}\n- 5":     {"limits.yaml:3: policies[1] must be a mapping"},
		"policies:\n- {" + ok + ", brst: 5}": {`limits.yaml:2: policies[0] has no field "brst"`},
		"policies:\n- name: a\n  algorithm: gcra\n  limit: ten\n  period: 1s\n- name: B\n  limit: 1": {
			`limits.yaml:4: policies[0].limit is "ten": must be a number`, `limits.yaml:6: policies[1].name is "B": must match`},
		"policies:\n- {name: a, algorithm: gcra, limit: 1}":                                                                    {"limits.yaml:2: policies[0].period is missing: must be positive"},
		"policies:\n- {name: a, algorithm: gcra, limit: 1, period: 1x}":                                                        {`limits.yaml:2: policies[0].period is "1x": must be a duration`},
		"policies:\n- {name: a, algorithm: gcra, limit: .nan, period: 1s}":                                                     {"must be a number"},
		"policies:\n- {" + ok + ", burst: 0100}":                                                                               {`limits.yaml:2: policies[0].burst is "0100": must be a number`},
		"overrides:\n- {policy: a, key: k, limit: 1_0}\n- {policy: a, key: l, limit: 0x10}\n- {policy: a, key: m, factor: 08}": {`overrides[0].limit is "1_0"`, `overrides[1].limit is "0x10"`, `overrides[2].factor is "08"`},
		"policies:\n- {" + ok + ", shadow: maybe}":                                                                             {`policies[0].shadow is "maybe": must be true or false`},
		"policies:\n- {" + ok + ", note: [a]}":                                                                                 {"policies[0].note must be a text"},
		"policies:\n- {" + ok + ", limit: 2}":                                                                                  {"policies[0] has limit twice"},
		"policies:\n- {" + ok + "}\n- {" + ok + "}":                                                                            {`limits.yaml:3: policies[1].name "a" is that of line 2, too`},
		"policies:\n- {name: a, algorithm: fixed_window, limit: 1, calendar: month, anchor: 2024-02-30}":                       {`policies[0].anchor is "2024-02-30": must be a date such as 2024-01-31`},
		"overrides:\n- {policy: a, key: k, anchor: 31}":                                                                        {`overrides[0] has the anchor "31": must be a date such as 2024-01-31`},
		"policies:\n- {name: a, algorithm: fixed_window, limit: 1, calendar: month, time_zone: X}":                             {`policies[0].time_zone is "X"`},
		"overrides:\n- {policy: a, key: k}":                                                                                    {"limits.yaml:2: overrides[0] changes nothing"},
		"overrides:\n- {policy: a, limit: 5}":                                                                                  {"overrides[0].key is missing"},
		"overrides:\n- {policy: a, key: k, limit: 5, unlimited: true}":                                                         {"choose one"},
		"overrides:\n- {policy: a, key: k, limit: 5, blocked: true}":                                                           {"choose one"},
		"overrides:\n- {policy: a, key: k, limit: 5, match: prefix}":                                                           {"with a match it is unlimited or blocked"},
		"overrides:\n- {policy: a, key: k, match: cidr, blocked: true}\n- {policy: a, key: k, match: cidr, unlimited: true}":   {"for the same policy and key as line 2"},
		"overrides:\n- {policy: a, key: k, limit: 5, until: tomorrow}":                                                         {`overrides[0].until is "tomorrow": use a date`},
		"overrides:\n- {policy: a, key: k, limit: 5}\n- {policy: a, key: k, limit: 6}":                                         {"limits.yaml:3: overrides[1] is for the same policy and key as line 2"},
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
  - {policy: "\e[2J", key: "\u202e", limit: 1}
  - {policy: login, key: alice, limit: 100}
`)
	plan := Compare(before, after, false)
	var text strings.Builder
	WriteText(&text, plan.Changes)
	want := `~ policy login
    limit: 5 → 8
+ policy new
    algorithm: gcra
    limit: 1
    period: 1s
+ override of "\x1b[2J" for "\u202e"
    limit: 1
~ override of login for "alice"
    until: 2027-01-31 → default
`
	if text.String() != want {
		t.Errorf("got\n%s", &text)
	}
	edit := plan.Edit
	if len(edit.Set) != 2 || edit.Set[0].Note != "" || len(edit.Delete) != 0 || len(edit.SetOverrides) != 2 || edit.SetOverrides[1].Note != "trial" || len(edit.DeleteOverrides) != 0 {
		t.Errorf("got %+v", edit)
	}
	if edit := Compare(before, after, true).Edit; len(edit.Delete) != 3 || len(edit.DeleteOverrides) != 2 {
		t.Errorf("pruned: got %+v", edit)
	}
	after.Overrides = nil // those of policies that stay are kept
	if edit := Compare(before, after, true).Edit; len(edit.Delete) != 3 || len(edit.DeleteOverrides) != 2 || edit.DeleteOverrides[0].Policy != "api" {
		t.Errorf("pruned without overrides: got %+v", edit)
	}
	after = before.Portable()
	after.Policies[0].Note, after.Overrides[0].Note = "", "" // one of an earlier change, and one that is kept
	if plan := Compare(before, after, true); len(plan.Changes) != 0 {
		t.Errorf("without notes: got %+v", plan.Changes)
	}
	if plan := Compare(before, before, true); len(plan.Changes) != 0 {
		t.Errorf("the same: got %+v", plan.Changes)
	}
}

const fine = "name: a, algorithm: gcra, limit: 1, period: 1s"

// accepted and refused are files at the edges of what is valid.
var (
	accepted = []string{
		limits, "\ufeff- {" + fine + "}", "- {" + fine + ", burst: null, note: ~, shadow: null}", "- {" + fine + ", burst: &n 5, note: *n}",
		"- {" + fine + ", note: " + strings.Repeat("é", maxNote) + "}", "overrides: &o []\npolicies: *o",
		"overrides: [{policy: p, key: a, limit: 16}, {policy: p, key: b, burst: 1e3}, {policy: q, key: a, shadow: false}]",
		"overrides: [{policy: p, key: '~', limit: 1, note: 'null'}, {policy: p, key: '1', limit: 1, note: 'true'}]",
	}
	refused = []string{
		"", "# only this", "- 5", "more: 1", `{"Policies": []}`, `{"policies": [], "policies": []}`, "- {" + fine + ", Burst: 1}", "- {" + fine + ", more: 1}", "- {" + fine + ", name: a}", "policies: []\npolicies: []",
		"- {" + fine + ", note: " + strings.Repeat("é", maxNote+1) + "}", "- {" + fine + ", burst: .nan}", "- {" + fine + ", burst: .inf}", "- {" + fine + ", burst: '5'}",
		"- {" + fine + ", burst: -1}", "- {" + fine + ", shadow: yes}", "- {" + fine + "}\n- {" + fine + "}", "- {" + fine + ", max_ttl: 1}", "- {" + fine + ", note: [a]}",
		"overrides: [{policy: p, limit: 1}]", "overrides: [{key: a, limit: 1}]", "overrides: [{policy: p, key: a}]", "overrides: [{policy: p, key: a, unlimited: true, limit: 1}]",
		"overrides: [{policy: p, key: a, limit: 1}, {policy: p, key: a, limit: 2}]", "overrides: [{policy: p, key: a, limit: .nan}]", "overrides: [{policy: p, key: a, burst: -.inf}]", "overrides: [{policy: p, key: a, limit: 1, until: soon}]",
	}
)

// FuzzFormats: what is read is valid, and is read alike when it is written as YAML and as
// JSON. Each line of an error begins with the file's name and says where.
func FuzzFormats(f *testing.F) {
	for _, text := range accepted {
		if _, err := Read("limits.yaml", strings.NewReader(text)); err != nil {
			f.Errorf("%q: %v", text, err)
		}
		f.Add(text)
	}
	for _, text := range refused {
		if file, err := Read("limits.yaml", strings.NewReader(text)); err == nil {
			f.Errorf("%q is read as %+v", text, file)
		}
		f.Add(text)
	}
	f.Add("- {name: a, algorithm: gcra, limit: 1, period: 1s, max_ttl: 30d, note: 'é'}")
	f.Add("policies: [{name: a, limit: .inf}, {name: 1e3, algorithm: [x]}, 5, null]\noverrides: {}\nmore: 1")
	f.Add("overrides:\n- {policy: login, key: 007, limit: 0x10, until: 2027-01-31}\n- {policy: login, key: '7', shadow: yes}")
	f.Add("policies: []\noverrides:\n- {policy: p, key: \"\\u2028\\t\", unlimited: true, note: |\n  a\n\n  b\n }")
	f.Add("- {name: a, algorithm: gcra, limit: 1, period: 1s, note: \"a\\n\\t\\u2028\\u202e\\U000e0001\\u200b\"}")
	f.Add("a: &a [*a]")
	f.Add("policies: &p\n- *p\n")
	f.Add(`{"policies":[{"name":"a","algorithm":"gcra","limit":1,"period":"1s"}]}`)
	f.Add("? [a]\n: b")
	f.Add("a: !!binary x")
	f.Fuzz(func(t *testing.T, text string) {
		const name = "limits.yaml"
		file, err := Read(name, strings.NewReader(text))
		if err != nil {
			for _, l := range strings.Split(err.Error(), "\n"+name) {
				l = strings.TrimPrefix(l, name)
				if !strings.HasPrefix(l, ":") || len(l) < 3 {
					t.Errorf("%q: the error %q does not begin with the file's name", text, l)
				}
			}
			return
		}
		checkRead(t, text, file)
		written, err := json.Marshal(file.Portable())
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if !utf8.ValidString(text) {
			t.Errorf("%q is read, though it is not UTF-8", text)
		}
		var yaml strings.Builder
		if err := file.Write(&yaml); err != nil || printable.Escape(yaml.String()) != yaml.String() {
			t.Fatalf("%q was written as %q, %v", text, &yaml, err)
		}
		for _, form := range []string{printable.Escape(string(written)), yaml.String()} {
			back, err := Read(name, strings.NewReader(form))
			if err != nil || len(back.Overrides) != len(file.Overrides) || len(Compare(file, back, true).Changes) > 0 {
				t.Errorf("%q was written as %s, read as %+v: %v", text, form, back, err)
			}
		}
	})
}

// checkRead checks that a file that was read is valid and names nothing twice.
func checkRead(t *testing.T, text string, file File) {
	t.Helper()
	seen := map[[2]string]bool{}
	for _, p := range file.Policies {
		if id := [2]string{p.Name}; seen[id] || utf8.RuneCountInString(p.Note) > 1000 || p.Validate() != nil {
			t.Errorf("%q: the policy %+v was read", text, p)
		} else {
			seen[id] = true
		}
	}
	for _, o := range file.Overrides {
		id := [2]string{o.Policy, o.Key}
		if err := Check(o); err != nil || o.Policy == "" || o.Key == "" || seen[id] || utf8.RuneCountInString(o.Note) > 1000 {
			t.Errorf("%q: the override %+v was read: %v", text, o, err)
		}
		seen[id] = true
	}
}

// TestReadMerges: a policy gets the fields that it merges. Those that it has itself win.
func TestReadMerges(t *testing.T) {
	t.Parallel()
	f, err := Read("limits.yaml", strings.NewReader("policies:\n- &a {name: a, algorithm: gcra, limit: 1, period: 1s}\n- {<<: *a, name: b, limit: 2}\n"))
	if err != nil || len(f.Policies) != 2 || f.Policies[1].Name != "b" || f.Policies[1].Limit != 2 || f.Policies[1].Period != f.Policies[0].Period {
		t.Errorf("%+v, %v", f.Policies, err)
	}
}
