package limiter

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// minTTL is the least time that a hold can be asked for: a process that found no
// hold about to expire need not look again for that long.
const minTTL = time.Second

// maxIdempotencyKey is the longest one in bytes.
const maxIdempotencyKey = 255

// Hold is what Reserve set aside. It is a value: keep the ID, and any process may
// settle or cancel it.
type Hold struct {
	// Result is the answer to the ask. If it is not Allowed there is no hold, and
	// the other fields are zero.
	Result Result
	// ID names the hold for Settle and Cancel. It is safe in logs and in a
	// database: the algorithm's name, a colon and 26 random characters.
	ID string
	// Expires is from when the hold, if it is still open, is given back.
	Expires time.Time
}

// holdJSON is a Hold in JSON.
type holdJSON struct {
	ID      *string    `json:"id"`
	Expires *time.Time `json:"expires"`
	Result  Result     `json:"result"`
}

// MarshalJSON writes id and expires as null where there is no hold.
func (h Hold) MarshalJSON() ([]byte, error) {
	t := holdJSON{Result: h.Result}
	if h.ID != "" {
		t.ID, t.Expires = &h.ID, &h.Expires
	}
	return json.Marshal(t)
}

// The states of a hold; spent is what was admitted under an idempotency key and
// never was one.
const (
	stateHeld      = "held"
	stateSettled   = "settled"
	stateCancelled = "cancelled"
	stateExpired   = "expired"
	stateSpent     = "spent"
)

// held is a hold as a store keeps it.
type held struct {
	algorithm.Rules   // of the admission
	algorithm         Algorithm
	limit             float64
	id, state         string
	policy, key       string // the key as stored
	reserved, units   float64
	level             float64 // of the key right after the admission
	endsAt, countedAt int64
	createdAt         int64
	expiresAt         int64
	forgetAt          int64
	idempotency       *string // as stored
}

// holding is what a Reserve notes of the ask, besides the question.
type holding struct {
	id, state     string
	idempotency   *string // as stored
	ttl, remember int64
	limit         float64
}

// settlement is a change to a hold.
type settlement struct {
	id        string
	algorithm Algorithm
	state     string // what it becomes
	units     float64
	now       *int64
	commit    string
}

// settled is what a settlement found and did.
type settled struct {
	held            // as it was before
	now     int64   // the clock as read
	changed bool    // the hold was open, or has expired and was settled late
	freed   bool    // units went back
	outcome outcome // how the key stands
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
func (l *Limiter) Reserve(ctx context.Context, ask Ask, ttl time.Duration) (Hold, error) {
	return l.engine.reserve(ctx, ask, ttl)
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
// Cancel, it is an ErrHoldEnded. A hold that never was, or whose ttl was over longer
// than Config.IdempotencyTTL ago, is an ErrNoHold.
//
// Settle and Cancel are Durable whatever the policy was. Where Config.KeySecret is
// set, the denials that this process remembers of the key are kept until
// Config.DenyCacheTTL.
func (l *Limiter) Settle(ctx context.Context, id string, units float64) (Result, error) {
	return l.engine.settleHold(ctx, id, units)
}

// Cancel ends a hold of which nothing was spent, and gives back what Settle at 0
// would. It may be repeated, and is no error after the hold has expired. A hold
// that was settled is an ErrHoldEnded; one that is not known an ErrNoHold.
func (l *Limiter) Cancel(ctx context.Context, id string) error {
	return l.engine.cancelHold(ctx, id)
}

func (e *engine) reserve(ctx context.Context, ask Ask, ttl time.Duration) (Hold, error) {
	if reason := badDuration(ttl); reason != "" || ttl < minTTL {
		return Hold{}, invalid("ttl", ttl.String(), "must be whole microseconds from one second to a hundred years")
	}
	h, err := e.holding(ask, stateHeld)
	if err != nil {
		return Hold{}, err
	}
	h.ttl = ttl.Microseconds()
	r, o, err := e.decide(ctx, verbReserve, ask, 0, h)
	if err != nil || !r.Allowed {
		return Hold{Result: r}, err
	}
	if o.before != nil {
		return Hold{r, o.before.id, time.UnixMicro(o.before.expiresAt)}, nil
	}
	return Hold{r, h.id, time.UnixMicro(o.updatedAt + h.ttl)}, nil
}

// holding is what is noted of an ask once it is admitted.
func (e *engine) holding(ask Ask, state string) (*holding, error) {
	remember := e.config.IdempotencyTTL
	if reason := badDuration(remember); reason != "" {
		return nil, invalid("Config.IdempotencyTTL", remember.String(), reason)
	}
	h := &holding{
		id: string(ask.Policy.Algorithm) + ":" + rand.Text(), state: state,
		remember: remember.Microseconds(), limit: ask.Policy.Limit,
	}
	if ask.IdempotencyKey != "" {
		stored := storedKey(ask.IdempotencyKey, e.config.KeySecret)
		h.idempotency = &stored
	}
	return h, nil
}

func validateIdempotencyKey(key string) error {
	switch {
	case len(key) > maxIdempotencyKey:
		return invalid("IdempotencyKey", quote(key), fmt.Sprintf("is longer than %d bytes", maxIdempotencyKey))
	case strings.IndexByte(key, 0) >= 0:
		return invalid("IdempotencyKey", quote(key), "holds a NUL byte")
	case !utf8.ValidString(key):
		return invalid("IdempotencyKey", quote(key), "is not valid UTF-8; encode it first")
	}
	return nil
}

// replay is the answer that was given to the same idempotency key before.
func (q *question) replay(h *held, ask Ask, v verb, source Source) (Result, outcome, error) {
	if v == verbReserve && h.state == stateSpent || v != verbReserve && h.state != stateSpent {
		return Result{}, outcome{}, invalid("IdempotencyKey", quote(ask.IdempotencyKey), "was used for the other of Do and Reserve")
	}
	if h.reserved != ask.Cost {
		return Result{}, outcome{}, invalid("IdempotencyKey", quote(ask.IdempotencyKey),
			"was used with cost "+amount(h.reserved)+", now with "+amount(ask.Cost))
	}
	before := *q
	before.Rules = h.Rules
	o := outcome{granted: q.count, now: h.createdAt, updatedAt: h.createdAt, before: h}
	switch h.algorithm {
	case FixedWindow:
		o.view = &algorithm.Window{Count: h.level, EndsAt: h.endsAt}
	case SlidingWindowCounter:
		o.view = &algorithm.Counter{Current: h.level, EndsAt: h.endsAt, Period: h.Period}
	case SlidingWindowLog:
		o.view = algorithm.LogView{Units: h.level, Newest: h.countedAt}
	default:
		o.view = &algorithm.Bucket{Units: h.level, LeakedAt: h.countedAt}
	}
	policy := ask.Policy
	policy.Limit = h.limit
	r := before.result(v, o, policy, source)
	r.Replayed, r.grant = true, algorithm.Grant{}
	return r, o, nil
}

func (e *engine) settleHold(ctx context.Context, id string, units float64) (Result, error) {
	if !(units >= 0 && units <= maxUnits) {
		return Result{}, invalid("units", strconv.FormatFloat(units, 'g', -1, 64), "must be from 0 to 2^53")
	}
	s, err := e.end(ctx, id, stateSettled, units)
	if err != nil {
		return Result{}, err
	}
	again := s.state == stateSettled && s.units == units
	if !s.changed && !again {
		return Result{}, fmt.Errorf("%w: it was %s, with %s of its %s units", ErrHoldEnded, s.state, amount(s.units), amount(s.reserved))
	}
	q := question{Rules: s.Rules, algorithm: s.algorithm, policy: s.policy, key: s.key, room: s.Capacity}
	r := q.result(verbFill, s.outcome, Policy{Limit: s.limit}, e.store.source())
	r.Granted, r.Replayed, r.Expired = units, again, s.state == stateExpired || s.state == stateHeld && s.now >= s.expiresAt
	return r, nil
}

// amount shows units in full, as money is read.
func amount(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

func (e *engine) cancelHold(ctx context.Context, id string) error {
	s, err := e.end(ctx, id, stateCancelled, 0)
	if err == nil && s.state == stateSettled {
		return fmt.Errorf("%w: it was settled, with %s of its %s units", ErrHoldEnded, amount(s.units), amount(s.reserved))
	}
	return err
}

// end brings a hold to a state.
func (e *engine) end(ctx context.Context, id, state string, units float64) (s settled, err error) {
	if e.closed.Load() {
		return s, ErrClosed
	}
	name, random, _ := strings.Cut(id, ":")
	a := Algorithm(name)
	if !a.known() || a == LeakyBucketQueue || len(random) < 16 || len(id) > 128 || strings.IndexByte(id, 0) >= 0 || !utf8.ValidString(id) {
		return s, invalid("hold", quote(id), "is not the ID of a Hold")
	}
	change := settlement{id: id, algorithm: a, state: state, units: units, now: e.now(), commit: commitDurable}
	if e.inTx {
		change.commit = ""
	}
	_, err = e.config.bounded(ctx, func(ctx context.Context) (_ outcome, err error) {
		s, err = e.store.settle(ctx, &change)
		return outcome{}, err
	})
	if err == nil {
		e.liftStored(a, s.policy, s.key)
	}
	return s, err
}

// liftStored is lift for a key as stored, which only tells the caller's if that is
// no secret.
func (e *engine) liftStored(a Algorithm, policy, key string) {
	if len(e.config.KeySecret) == 0 {
		e.denied.lift(Policy{Name: policy, Algorithm: a}, key)
	}
}

// now is Config.Now as the statements take it; nil for the store's own clock.
func (e *engine) now() *int64 {
	if e.config.Now == nil {
		return nil
	}
	us := e.config.Now().UnixMicro()
	return &us
}
