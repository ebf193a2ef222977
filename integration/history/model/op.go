package model

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// Verb is what an operation does.
type Verb string

// The verbs, most of them by the names of verbs.Call. Give is no method: it stands for what
// a request does before it is tried once more, if expired reservations were in its way.
const (
	Allow       Verb = "allow"
	AllowUpTo   Verb = "upto"
	Wait        Verb = "wait" // DoWait
	Check       Verb = "check"
	Usage       Verb = "usage"
	Sum         Verb = "sum" // of the units spent
	Charge      Verb = "charge"
	Refund      Verb = "refund"
	Add         Verb = "grant" // Grant
	Undo        Verb = "undo"
	Block       Verb = "block"
	Unblock     Verb = "unblock"
	Reset       Verb = "reset"
	Reserve     Verb = "reserve"
	ReserveUpTo Verb = "reserve_up_to"
	Settle      Verb = "settle"
	Cancel      Verb = "cancel"
	AllowAll    Verb = "all"
	AllowAny    Verb = "any"
	Split       Verb = "split" // AllowAnySplit
	ReserveAll  Verb = "reserve_all"
	SettleAll   Verb = "settle_all"
	CancelAll   Verb = "cancel_all"
	Attempt     Verb = "attempt"
	Succeeded   Verb = "succeeded"
	Failed      Verb = "failed"
	Acquire     Verb = "acquire" // DoAcquire
	Renew       Verb = "renew"
	Release     Verb = "release"
	Tx          Verb = "Tx"
	Give        Verb = "Give"

	Savepoint Verb = "Savepoint" // in a Tx
	Forget    Verb = "Forget"    // the last savepoint
	Back      Verb = "Back"      // to the last savepoint
)

// Request is one of several keys, or a reservation that ends.
type Request struct {
	Key    int
	Policy limiter.Policy
	Units  float64
	Floor  float64
	Held   int // the reservation
}

// Op is a call of a verb.
type Op struct {
	Number   int // of the operation, for Undo
	Verb     Verb
	Key      int
	Policy   limiter.Policy
	Units    float64
	Floor    float64 // of an Allow, a Wait and a Reserve
	Estimate bool    // of a Reserve and a ReserveUpTo
	For      int64   // a Block's time, how long a reservation, a ticket or a slot lasts, a Wait waits at most, or when a Grant's lot ends
	From     string  // of an Attempt
	Order    int     // of a Grant: the priority
	Idem     int     // the idempotency key; 0 is none
	Held     int     // Settle, Cancel: the reservation; Succeeded, Failed: the ticket; Renew, Release: the slot
	Undone   int     // Undo: the operation

	Requests []Request    // of several keys
	Pool     bool         // it asks a pool of an AllowAny
	Steps    []Op         // of a Tx
	Commits  bool         // a Tx
	InTx     bool         // it is a step of a Tx
	Of       *Op          // a Give: the request
	Forgets  bool         // a Give only forgets what the request's idempotency key stood for
	Reads    bool         // a Give is only the reading of what earlier estimates have spent
	Denies   bool         // a Give is only the denial of the request
	Touches  bool         // a Give is a denial that starts no block: of a sum that the request is part of, or its first
	Kept     map[int]bool // the operations whose grants an Undo gives back
	Drifts   bool         // of attempts: meanwhile another operation may have changed which sources are known, or the block
	Rival    bool         // a denial may stand: see ends; and another operation may have ended a reservation meanwhile

	Clocks   []int64 // what the clock read between the call and its return
	SQL      bool    // it was a SQL function
	Remember int64   // how long an admission is remembered after its end
}

// Out is what came of a call.
type Out struct {
	Answer
	Lost    bool  // the answer: it may have happened or not
	Pending bool  // it is Lost because the call has not returned, and may not have begun
	Steps   []Out // of a Tx

	longest time.Duration // RetryAfter of a Wait that is denied, if it had no time left
	unmoved bool          // a Settle has not changed the key: see matches
	still   []int         // what of a SettleAll has not
}

// Tell drops what results do not show.
func (o *Out) Tell() {
	o.Result, o.Usage.Result = testworld.Told(o.Result), testworld.Told(o.Usage.Result)
	for i, r := range o.All.PerRequest {
		if o.All.PerRequest[i] = testworld.Told(r); r.Source == limiter.SourceSkipped {
			o.All.PerRequest[i] = limiter.Result{}
		}
	}
	for i := range o.Steps {
		o.Steps[i].Tell()
	}
}

// tries reports whether a verb is tried again after expired reservations went back.
func (op *Op) tries() bool {
	switch op.Verb {
	case Allow, AllowUpTo, Reserve, ReserveUpTo, Check, AllowAll, ReserveAll, AllowAny, Split, Add:
		return true
	}
	return false
}

// Reserves reports whether op makes a reservation.
func (op *Op) Reserves() bool { return op.Verb == Reserve || op.Verb == ReserveUpTo }

// asks reports whether op is a request for a key.
func (op *Op) asks(key int) bool {
	return !op.Verb.Sets() && op.Key == key ||
		slices.ContainsFunc(op.Requests, func(q Request) bool { return q.Key == key })
}
