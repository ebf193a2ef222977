package limiter

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Verb names a method of a Limiter or Tx, as in metrics and logs.
type Verb string

// The verbs. Allow, AllowN and Do are VerbAllow. AllowAnySplit is VerbAllowAny. ReserveAll is
// VerbReserve for each request, SettleAll VerbSettle and CancelAll VerbCancel for each reservation.
// DoAcquire, DoWith and each try of an AcquireWait are VerbAcquire.
const (
	VerbAllow       Verb = "allow"
	VerbAllowUpTo   Verb = "allow_up_to"
	VerbAllowAll    Verb = "allow_all"
	VerbAllowAny    Verb = "allow_any"
	VerbWait        Verb = "wait"
	VerbWaitAll     Verb = "wait_all"
	VerbReserve     Verb = "reserve"
	VerbReserveUpTo Verb = "reserve_up_to"
	VerbCheck       Verb = "check"
	VerbUsage       Verb = "usage"
	VerbCharge      Verb = "charge"
	VerbGrant       Verb = "grant"
	VerbRefund      Verb = "refund"
	VerbUndo        Verb = "undo"
	VerbReset       Verb = "reset"
	VerbBlock       Verb = "block"
	VerbUnblock     Verb = "unblock"
	VerbSettle      Verb = "settle"
	VerbCancel      Verb = "cancel"
	VerbAttempt     Verb = "attempt"
	VerbSucceeded   Verb = "succeeded"
	VerbFailed      Verb = "failed"
	VerbAcquire     Verb = "acquire"
	VerbRenew       Verb = "renew"
	VerbRelease     Verb = "release"
)

// Observer gets observations, on the caller's goroutine, so it must not block. It is safe for
// concurrent use. For Config.DenialLog it may have a method Matches, as Policies may.
type Observer interface {
	Observe(ctx context.Context, o Observation)
}

// Observation is what Config.Observe gets of one call. An AllowAll, AllowAny or WaitAll gives one
// for each of its requests.
type Observation struct {
	// Verb is the method that was called. What the library itself sends, to give back the
	// units of a cancelled Wait or an expired reservation, is not observed.
	Verb Verb
	// Request is the request, with the override of its key applied, and the Cost that an
	// Estimate was corrected to. For Settle, Cancel, Succeeded, Failed, Renew and Release it has
	// the policy's Name and Algorithm and the stored Key, read from the ID, and the units settled
	// as Cost.
	// For Reset, Block, Unblock and Usage its Cost is 0.
	Request Request
	// Result is the answer. It is zero if Err is not nil, except for the Reason and At of an
	// ErrOverloaded, and for Reset, Block, Unblock, Cancel, Succeeded, Renew and Release.
	Result Result
	// Err is the error that the method returned.
	Err error
	// Duration is the time from the call to its answer, without the sleep of a Wait.
	Duration time.Duration
	// Rows is the number of requests that the statement or transaction decided which
	// decided this one. It is 0 if none was sent, as for a remembered denial, and in memory.
	Rows int
	// Waiting is Limiter.Waiting when the answer was known.
	Waiting int
}

// Outcome is what came of a call, as in metrics.
type Outcome string

// The outcomes.
const (
	OutcomeAllowed  Outcome = "allowed"  // or done, for a verb that is not a request
	OutcomeDenied   Outcome = "denied"   // the limit or a block denied it
	OutcomeSkipped  Outcome = "skipped"  // another request of its AllowAll or WaitAll was denied, or of its AllowAny granted; nothing was counted
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
	case (o.Verb == VerbAllowAll || o.Verb == VerbAllowAny || o.Verb == VerbWaitAll || o.Verb == VerbReserve) && o.Result.Granted == 0 && o.Result.Reason == "":
		return OutcomeSkipped // it would have fitted, or was not decided
	case o.Result.Allowed:
		return OutcomeAllowed
	}
	switch o.Verb {
	case VerbReset, VerbBlock, VerbUnblock, VerbCancel, VerbSucceeded, VerbRenew, VerbRelease: // without a Result
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
	switch o.Verb {
	case VerbSettle, VerbCancel, VerbSucceeded, VerbFailed, VerbRenew, VerbRelease:
		if !o.Request.Policy.Algorithm.known() {
			policy = "" // the ID of what counts nothing: anyone can make one
		}
	}
	return [4]string{policy, string(o.Verb), string(o.Outcome()), source}
}

// Units returns the units granted; of a request with another outcome, those requested. It is
// 0 if they are not valid.
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
