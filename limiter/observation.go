package limiter

import "time"

// Verb names a method of a Limiter or Tx, as in metrics and logs.
type Verb string

// The verbs. Allow, AllowN and Do are VerbAllow.
const (
	VerbAllow     Verb = "allow"
	VerbAllowUpTo Verb = "allow_up_to"
	VerbAllowAll  Verb = "allow_all"
	VerbWait      Verb = "wait"
	VerbWaitAll   Verb = "wait_all"
	VerbReserve   Verb = "reserve"
	VerbCheck     Verb = "check"
	VerbUsage     Verb = "usage"
	VerbCharge    Verb = "charge"
	VerbRefund    Verb = "refund"
	VerbUndo      Verb = "undo"
	VerbReset     Verb = "reset"
	VerbBlock     Verb = "block"
	VerbUnblock   Verb = "unblock"
	VerbSettle    Verb = "settle"
	VerbCancel    Verb = "cancel"
)

// Observation is what Config.Observe gets of one call. An AllowAll or WaitAll gives one for
// each of its requests.
type Observation struct {
	// Verb is the method that was called. What the library itself sends, to give back the
	// units of a cancelled Wait or an expired reservation, is not observed.
	Verb Verb
	// Request is the request, with the override of its key applied. For Settle and Cancel
	// it has the policy's Name and Algorithm and the stored Key, read from the ID, and the
	// units settled as Cost. For Reset, Block, Unblock and Usage its Cost is 0.
	Request Request
	// Result is the answer. It is zero if Err is not nil, except for the Reason of an
	// ErrOverloaded, and for Reset, Block, Unblock and Cancel.
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
