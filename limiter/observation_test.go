package limiter

import (
	"context"
	"errors"
	"maps"
	"math"
	"testing"
	"time"
)

func TestOutcome(t *testing.T) {
	for want, all := range map[Outcome][]Observation{
		OutcomeAllowed: {
			{Verb: VerbAllow, Result: Result{Allowed: true}}, {Verb: VerbReset}, {Verb: VerbBlock}, {Verb: VerbUnblock}, {Verb: VerbCancel},
		},
		OutcomeDenied:   {{Verb: VerbAllow}, {Verb: VerbCheck}, {Verb: VerbAllowAll, Result: Result{Reason: ReasonLimit}}},
		OutcomeSkipped:  {{Verb: VerbAllowAll, Result: Result{Allowed: true}}, {Verb: VerbWaitAll, Result: Result{Source: SourceSkipped}}},
		OutcomeShadowed: {{Verb: VerbAllow, Result: Result{Allowed: true, Shadowed: true}}},
		OutcomeError:    {{Verb: VerbAllow, Err: errors.New("away")}, {Verb: VerbReset, Err: errors.New("away")}},
	} {
		for _, o := range all {
			if got := o.Outcome(); got != want {
				t.Errorf("%+v: got %s, want %s", o, got, want)
			}
		}
	}
}

// TestObservationLabels: a name that a caller may have chosen, and units that are no number,
// are in no metric.
func TestObservationLabels(t *testing.T) {
	var last Observation
	l := NewMemory(&Config{Observe: func(_ context.Context, o Observation) { last = o }})
	p := Policy{Name: "login", Algorithm: FixedWindow, Limit: 5, Period: time.Hour}
	ctx := t.Context()
	for name, call := range map[string]func(){
		"a policy that is not valid":      func() { _, _ = l.Allow(ctx, Policy{Name: "x1"}, "k") },
		"a reservation that is not there": func() { _, _ = l.Settle(ctx, "token_bucket:AAAAAAAAAAAAAAAA:x1:a2V5", 0) },
		"one that counts nothing":         func() { _, _ = l.Settle(ctx, "uncounted:AAAAAAAAAAAAAAAA:x1:a2V5", 0) },
		"its end":                         func() { _ = l.Cancel(ctx, "uncounted:AAAAAAAAAAAAAAAA:x1:a2V5") },
	} {
		last = Observation{}
		if call(); last.Verb == "" || last.Labels()[0] != "" {
			t.Errorf("%s: %+v", name, last.Labels())
		}
	}
	for _, n := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -5, 1 << 60} {
		if _, err := l.AllowN(ctx, p, "k", n); !errors.Is(err, ErrInvalid) || last.Units() != 0 || last.Labels()[0] != "login" {
			t.Errorf("%v units are %v of %+v: %v", n, last.Units(), last.Labels(), err)
		}
	}
}

// TestSkippedIsNotDenied: a denied AllowAll is a denial only of the policies that denied it,
// in metrics as for a DenialLog.
func TestSkippedIsNotDenied(t *testing.T) {
	counts := map[string]int{}
	log := denied{}
	l := NewMemory(&Config{DenialLog: log, Observe: func(_ context.Context, o Observation) {
		counts[o.Labels()[0]+" "+o.Labels()[2]]++
		if o.Units() != 5 {
			t.Errorf("%+v: %v units", o, o.Units())
		}
	}})
	five, four := PerHour("five", 5), PerHour("four", 4)
	shadow := PerHour("shadow", 1)
	shadow.Shadow = true
	if all, err := l.AllowAll(t.Context(), five.Request("k", 5), four.Request("k", 5), shadow.Request("k", 5)); err != nil || all.Allowed {
		t.Fatalf("%+v, %v", all, err)
	}
	want := map[string]int{"five skipped": 1, "four denied": 1, "shadow skipped": 1}
	if !maps.Equal(counts, want) || !maps.Equal(log, denied{"four/k allow_all": 1}) {
		t.Errorf("counted %v, want %v; logged %v", counts, want, log)
	}
}
