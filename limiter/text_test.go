package limiter

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestPolicyTextRoundTrip(t *testing.T) {
	for _, p := range []Policy{
		{Name: "a", Algorithm: LeakyBucket, Limit: 1.5, Period: 90 * time.Second, Burst: 3, Tick: time.Second},
		{Name: "b", Algorithm: FixedWindow, Limit: 1 << 53, Period: time.Microsecond, Aligned: true, BlockFor: time.Hour, OnError: FailOpen},
		{Name: "c", Algorithm: GCRA, Limit: 1, Period: time.Second, Durability: Relaxed},
		{Name: "d", Algorithm: FixedWindow, Limit: 1, Calendar: Month, TimeZone: "Europe/Vienna"},
	} {
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var back Policy
		if err := json.Unmarshal(data, &back); err != nil || back != p {
			t.Errorf("%s came back as %+v, %v", data, back, err)
		}
		form, err := p.MarshalYAML()
		if err != nil {
			t.Fatal(err)
		}
		back = Policy{}
		err = back.UnmarshalYAML(func(into any) error { *into.(*policyText) = form.(policyText); return nil })
		if err != nil || back != p {
			t.Errorf("YAML came back as %+v, %v", back, err)
		}
	}
}

// TestDurabilityText: each value has a name. The default may be given and is omitted in
// output.
func TestDurabilityText(t *testing.T) {
	for d, name := range map[Durability]string{Durable: "durable", Relaxed: "relaxed"} {
		var p Policy
		if err := json.Unmarshal([]byte(`{"name":"a","durability":"`+name+`"}`), &p); err != nil || p.Durability != d || d.String() != name {
			t.Errorf("%s: read as %v, %v", name, p.Durability, err)
		}
		data, err := json.Marshal(p)
		if err != nil || strings.Contains(string(data), "durability") != (d == Relaxed) {
			t.Errorf("%s: written as %s, %v", name, data, err)
		}
	}
	if s := Durability(2).String(); s != "Durability(2)" {
		t.Errorf("got %s", s)
	}
}

func TestPolicyTextErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"name": "a", "perod": "1s"}`:     "perod",
		`{"name": "a", "period": "1 day"}`: `Period "1 day"`,
		`{"name": "a", "period": 60}`:      "period",
		`{"name": "a", "on_error": "no"}`:  `OnError "no"`,
		`{"name": "a", "durability": "s"}`: `Durability "s": must be durable or relaxed`,
		`{"name": "a", "block_for": "1y"}`: `BlockFor "1y"`,
	} {
		before := Policy{Name: "before"}
		p := before
		if err := json.Unmarshal([]byte(text), &p); err == nil || !strings.Contains(err.Error(), want) || p != before {
			t.Errorf("%s: got %v, %+v", text, err, p)
		}
	}
}

func TestResultJSON(t *testing.T) {
	data, err := json.Marshal(Result{RetryAfter: Never, ResetAfter: 1500 * time.Millisecond, Reason: ReasonLimit, Source: SourceMemory})
	want := `{"allowed":false,"granted":0,"limit":0,"burst":0,"level":0,"remaining":0,"retry_after_s":null,"reset_after_s":1.5,"delay_s":0,"full":false,"reason":"limit","source":"memory"}`
	if err != nil || string(data) != want {
		t.Errorf("got %s, %v", data, err)
	}
}

// TestKeyIsUnambiguous: different parts, with separators in them, give different keys.
func TestKeyIsUnambiguous(t *testing.T) {
	seen := map[string][]string{}
	parts := []string{"", "a", ":", `\`, `a:`, `:a`, `\:`, `a\`}
	for _, a := range parts {
		for _, b := range parts {
			for _, c := range parts {
				for _, joined := range [][]string{{a, b}, {a, b, c}} {
					k := JoinKey(joined...)
					if before, dup := seen[k]; dup && strings.Join(before, "\x00") != strings.Join(joined, "\x00") {
						t.Errorf("%q and %q both give %q", before, joined, k)
					}
					seen[k] = joined
				}
			}
		}
	}
}

// TestObserve: Observe gets each call with its request, result and error.
func TestObserve(t *testing.T) {
	type seen struct {
		request Request
		r       Result
		err     error
	}
	var all []seen
	l := NewMemory(&Config{Observe: func(_ context.Context, o Observation) { all = append(all, seen{o.Request, o.Result, o.Err}) }})
	p := Policy{Name: "p", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 2}
	ctx := context.Background()
	allowed, err := l.Allow(ctx, p, "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Wait(ctx, p, "k", 2); err == nil {
		t.Error("a full queue let a Wait in")
	}
	if _, err := l.Allow(ctx, p, ""); err == nil {
		t.Error("an empty key was allowed")
	}
	if err := l.Reset(ctx, p, "k"); err != nil {
		t.Fatal(err)
	}
	if len(all) != 4 || all[0].request != p.Request("k", 1) || all[0].r != allowed ||
		all[1].r.Allowed || all[1].err != nil || !errors.Is(all[2].err, ErrInvalid) {
		t.Errorf("observed %+v", all)
	}
}

func TestNewWithoutPool(t *testing.T) {
	if _, err := New(nil, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// TestPolicyTextDays: durations may be in days; they are written in Go's form.
func TestPolicyTextDays(t *testing.T) {
	t.Parallel()
	var p Policy
	if err := json.Unmarshal([]byte(`{"name":"a","algorithm":"leaky_bucket","limit":1,"period":"30d","tick":"1d12h","block_for":"0.5d"}`), &p); err != nil ||
		p.Period != 720*time.Hour || p.Tick != 36*time.Hour || p.BlockFor != 12*time.Hour {
		t.Errorf("%+v, %v", p, err)
	}
	if text, err := json.Marshal(p); err != nil || !strings.Contains(string(text), `"period":"720h0m0s"`) {
		t.Errorf("%s, %v", text, err)
	}
	var field *PolicyError
	if err := json.Unmarshal([]byte(`{"block_for":"200000d"}`), &p); !errors.As(err, &field) || field.Field != "BlockFor" || !strings.Contains(err.Error(), `BlockFor "200000d"`) {
		t.Errorf("got %v", err)
	}
}
