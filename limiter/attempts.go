package limiter

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	durations "github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
)

// AttemptOptions are the options of an Attempt. The zero value is valid.
type AttemptOptions struct {
	// From is the place from which the attempt comes: a network such as "192.0.2.0/24", or a
	// device. It is up to 1,024 bytes of UTF-8 without NUL. It is stored as keys are: as its
	// HMAC if Config.KeySecret is set. Default: "", not known.
	//
	// A success makes the key remember From for 90 days, and up to 100 places: a further one
	// is not remembered until another is forgotten. Attempts from a remembered place are
	// counted apart from all others: see Attempt.
	From string
	// TTL is the time to live of the ticket: whole microseconds from one second to a hundred
	// years. An attempt that is not reported by then counts as failed. Default: 0, which is 30s.
	TTL time.Duration
}

// defaultTTL is AttemptOptions.TTL if that is 0.
const defaultTTL = 30 * time.Second

// Ticket is the result of an Attempt. It is a value: any process that knows the ID may report
// the attempt.
type Ticket struct {
	// Result is the answer. If it is not Allowed, there is no ticket and the other fields are
	// zero.
	Result Result
	// ID names the attempt for Succeeded and Failed: attempts:random:policy:key, in the form of
	// a [Reservation]'s ID. Keep it from the client, which could report a success with it. If
	// Result is Shadowed or its Source is SourceOverride, the ID begins with uncounted, and
	// reports of it change nothing.
	ID string
	// ExpiresAt is when the attempt counts as failed if it was not reported.
	ExpiresAt time.Time
}

// MarshalJSON writes id and expires_at as null if there is no ticket.
func (t Ticket) MarshalJSON() ([]byte, error) {
	return json.Marshal(Reservation(t))
}

// Attempt begins an attempt that may fail, such as a login, under a policy of the algorithm
// Attempts. If the Result is Allowed, check the password and report Succeeded or Failed with
// the ticket's ID. Otherwise do not check it: the key waits. A denial is a Result, not an
// error.
//
//   - Only failures count. Failure number Policy.Limit makes the key wait for BlockFor. Each
//     further failure makes it wait BlockGrowth times longer, up to BlockMax. During a wait the
//     Reason is ReasonBlocked, and RetryAfter is the rest of the wait.
//   - The count outlives the wait. It is forgotten when Policy.Period has passed since the end
//     of the last wait, or since the last failure if that made none. A success clears the count
//     and the wait.
//   - At most Policy.Burst attempts are under way at once, by default 1, so that passwords
//     cannot be guessed in parallel. Further attempts are denied with ReasonLimit. RetryAfter
//     is then the time until one would be allowed if those under way are never reported.
//   - A ticket that is not reported within its TTL counts as failed at its end. So does the
//     ticket of a call whose answer was lost, or whose context ended too early.
//   - Result.Level is the number of failures that count, and Limit is Policy.Limit. Remaining
//     is the number of failures until the next wait, at least 1; during a wait it is 0.
//     ResetAfter is the time until nothing counts if all attempts under way fail.
//   - Policy.OnError does not apply. Without the database Attempt returns an error.
//   - If a shadow policy allows what it would have denied, nothing is counted.
//
// From keeps strangers from locking an owner out of the places that the key remembers. The key
// remembers each From from which an attempt has succeeded. Each remembered place has a separate
// count, wait and Burst, and all other places share one more. So the failures of strangers make
// only places wait that the key does not remember.
//
//   - While strangers wait, the owner waits at a new place too. Let the owner prove who they are
//     by other means, such as a link by e-mail, and then call Unblock or Reset.
//   - Anyone who shares a remembered place with the owner, such as an office network, can make
//     that place wait. A secret that only the device has, as From, prevents that.
//   - Without From all attempts share one count.
//   - To count each pair of user and network separately, make the key of both by JoinKey.
func (e *engine) Attempt(ctx context.Context, p Policy, key string, o AttemptOptions) (Ticket, error) {
	in, ttl := p.Request(key, 1), o.TTL
	if ttl == 0 {
		ttl = defaultTTL
	}
	if reason := valid.Duration(ttl); reason != "" || ttl < store.MinTTL {
		return Ticket{}, e.refuse(ctx, verbAttempt, in, store.Invalid("TTL", durations.Format(o.TTL), "must be whole microseconds from one second to a hundred years, or 0 for 30s"))
	}
	if err := valid.Text("From", o.From, valid.MaxKey); err != nil {
		return Ticket{}, e.refuse(ctx, verbAttempt, in, err)
	}
	c := e.call(verbAttempt, in)
	c.op.Attempt, c.sent, c.held = &store.Attempting{TTL: ttl.Microseconds()}, true, true
	if o.From != "" {
		c.op.Attempt.Source = keys.Stored(o.From, e.keySecret)
	}
	defer e.put(c)
	r, err := e.decide(ctx, c)
	switch {
	case err != nil || !r.Allowed: // after an error the op may still be in use
		return Ticket{Result: r}, err
	case r.Shadowed || r.Source == SourceOverride:
		id := store.UncountedID(rand.Text(), c.request.Policy.Name, keys.Stored(c.request.Key, e.keySecret))
		return Ticket{r, id, r.At.Add(ttl)}, nil
	}
	return Ticket{r, c.op.Reservation().Public(), time.UnixMicro(c.op.Outcome.UpdatedAt + c.op.Attempt.TTL)}, nil
}

// Succeeded reports that an attempt succeeded. It clears the count and the wait of the place
// where the attempt was counted, and makes the key remember its From. Other attempts stay under
// way.
//
// Log in only if Succeeded returns nil. Call it in the transaction that records the login, by
// InTx: then both happen or neither. It returns ErrNoTicket and changes nothing in these cases:
//
//   - The ticket was reported before, also by a call whose answer was lost.
//   - The ticket has expired, and counted as failed.
//   - The key was reset, or there was no such attempt.
//
// Succeeded and Failed are always Durable. An ID that begins with uncounted changes nothing, and
// Succeeded returns nil. Anyone can make such an ID up, so never log in by an ID that comes from
// a client: report the ID that Attempt returned to your own program.
func (e *engine) Succeeded(ctx context.Context, id string) error {
	_, err := e.report(ctx, verbSucceeded, id)
	return err
}

// Failed reports that an attempt failed. The Result is Allowed. Its Level is the number of
// failures that count now, and RetryAfter is the wait that has begun, or 0. Remaining is as in
// Attempt.
//
// A failure counts once, so a call whose answer was lost can be repeated. ErrNoTicket is
// returned as by Succeeded, and nothing changes. For an ID that begins with uncounted, which
// anyone can make up, the Result is Allowed and its Source is SourceSkipped.
func (e *engine) Failed(ctx context.Context, id string) (Result, error) {
	return e.report(ctx, verbFailed, id)
}

// report ends an attempt by the verb v. public is the ID of its ticket.
func (e *engine) report(ctx context.Context, v *verb, public string) (r Result, err error) {
	began, in := e.begin(), Request{}
	defer func() { e.finish(ctx, v, &in, &r, err, began) }()
	if e.closed.Load() {
		return r, store.ErrClosed
	}
	op, err := e.byID(&in, v, algorithm.Attempts, "ticket", public)
	switch {
	case err != nil:
		return r, err
	case op == nil:
		return Result{Allowed: true, Source: SourceSkipped, At: e.clockTime()}, nil
	}
	op.Attempt = new(store.Attempting)
	if err = e.send(ctx, op); err != nil {
		return r, err
	}
	r = attempted(op, v, 1, e.source)
	r.rows = e.rows(1, op)
	return r, nil
}

// byID returns the op of a verb that takes the ID of an attempt or a slot, the field of an error,
// and sets the policy and key of in. op is nil for one for which nothing was counted.
func (e *engine) byID(in *Request, v *verb, a algorithm.Name, field, public string) (op *store.Op, err error) {
	id, ok := store.ParseIDOf(a, public)
	uncounted := false
	if !ok {
		id.Algorithm = ""
		id.Policy, id.Key, uncounted = store.ParseUncountedID(public)
	}
	if !ok && !uncounted || !valid.Name(id.Policy) || valid.Key(id.Key) != nil {
		return nil, store.Invalid(field, store.Quote(public), "is not the ID of a "+strings.ToUpper(field[:1])+field[1:])
	}
	in.Policy, in.Key = Policy{Name: id.Policy, Algorithm: Algorithm(id.Algorithm)}, id.Key
	if uncounted {
		return nil, nil
	}
	op = &store.Op{Kind: v.kind, ID: id.ID, Query: store.Query{Algorithm: id.Algorithm, Policy: id.Policy, Key: id.Key, Now: e.now()}}
	if !e.tx {
		op.Commit = store.Durable
	}
	return op, nil
}

// attempted returns the outcome of an op about attempts as a Result.
func attempted(op *store.Op, v *verb, cost float64, source Source) Result {
	a, o := op.Attempt, &op.Outcome
	t, at := a.Tries, o.UpdatedAt
	until, waits := t.Waits(at)
	full := int64(len(t.Ends)) >= a.Rules.AtOnce
	r := Result{
		Limit: float64(a.Rules.Limit), Burst: float64(a.Rules.AtOnce), Level: float64(t.Count(at)),
		ResetAfter: after(o, t.EmptyAt(&a.Rules)), Full: waits || full, Source: source, At: time.UnixMicro(o.Now),
	}
	if !waits {
		r.Remaining = max(1, r.Limit-r.Level)
	}
	switch v {
	case verbSucceeded, verbFailed:
		r.Allowed = true
		if waits {
			r.RetryAfter = after(o, until)
		}
		return r
	case verbAttempt:
		r.Allowed = a.Granted
	default:
		r.Allowed = !waits && (cost == 0 || !full)
	}
	switch {
	case r.Allowed:
		r.Granted = cost
	case waits:
		r.Reason = ReasonBlocked
	default:
		r.Reason = ReasonLimit
	}
	if !r.Allowed {
		rules := a.Rules
		if cost == 0 { // no attempt: any number may be under way
			rules.AtOnce = math.MaxInt64
		}
		r.RetryAfter = after(o, t.FreeAt(&rules, at))
	}
	return r
}

// attemptRules compiles a valid policy of Attempts.
func (p *Policy) attemptRules() algorithm.AttemptRules {
	r := algorithm.AttemptRules{
		Limit: int64(p.Limit), AtOnce: int64(p.burst()), Quiet: p.Period.Microseconds(),
		BlockFor: p.BlockFor.Microseconds(), Growth: cmp.Or(p.BlockGrowth, 2), BlockMax: p.BlockMax.Microseconds(),
	}
	if r.BlockMax == 0 {
		r.BlockMax = r.Quiet
	}
	return r
}

// compileAttempt compiles a call under a policy of Attempts, or one that is for such policies
// only.
func (e *engine) compileAttempt(c *call) error {
	p, v := &c.request.Policy, c.verb
	switch {
	case p.Algorithm != Attempts:
		return fmt.Errorf("%w: %s on %s: it needs a policy of %s; use Allow or Reserve", store.ErrUnsupported, v.name, p.Algorithm, Attempts)
	case v.serves == servesMeters:
		return fmt.Errorf("%w: %s on %s: use Attempt, then Succeeded or Failed", store.ErrUnsupported, v.name, Attempts)
	case c.request.IdempotencyKey != "":
		return fmt.Errorf("%w: an IdempotencyKey with %s; only Do, Grant, AllowAll, AllowAny, Reserve and ReserveUpTo take one", store.ErrUnsupported, v.name)
	case c.request.Cost != 0 && c.request.Cost != 1:
		return store.Invalid("cost", printable.Number(c.request.Cost), fmt.Sprintf("must be 1 for one attempt, or 0, for a policy of %s", Attempts))
	}
	if c.op.Attempt == nil {
		c.op.Attempt = new(store.Attempting)
	}
	c.op.Attempt.Rules = p.attemptRules()
	switch v {
	case verbAttempt:
		c.op.ID = rand.Text()
	case verbCheck, verbUsage:
		c.op.Kind = store.GetAttempts
	}
	return nil
}
