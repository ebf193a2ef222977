package limiter

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	durations "github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
)

// Do requests request.Cost units, all or nothing. A denial consumes nothing. It is a
// Result, not an error. A cost above the burst, or above what request.Floor leaves of it, is
// denied with RetryAfter Never and starts no block.
//
// A request whose IdempotencyKey was admitted before is not counted again: Do returns the
// earlier answer with Result.Replayed.
func (e *engine) Do(ctx context.Context, request Request) (Result, error) {
	return e.decide(ctx, e.call(verbTake, request))
}

// Allow requests one unit. It is Do at cost 1.
func (e *engine) Allow(ctx context.Context, p Policy, key string) (Result, error) {
	return e.decide(ctx, e.call(verbTake, p.Request(key, 1)))
}

// AllowN requests cost units, all or nothing.
func (e *engine) AllowN(ctx context.Context, p Policy, key string, cost float64) (Result, error) {
	return e.decide(ctx, e.call(verbTake, p.Request(key, cost)))
}

// AllowAll makes several requests at once, of any policies and keys: all are granted or
// none, and a denial consumes nothing. It takes from 1 to 1,000 requests. Their order
// matters only for Results. AllowAlls never deadlock each other.
//
//   - Requests for one policy and key are decided on the sum of their costs. Each has its
//     own Result, as if they had come one after the other. Those of a shadow policy do come
//     one after the other.
//   - A sum above the burst is denied with RetryAfter Never, and nothing is written.
//   - One name, algorithm and key under two different Policy values is an ErrInvalid.
//   - Errors name the request by its index.
//   - A denial starts the block of those policies that denied, if Policy.BlockFor is set.
//   - The whole is Relaxed if all policies are, else Durable; FailClosed if any is.
//     FailLocal ones are granted in memory all or none, and FailOpen ones follow.
//   - The rows of all keys are locked for two round trips to the database. If all keys had
//     much room at this Limiter's last AllowAll, the request takes one round trip, and the rows
//     are locked only while the database decides. If a policy has Marks, it is three in any case.
//   - A remembered denial of one of its requests denies the whole: the Source of the others
//     is SourceSkipped.
//   - A request of a shadow policy never denies the others. If the others are granted, it is
//     decided by itself, by a statement after theirs, and counted if it fits. If they are
//     denied, it is not decided: its Source is SourceSkipped. In a transaction too the keys
//     of shadow policies are locked after all others, both in one order.
//   - A repeated AllowAll whose requests have an IdempotencyKey counts once, and returns the
//     earlier answers with Result.Replayed. A request of a shadow policy counts once by itself.
//     It takes a round trip more, and no remembered denial answers it.
//   - Config.Observe is called for each request.
func (e *engine) AllowAll(ctx context.Context, requests ...Request) (Results, error) {
	return e.decideAll(ctx, &set{verb: verbAll, requests: requests})
}

// AllowUpTo requests up to cost units and is granted what fits. For a whole cost these are
// whole units. A fractional cost is granted in full or in steps of a millionth of the burst.
// Result.Allowed reports whether any unit was granted, and Result.Granted is their
// number. Result.RetryAfter is the time until one more unit, or the rest if that is less,
// could be granted.
func (e *engine) AllowUpTo(ctx context.Context, p Policy, key string, cost float64) (Result, error) {
	return e.decide(ctx, e.call(verbUpTo, p.Request(key, cost)))
}

// Check returns what AllowN would return and consumes nothing. At cost 0 it reads the
// key's state and is allowed unless the key is blocked.
func (e *engine) Check(ctx context.Context, p Policy, key string, cost float64) (Result, error) {
	return e.decide(ctx, e.call(verbCheck, p.Request(key, cost)))
}

// Usage returns the key's state at one moment. It consumes nothing.
func (e *engine) Usage(ctx context.Context, p Policy, key string) (s Usage, err error) {
	c := e.call(verbUsage, p.Request(key, 0))
	c.held = true
	defer e.put(c)
	if s.Result, err = e.decide(ctx, c); err != nil {
		return Usage{}, err
	}
	s.Reservations, s.Reserved = c.op.Usage.Reservations, min(c.op.Usage.Reserved, s.Result.Level)
	if a := c.op.Attempt; a != nil {
		s.Reservations = len(a.Tries.Ends)
	}
	if h := c.op.Slot; h != nil {
		s.Reservations = int(h.Slots)
	}
	s.Spent = s.Result.Level - s.Reserved
	if a := c.op.Usage.Account; a != nil {
		s.Reserved = min(c.op.Usage.Reserved, a.Spent)
		s.stand(a)
	}
	if w, ok := c.op.Outcome.View.(*algorithm.Window); ok && w.Count > 0 {
		s.WindowEndsAt = time.UnixMicro(w.EndsAt)
	}
	return s, nil
}

// Charge records cost units that were already spent, whatever the limit. It fills the key up
// to the burst at most. Result.Granted is the number recorded, and Result.Full reports
// whether no room is left. It is never denied, even if the key is blocked.
func (e *engine) Charge(ctx context.Context, p Policy, key string, cost float64) (Result, error) {
	return e.decide(ctx, e.call(verbCharge, p.Request(key, cost)))
}

// Refund gives cost units back, at most those in use. Result.Granted is their number. Undo
// gives back an earlier answer more exactly.
//
//   - A SlidingWindowLog takes back its newest entries first, a SlidingWindowCounter its
//     current window first.
//   - A refund to a bucket that has leaked since frees room that the leak would have
//     freed later.
//   - A refund to a window counts for the current window.
//   - A LeakyBucketQueue returns ErrUnsupported.
func (e *engine) Refund(ctx context.Context, p Policy, key string, cost float64) (Result, error) {
	return e.decide(ctx, e.call(verbRefund, p.Request(key, cost)))
}

// Undo gives back what an earlier answer granted, as far as it is still counted, so that
// no unit passes twice. r is the Result of an Allow, AllowN, Do or AllowUpTo, or one of
// an AllowAll, for the same policy and key. Undo it once. Result.Granted is the number of
// units given back:
//
//   - LeakyBucket, TokenBucket, GCRA: what r granted less what may have leaked since, as
//     other requests may have used that room. The rate is the faster of p's and that of
//     the last decision.
//   - FixedWindow, SlidingWindowCounter: all, while the window that counted them lasts;
//     then nothing. A SlidingWindowCounter also gives back to the previous window, if the
//     Period is still the same.
//   - SlidingWindowLog: all that the entry of that decision still holds.
//   - Balance: all. They pay the debt, then go to the lot that r spent from first, which keeps
//     its end. If that lot has expired, nothing goes back; Refund still does. Of requests that
//     shared a statement it is the lot that the first of them spent from.
//   - LeakyBucketQueue: ErrUnsupported.
//
// Undo also lifts the key's block if a denial began it while units of r still counted, and
// Block did not extend it.
//
// Undo gives nothing back and returns the key's state if r granted nothing, was decided
// by FailOpen, or is Replayed or Shadowed. The same holds for other Results: Undo uses unexported
// fields of r, which are lost in JSON. To give back from another process use Reserve and
// Cancel.
func (e *engine) Undo(ctx context.Context, p Policy, key string, r Result) (Result, error) {
	request := p.Request(key, r.Granted)
	if back, ok := e.undoLent(ctx, request, r.block); ok {
		return back, nil
	}
	switch {
	case p.Algorithm == LeakyBucketQueue:
		return Result{}, e.refuse(ctx, verbUndo, request, fmt.Errorf("%w: Undo on %s: units in a queue go back when their Wait is cancelled", store.ErrUnsupported, LeakyBucketQueue))
	case !r.grant.Made:
		return e.decide(ctx, e.call(verbNoUndo, p.Request(key, 0)))
	}
	c := e.call(verbUndo, request)
	c.op.Grant = r.grant
	return e.decide(ctx, c)
}

// Reset forgets the key's units and its block. Its reservations stay open, but have
// nothing to give back, and Settle counts what was spent in full. Admissions under an
// IdempotencyKey stay remembered.
func (e *engine) Reset(ctx context.Context, p Policy, key string) error {
	_, err := e.decide(ctx, e.call(verbReset, p.Request(key, 0)))
	e.places.Drop(queueKey{p.Name, key})
	return err
}

// Block denies all requests for the key for d from now, or until the end of an earlier
// block if that is later. It does not change the key's units. d is whole microseconds,
// more than 0 and at most a hundred years.
func (e *engine) Block(ctx context.Context, p Policy, key string, d time.Duration) error {
	if reason := valid.Duration(d); reason != "" || d == 0 {
		return e.refuse(ctx, verbBlock, p.Request(key, 0), store.Invalid("duration", durations.Format(d), "must be positive whole microseconds, at most a hundred years"))
	}
	c := e.call(verbBlock, p.Request(key, 0))
	c.op.ForUs = d.Microseconds()
	_, err := e.decide(ctx, c)
	return err
}

// Unblock lifts the key's block, by Block or by Policy.BlockFor, and keeps its units. A
// key without a block is not an error.
func (e *engine) Unblock(ctx context.Context, p Policy, key string) error {
	_, err := e.decide(ctx, e.call(verbUnblock, p.Request(key, 0)))
	return err
}

// Settle ends a reservation with the units really spent, from 0 to 2^53. Result.Granted
// is units; Limit and Burst are those of the Reserve.
//
//   - Less than was reserved: the rest goes back. A bucket gets back at most n - rate ×
//     age for n units reserved, since others may have used what leaked. The rate is the
//     faster of the Reserve's and that of the last decision. A fixed window gets units
//     back only while it lasts.
//   - More than was reserved: the excess is counted even without room. Nothing is left
//     until it has leaked or the window has ended.
//   - A FixedWindow that has ended since the Reserve does not change.
//   - A Balance gives back to the lots that the Reserve took units from, the last first. Units
//     of a lot that has expired are lost. The others pay the debt first. What the Reserve took
//     as a debt goes back as by Refund. The excess is spent from the lots there are.
//   - After a Reset the units count in the current window.
//   - After the reservation expired: the units are still counted, and Result.Expired is
//     true.
//   - Again with the same units: nothing changes, and Result.Replayed is true. So Settle
//     can be retried.
//   - Again with other units, or after a Cancel: ErrReservationEnded.
//   - An unknown ID, or one that expired more than Config.IdempotencyTTL ago:
//     ErrNoReservation.
//   - An ID that begins with uncounted: nothing changes, Result.Granted is 0 and the Source
//     is SourceSkipped. It has no row, so a client can make one up. End only IDs that you
//     stored.
//
// Settle and Cancel are always Durable: an ID has the policy's name, but not its
// Durability. With a Config.KeySecret this process keeps its remembered denials of the key
// until Config.DenyCacheTTL.
func (e *engine) Settle(ctx context.Context, id string, units float64) (r Result, err error) {
	began, in := e.begin(), Request{Cost: units}
	defer func() { e.finish(ctx, verbSettle, &in, &r, err, began) }()
	if !(units >= 0 && units <= algorithm.MaxUnits) {
		return r, store.Invalid("units", strconv.FormatFloat(units, 'g', -1, 64), "must be from 0 to 2^53")
	}
	op, err := e.end(ctx, &in, id, store.Settled)
	switch {
	case err != nil:
		return r, err
	case op == nil:
		return Result{Allowed: true, Source: SourceSkipped, At: e.clockTime()}, nil
	}
	return e.ended(op, 1)
}

// ended returns the answer of a Settle or Cancel, one of n that were decided together.
func (e *engine) ended(op *store.Op, n int) (r Result, err error) {
	if err = op.Conflict("it"); err != nil {
		return r, err
	}
	s := op.Ended
	q := store.Query{Rules: s.Rules, Algorithm: s.Algorithm, Room: s.Capacity, Units: op.Units}
	r = result(&q, verbCharge, &s.Outcome, s.Limit, e.source)
	r.Granted, r.Replayed, r.Expired = op.Units, s.State == store.Settled, s.State == store.Expired || s.Overdue(s.Now)
	r.rows = e.rows(n, op)
	return r, nil
}

// Cancel ends a reservation with nothing spent and gives back what Settle at 0 would. It
// may be repeated, and is not an error after the reservation has expired. After a Settle
// it returns ErrReservationEnded, for an unknown ID ErrNoReservation.
func (e *engine) Cancel(ctx context.Context, id string) (err error) {
	began, in := e.begin(), Request{}
	var r Result // what Observe sees
	defer func() { e.finish(ctx, verbCancel, &in, &r, err, began) }()
	op, err := e.end(ctx, &in, id, store.Cancelled)
	if err != nil || op == nil {
		return err
	}
	if err = op.Conflict("it"); err == nil {
		r.rows = e.rows(1, op)
	}
	return err
}

// end brings a reservation to a state, with in.Cost units spent, and sets the policy and
// key of in. op is nil for a reservation for which nothing was counted.
func (e *engine) end(ctx context.Context, in *Request, public string, state store.State) (op *store.Op, err error) {
	op, err = e.ending(in, public, state)
	if err != nil || op == nil {
		return nil, err
	}
	if err = e.send(ctx, op); err == nil {
		e.freed(op.Algorithm, op.Policy, op.Key)
	}
	return op, err
}

// ending returns the op of an end.
func (e *engine) ending(in *Request, public string, state store.State) (op *store.Op, err error) {
	if e.closed.Load() {
		return nil, store.ErrClosed
	}
	id, ok := store.ParseReservationID(public)
	uncounted := false
	if !ok {
		id.Algorithm = ""
		id.Policy, id.Key, uncounted = store.ParseUncountedID(public)
	}
	if !ok && !uncounted || !valid.Name(id.Policy) || valid.Key(id.Key) != nil {
		return nil, store.Invalid("reservation", store.Quote(public), "is not the ID of a Reservation")
	}
	in.Policy, in.Key = Policy{Name: id.Policy, Algorithm: Algorithm(id.Algorithm)}, id.Key
	if uncounted {
		return nil, nil
	}
	op = &store.Op{
		Kind: store.Settle, ID: id.ID, State: state,
		Query: store.Query{Algorithm: id.Algorithm, Policy: id.Policy, Key: id.Key, Units: in.Cost, Now: e.now()},
	}
	if !e.tx {
		op.Commit = store.Durable
	}
	return op, nil
}
