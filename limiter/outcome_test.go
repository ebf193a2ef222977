package limiter

import (
	"errors"
	"testing"
)

func TestOutcome(t *testing.T) {
	for want, all := range map[Outcome][]Observation{
		OutcomeAllowed: {
			{Verb: VerbAllow, Result: Result{Allowed: true}}, {Verb: VerbReset}, {Verb: VerbBlock}, {Verb: VerbUnblock}, {Verb: VerbCancel},
		},
		OutcomeDenied:   {{Verb: VerbAllow}, {Verb: VerbCheck}},
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
