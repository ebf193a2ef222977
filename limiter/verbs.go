package limiter

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// The verbs for one key, of Limiter and Tx alike.

// Do asks for ask.Cost units, all or nothing. A denial consumes nothing; it is
// a Result, not an error. A cost above the burst is denied with RetryAfter
// Never, and starts no block.
//
// An ask with an IdempotencyKey that was admitted before is answered as it was
// then, with Result.Replayed, and counted no second time.
func (e *engine) Do(ctx context.Context, request Request) (Result, error) {
	return e.one(ctx, verbTake, request)
}

// Allow asks for one unit. It is Do at cost 1.
func (e *engine) Allow(ctx context.Context, p Policy, key string) (Result, error) {
	return e.one(ctx, verbTake, p.Request(key, 1))
}

// AllowN asks for n units, all or nothing. It is Do at cost n.
func (e *engine) AllowN(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return e.one(ctx, verbTake, p.Request(key, n))
}

// AllowUpTo asks for up to n units and is granted what fits: whole units of a
// whole n; of a fractional n all, or steps of a millionth of the burst.
// Result.Allowed is true when something was granted, Result.Granted is how
// much, and Result.RetryAfter is until one unit more, or the rest if less.
func (e *engine) AllowUpTo(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return e.one(ctx, verbUpTo, p.Request(key, n))
}

// Check tells what AllowN would answer and consumes nothing. At n = 0 it reads
// how the key stands, and is allowed unless the key is blocked.
func (e *engine) Check(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return e.one(ctx, verbCheck, p.Request(key, n))
}

// Statement tells how the key stands, as of one moment. It consumes nothing.
func (e *engine) Usage(ctx context.Context, p Policy, key string) (s Usage, err error) {
	c := e.call(verbUsage, p.Request(key, 0))
	defer e.put(c)
	if s.Result, err = e.pass(ctx, c); err != nil {
		return Usage{}, err
	}
	s.Reservations, s.Reserved = c.usage.Reservations, min(c.usage.Reserved, s.Result.Level)
	s.Spent, s.Remaining = s.Result.Level-s.Reserved, s.Result.Remaining
	if w, ok := c.outcome.View.(*algorithm.Window); ok && w.Count > 0 {
		s.WindowEnds = time.UnixMicro(w.EndsAt)
	}
	return s, nil
}

// Fill records n units that were spent whatever the limit says. The key is
// filled up to the burst at most; Result.Granted is what went in and
// Result.Full whether that left no room. It is never denied, blocked or not.
func (e *engine) Charge(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return e.one(ctx, verbCharge, p.Request(key, n))
}

// Refund gives n units back, at most what is there; Result.Granted is how
// many. The SlidingWindowLog takes back its newest entries first, the
// SlidingWindowCounter its current window first. A refund into a bucket that
// has leaked meanwhile frees room that the leak would have freed later, and one
// into a window counts for the window that runs: Undo gives back what is left of an
// earlier answer. A LeakyBucketQueue gives ErrUnsupported.
func (e *engine) Refund(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return e.one(ctx, verbRefund, p.Request(key, n))
}

// Undo gives back what an earlier answer granted, as far as it is still there, so
// that nothing passes twice. r is the Result of an Allow, AllowN, Do, AllowUpTo, or
// one of an AllowAll, of the same policy and key; undo it once. Result.Granted is how
// many units went back:
//
//   - Of a LeakyBucket, TokenBucket or GCRA, what r granted less what may have leaked
//     since: that much room has been others' already. The rate is the faster of p's
//     and that last decided by.
//   - Of a FixedWindow or SlidingWindowCounter, all until the window has ended that
//     it was counted in (for the counter also while that is the window before, if the
//     Period is still the same), and then nothing.
//   - Of a SlidingWindowLog, all that the entry of that decision still holds.
//
// Nothing is given back, and the answer is how the key stands, where r granted
// nothing, was decided by FailOpen, was Replayed, or is no answer of these verbs:
// what Undo goes by is kept in r, and is lost in JSON. Another process gives back by
// Reserve and Cancel. A LeakyBucketQueue gives ErrUnsupported.
func (e *engine) Undo(ctx context.Context, p Policy, key string, r Result) (Result, error) {
	if p.Algorithm == LeakyBucketQueue {
		return Result{}, fmt.Errorf("%w: Undo on %s: a place in the queue goes back when its Wait is cancelled", store.ErrUnsupported, LeakyBucketQueue)
	}
	if !r.grant.Made {
		stands, err := e.one(ctx, verbCheck, p.Request(key, 0))
		stands.Allowed, stands.Granted, stands.RetryAfter, stands.Reason = err == nil, 0, 0, ""
		return stands, err
	}
	c := e.call(verbUndo, p.Request(key, r.Granted))
	defer e.put(c)
	c.grant = r.grant
	return e.pass(ctx, c)
}

// Reset forgets the key: what it has used, and its block. Holds stay open, but
// have nothing to give back; what is settled is counted in full. What was admitted
// under an idempotency key stays remembered.
func (e *engine) Reset(ctx context.Context, p Policy, key string) error {
	_, err := e.one(ctx, verbReset, p.Request(key, 0))
	return err
}

// Block denies the key for d from now on whatever it has used, or until the
// end of an earlier block if that is later. d is whole microseconds, more than
// 0 and at most a hundred years.
func (e *engine) Block(ctx context.Context, p Policy, key string, d time.Duration) error {
	if reason := badDuration(d); reason != "" || d == 0 {
		return store.Invalid("duration", d.String(), "must be positive whole microseconds, at most a hundred years")
	}
	c := e.call(verbBlock, p.Request(key, 0))
	defer e.put(c)
	c.blockFor = d.Microseconds()
	_, err := e.pass(ctx, c)
	return err
}

// Unblock lifts the key's block, whether by Block or by Policy.BlockFor, and
// leaves what it has used. A key without a block is no error.
func (e *engine) Unblock(ctx context.Context, p Policy, key string) error {
	_, err := e.one(ctx, verbUnblock, p.Request(key, 0))
	return err
}

// Reserve sets ask.Cost units aside for ttl, all or nothing: they are consumed at
// once, and what turns out not to be needed comes back when the hold is settled
// or cancelled, or else from when it expires. ttl is whole microseconds from one
// second to a hundred years. A denial is a Result, not an error. While the hold is
// open RetryAfter, whoever asks, is as if all of it was spent.
//
// An ask with an IdempotencyKey that was reserved before gives the same hold again,
// as it was answered then, with Result.Replayed. A hold that was cancelled or has
// expired came to nothing: its key is free, and an ask with it makes another hold.
//
// A LeakyBucketQueue gives ErrUnsupported: what is in a queue is not given back.
// Where the database cannot be asked Reserve fails whatever Policy.OnError is: a
// hold that nobody keeps could not be settled.
func (e *engine) Reserve(ctx context.Context, request Request, ttl time.Duration) (Reservation, error) {
	if reason := badDuration(ttl); reason != "" || ttl < store.MinTTL {
		return Reservation{}, store.Invalid("ttl", ttl.String(), "must be whole microseconds from one second to a hundred years")
	}
	c := e.call(verbReserve, request)
	defer e.put(c)
	c.ttl = ttl
	r, err := e.pass(ctx, c)
	switch before := c.outcome.Before; {
	case err != nil || !r.Allowed:
		return Reservation{Result: r}, err
	case before != nil:
		return Reservation{r, before.ID, time.UnixMicro(before.ExpiresAt)}, nil
	}
	return Reservation{r, c.admission.ID, time.UnixMicro(c.outcome.UpdatedAt + c.admission.TTL)}, nil
}

// Settle ends a hold with what was really spent, from 0 to 2^53 units. Less than
// was reserved gives the rest back: of a bucket only what cannot have leaked since,
// at most n - rate × age for n units, else units would pass twice; of a fixed
// window only while it is the same window. More than was reserved is recorded even
// where there is no room, and the key then has nothing left until that has
// leaked or the window has ended. A FixedWindow that has ended since the Reserve
// stays as it was, whatever was spent; after a Reset what was spent counts in the
// window that runs. The rate is the faster of that reserved by
// and that last decided by, should the plan have changed. Result.Granted is units,
// and Limit and Burst are those of the Reserve.
//
// After the hold has expired Settle records what was spent all the same, and says
// so in Result.Expired. Settled once more with the same units it changes nothing
// and answers with Result.Replayed, so it can be retried; with others, or after a
// Cancel, it is an ErrReservationEnded. A hold that never was, or whose ttl was over longer
// than Config.IdempotencyTTL ago, is an ErrNoReservation.
//
// Settle and Cancel are Durable whatever the policy was. Where Config.KeySecret is
// set, the denials that this process remembers of the key are kept until
// Config.DenyCacheTTL.
func (e *engine) Settle(ctx context.Context, id string, units float64) (Result, error) {
	if !(units >= 0 && units <= algorithm.MaxUnits) {
		return Result{}, store.Invalid("units", strconv.FormatFloat(units, 'g', -1, 64), "must be from 0 to 2^53")
	}
	s, err := e.end(ctx, id, store.Settled, units)
	if err != nil {
		return Result{}, err
	}
	again := s.State == store.Settled && s.Units == units
	if !s.Changed && !again {
		return Result{}, fmt.Errorf("%w: it was %s, with %s of its %s units", store.ErrReservationEnded, s.State, amount(s.Units), amount(s.Reserved))
	}
	q := store.Query{Rules: s.Rules, Algorithm: s.Algorithm, Room: s.Capacity}
	r := result(&q, verbCharge, &s.Outcome, s.Limit, e.source)
	r.Granted, r.Replayed, r.Expired = units, again, s.State == store.Expired || s.Overdue(s.Now)
	return r, nil
}

// Cancel ends a hold of which nothing was spent, and gives back what Settle at 0
// would. It may be repeated, and is no error after the hold has expired. A hold
// that was settled is an ErrReservationEnded; one that is not known an ErrNoReservation.
func (e *engine) Cancel(ctx context.Context, id string) error {
	s, err := e.end(ctx, id, store.Cancelled, 0)
	if err == nil && s.State == store.Settled {
		return fmt.Errorf("%w: it was settled, with %s of its %s units", store.ErrReservationEnded, amount(s.Units), amount(s.Reserved))
	}
	return err
}

// end brings a reservation to a state.
func (e *engine) end(ctx context.Context, id string, state store.State, units float64) (s store.Ended, err error) {
	if e.closed.Load() {
		return s, store.ErrClosed
	}
	name, random, _ := strings.Cut(id, ":")
	a := algorithm.Name(name)
	if a.Index() < 0 || a == algorithm.LeakyBucketQueue || len(random) < 16 || len(id) > 128 || strings.IndexByte(id, 0) >= 0 || !utf8.ValidString(id) {
		return s, store.Invalid("reservation", store.Quote(id), "is not the ID of a Reservation")
	}
	change := store.Ending{ID: id, Algorithm: a, State: state, Units: units, Now: e.now()}
	if !e.tx {
		change.Commit = store.Durable
	}
	s, err = e.store.Settle(ctx, &change)
	if err == nil {
		e.freed(a, s.Policy, s.Key)
	}
	return s, err
}

// DoWait is Do for LeakyBucketQueue that sleeps until the ask's turn, its
// Result.Delay; the other algorithms give ErrUnsupported, and so does an ask with
// an IdempotencyKey. Units leave the queue in the order in which they were asked
// for, across all processes.
//
// When the queue is full, the key is blocked, or the turn would come after
// ctx's deadline, the answer is a denial, at once, and nothing is consumed. Like any
// denial it starts the block that Policy.BlockFor asks for.
//
// When ctx ends DoWait returns ctx's error, and its place, even if a statement in
// flight takes it only then, goes back if nobody has queued behind it: before
// DoWait returns if it had the place, which Config.Timeout bounds, else after it.
// The sleep is real time even when Config.Now is set.
func (l *Limiter) DoWait(ctx context.Context, request Request) (Result, error) {
	c := l.call(verbWait, request)
	defer l.put(c)
	c.within = left(ctx)
	r, err := l.pass(ctx, c)
	if err != nil || sleep(ctx, r.Delay) {
		return r, err
	}
	l.leaving.RLock() // Close waits for this one
	defer l.leaving.RUnlock()
	l.leave(ctx, request, &c.query, c.outcome.Ticket)
	return Result{}, store.EndedContext(ctx)
}

// Wait is DoWait of n units that returns nil when it is their turn, and a
// *DeniedError for a denial.
func (l *Limiter) Wait(ctx context.Context, p Policy, key string, n float64) error {
	r, err := l.DoWait(ctx, p.Request(key, n))
	if err == nil && !r.Allowed {
		return &DeniedError{Result: r}
	}
	return err
}

// WaitAll is AllowAll that sleeps until the turn of all asks: the longest Delay.
// Those of a LeakyBucketQueue may so be asked for beside other limits.
//
// An ask whose turn would come after ctx's deadline denies the whole, at once. When
// ctx ends WaitAll returns ctx's error. Places in queues then go back where nobody
// has queued behind, and of the other asks what Undo would give back, when
// those of DoWait do; Config.Timeout bounds that for each ask.
func (l *Limiter) WaitAll(ctx context.Context, requests ...Request) (Results, error) {
	requests = slices.Clone(requests) // which are the caller's, and may be needed for longer
	w := &places{within: left(ctx)}
	all, err := l.all(ctx, requests, w)
	if err != nil {
		return all, err
	}
	delay := time.Duration(0)
	for i := range all.PerRequest {
		delay = max(delay, all.PerRequest[i].Delay)
	}
	if sleep(ctx, delay) {
		return all, nil
	}
	l.leaving.RLock()
	defer l.leaving.RUnlock()
	l.leaveAll(ctx, requests, w)
	return Results{DeniedBy: -1}, store.EndedContext(ctx)
}

// left returns how long ctx lasts.
func left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, time.Until(deadline))
	}
	return math.MaxInt64
}

// sleep reports whether the delay was over before ctx.
func sleep(ctx context.Context, delay time.Duration) bool {
	if delay <= 0 {
		return true
	}
	turn := time.NewTimer(delay)
	defer turn.Stop()
	select {
	case <-turn.C:
		return true
	case <-ctx.Done():
		return false
	}
}
