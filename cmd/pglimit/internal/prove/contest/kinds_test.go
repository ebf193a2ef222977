package contest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// The clients here are wrong in one way each. Kinds of keys other than theirs hold.

// continuous leaks without ticks.
type continuous struct{ honest }

func (c continuous) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	p.Tick = 0
	return c.honest.AllowN(ctx, p, key, n)
}

func (c continuous) InTx(ctx context.Context, commit bool, do func(limiter.Decider) error) error {
	return do(rolledBackAlone{c, commit})
}

// rolledBackAlone is a transaction of a client that can roll back only AllowN.
type rolledBackAlone struct {
	limiter.Decider
	commit bool
}

func (d rolledBackAlone) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if d.commit {
		return d.Decider.AllowN(ctx, p, key, n)
	}
	return d.Check(ctx, p, key, n)
}

func (d rolledBackAlone) AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error) {
	if d.commit {
		return d.Decider.AllowAll(ctx, requests...)
	}
	return limiter.Results{}, limiter.ErrRetryTx
}

func (d rolledBackAlone) Reserve(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	if d.commit {
		return d.Decider.Reserve(ctx, request, ttl)
	}
	return limiter.Reservation{}, limiter.ErrRetryTx
}

// unaligned begins windows at a key's first request.
type unaligned struct{ honest }

func (u unaligned) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	p.Aligned = false
	return u.honest.AllowN(ctx, p, key, n)
}

func (u unaligned) InTx(ctx context.Context, commit bool, do func(limiter.Decider) error) error {
	return do(rolledBackAlone{u, commit})
}

// elsewhere takes the calendar of another time zone.
type elsewhere struct{ honest }

func (e elsewhere) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if p.Calendar == limiter.Hour {
		p.TimeZone = "UTC"
	}
	return e.honest.AllowN(ctx, p, key, n)
}

func (e elsewhere) InTx(ctx context.Context, commit bool, do func(limiter.Decider) error) error {
	return do(rolledBackAlone{e, commit})
}

// shortHour ends an hour every 50 ms, and does not say so.
type shortHour struct{ honest }

func (s shortHour) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if p.Calendar != limiter.Hour {
		return s.honest.AllowN(ctx, p, key, n)
	}
	right, err := s.Check(ctx, p, "other "+key, 0)
	if err != nil {
		return right, err
	}
	p.Calendar, p.TimeZone, p.Period = "", "", 500*time.Microsecond // shorter than it takes to use a key up
	r, err := s.honest.AllowN(ctx, p, key, n)
	r.Level = 0
	return r, err
}

func (s shortHour) InTx(ctx context.Context, commit bool, do func(limiter.Decider) error) error {
	return do(rolledBackAlone{s, commit})
}

// piecemeal takes the requests of an AllowAll that fit, although others are denied.
type piecemeal struct{ honest }

func (c piecemeal) AllowAll(ctx context.Context, requests ...limiter.Request) (all limiter.Results, err error) {
	all, err = c.honest.AllowAll(ctx, requests...)
	for i, r := range all.PerRequest {
		if !all.Allowed && r.Allowed && err == nil {
			_, err = c.honest.Do(ctx, requests[i])
		}
	}
	return all, err
}

// lenient allows an AllowAll if one of its requests fits, and takes all of them.
type lenient struct{ honest }

func (c lenient) AllowAll(ctx context.Context, requests ...limiter.Request) (all limiter.Results, err error) {
	all, err = c.honest.AllowAll(ctx, requests...)
	fits := false
	for _, r := range all.PerRequest {
		fits = fits || r.Allowed
	}
	if all.Allowed || !fits {
		return all, err
	}
	for i, q := range requests {
		if _, err := c.Charge(ctx, q.Policy, q.Key, q.Cost); err != nil {
			return all, err
		}
		all.PerRequest[i].Allowed = true
	}
	all.Allowed = true
	return all, nil
}

// freeTwice gives back twice: what a Settle left, if settles is set, else what a Cancel did.
type freeTwice struct {
	honest
	settles bool
	units   *sync.Map // of each reservation
}

func newFreeTwice(settles bool) func() freeTwice {
	return func() freeTwice { return freeTwice{newHonest(), settles, new(sync.Map)} }
}

func (f freeTwice) Reserve(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error) {
	r, err := f.honest.Reserve(ctx, request, ttl)
	f.units.Store(r.ID, request)
	return r, err
}

func (f freeTwice) refund(ctx context.Context, id string, spent float64) error {
	reserved, ok := f.units.Load(id)
	if !ok {
		return nil // reserved in a transaction
	}
	request := reserved.(limiter.Request)
	if spent >= request.Cost {
		return nil
	}
	_, err := f.Refund(ctx, request.Policy, request.Key, request.Cost-spent)
	return err
}

func (f freeTwice) Settle(ctx context.Context, id string, units float64) (limiter.Result, error) {
	r, err := f.honest.Settle(ctx, id, units)
	if err == nil && f.settles {
		err = f.refund(ctx, id, units)
	}
	return r, err
}

func (f freeTwice) Cancel(ctx context.Context, id string) error {
	err := f.honest.Cancel(ctx, id)
	if err == nil && !f.settles {
		err = f.refund(ctx, id, 0)
	}
	return err
}

// frugal does not count what a Settle spends above its reservation.
type frugal struct{ freeTwice }

func (f frugal) Settle(ctx context.Context, id string, units float64) (limiter.Result, error) {
	if reserved, ok := f.units.Load(id); ok {
		units = min(units, reserved.(limiter.Request).Cost)
	}
	return f.honest.Settle(ctx, id, units)
}

func (f frugal) Cancel(ctx context.Context, id string) error { return f.honest.Cancel(ctx, id) }

// keepsAll gives nothing back.
type keepsAll struct{ honest }

func (keepsAll) Cancel(context.Context, string) error { return nil }
func (keepsAll) Settle(context.Context, string, float64) (limiter.Result, error) {
	return limiter.Result{Allowed: true}, nil
}

// broken is one wrong client: a contest, and the kind of keys and the words of the faults
// that it must find. Without words the kind must be exceeded.
type broken struct {
	name      string
	algorithm limiter.Algorithm // all if empty
	contend   func(t *testing.T, a limiter.Algorithm, enough func(Algorithm) bool) Algorithm
	kind      kind
	fault     string
}

func with[C Client](fresh func() C) func(*testing.T, limiter.Algorithm, func(Algorithm) bool) Algorithm {
	return func(t *testing.T, a limiter.Algorithm, enough func(Algorithm) bool) Algorithm {
		return contend(t, fresh, a, 200*time.Millisecond, func(_ C, seen Algorithm) bool { return enough(seen) })
	}
}

// TestContestFindsWrongKinds: a fault of each kind of keys is found, and no key of another
// kind is blamed for it.
func TestContestFindsWrongKinds(t *testing.T) {
	t.Parallel()
	for _, b := range []broken{
		{"continuous", limiter.LeakyBucket, with(func() continuous { return continuous{newHonest()} }), ticksKind, ""},
		{"continuous", limiter.LeakyBucket, with(func() continuous { return continuous{newHonest()} }), ticksKind, "only whole units leak"},
		{"unaligned", limiter.FixedWindow, with(func() unaligned { return unaligned{newHonest()} }), alignedKind, "ends its window at"},
		{"elsewhere", limiter.FixedWindow, with(func() elsewhere { return elsewhere{newHonest()} }), calendarKind, "ends its window at"},
		{"short hour", limiter.FixedWindow, with(func() shortHour { return shortHour{newHonest()} }), calendarKind, ""},
		{"short hour", limiter.FixedWindow, with(func() shortHour { return shortHour{newHonest()} }), calendarKind, "the window that begins at"},
		{"piecemeal", "", with(func() piecemeal { return piecemeal{newHonest()} }), setsKind, "are counted"},
		{"lenient", "", with(func() lenient { return lenient{newHonest()} }), setsKind, ""},
		{"settled twice", "", with(newFreeTwice(true)), reservedKind, "are counted instead of"},
		{"settled twice", "", with(newFreeTwice(true)), reservedKind, ""},
		{"cancelled twice", "", with(newFreeTwice(false)), reservedKind, "are counted instead of"},
		{"cancelled twice", "", with(newFreeTwice(false)), reservedKind, ""},
		{"frugal", "", with(func() frugal { return frugal{newFreeTwice(true)()} }), reservedKind, "are counted instead of"},
		{"keeps all", "", with(func() keepsAll { return keepsAll{newHonest()} }), reservedKind, "are counted instead of"},
	} {
		for _, a := range limiter.Algorithms() {
			if b.algorithm != "" && a != b.algorithm || b.kind == reservedKind && a == limiter.LeakyBucketQueue {
				continue
			}
			t.Run(b.name+" "+b.fault+" "+string(a), func(t *testing.T) {
				t.Parallel()
				found := func(seen Algorithm) (n int) {
					for _, f := range seen.Faults {
						if b.fault != "" && strings.Contains(f.Fault, b.fault) {
							n++
						}
					}
					if b.fault == "" {
						n = len(seen.Exceeded)
					}
					return n
				}
				seen := b.contend(t, a, func(seen Algorithm) bool { return found(seen) > 0 })
				if found(seen) == 0 {
					t.Errorf("not found: %d faults, %d exceeded, %d requests", len(seen.Faults), len(seen.Exceeded), seen.Requests)
				}
				for _, f := range seen.Faults {
					if !strings.HasPrefix(f.Key, string(b.kind)) {
						t.Errorf("blamed: %+v", f)
					}
				}
				for _, e := range seen.Exceeded {
					if !strings.HasPrefix(e.Key, string(b.kind)) {
						t.Errorf("blamed: %+v", e)
					}
				}
			})
		}
	}
}
