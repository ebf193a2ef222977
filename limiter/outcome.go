package limiter

import "github.com/pglimit/pglimit/internal/algorithm"

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

// Labels returns the labels of the call's metrics: policy, verb, outcome and source. The
// policy is "" if the request is not valid or its reservation does not exist: a caller might
// have chosen the name. The source is "" after an error.
func (o Observation) Labels() [4]string {
	policy, source := o.Request.Policy.Name, string(o.Result.Source)
	if o.Err != nil {
		source = ""
		if o.Request.Policy.Validate() != nil {
			policy = ""
		}
	}
	if (o.Verb == VerbSettle || o.Verb == VerbCancel) && algorithm.Name(o.Request.Policy.Algorithm).Index() < 0 {
		policy = "" // the ID of a reservation that counts nothing: anyone can make one
	}
	return [4]string{policy, string(o.Verb), string(o.Outcome()), source}
}

// Units returns the units granted; of a denied, shadowed or failed request, those requested. It
// is 0 if they are not valid.
func (o Observation) Units() float64 {
	units := o.Request.Cost
	if o.Outcome() == OutcomeAllowed {
		units = o.Result.Granted
	}
	if !(units >= 0 && units <= algorithm.MaxUnits) { // NaN would stay in a counter for good
		return 0
	}
	return units
}
