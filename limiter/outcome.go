package limiter

// Outcome is what came of a call, as in metrics.
type Outcome string

// The outcomes.
const (
	OutcomeAllowed  Outcome = "allowed"  // or done, for a verb that is not a request
	OutcomeDenied   Outcome = "denied"   // the limit or a block denied it, or the AllowAll that it was part of
	OutcomeShadowed Outcome = "shadowed" // Policy.Shadow let pass what it would have denied
	OutcomeError    Outcome = "error"    // there was no decision
)

// Outcome returns what came of the call.
func (o Observation) Outcome() Outcome {
	switch {
	case o.Err != nil:
		return OutcomeError
	case o.Result.Shadowed:
		return OutcomeShadowed
	case o.Result.Allowed && o.Result.Granted == 0 && (o.Verb == VerbAllowAll || o.Verb == VerbWaitAll):
		return OutcomeDenied // it would have fitted, and another request denied the whole
	case o.Result.Allowed:
		return OutcomeAllowed
	}
	switch o.Verb {
	case VerbReset, VerbBlock, VerbUnblock, VerbCancel: // without a Result
		return OutcomeAllowed
	}
	return OutcomeDenied
}
