package prove

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// rolledBackAlone is a transaction of a client that can roll back only AllowN.
type rolledBackAlone struct {
	verbs.Limiter
	commit bool
}

func (d rolledBackAlone) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if d.commit {
		return d.Limiter.AllowN(ctx, p, key, n)
	}
	return d.Check(ctx, p, key, n)
}

func (d rolledBackAlone) AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error) {
	if d.commit {
		return d.Limiter.AllowAll(ctx, requests...)
	}
	return limiter.Results{}, limiter.ErrRetryTx
}

// wrong is an honest client but for one verb. Kinds of keys without that verb hold.
type wrong struct {
	honest
	allow func(h honest, ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error)
	all   func(h honest, ctx context.Context, requests []limiter.Request) (limiter.Results, error)
}

func (w wrong) InTx(_ context.Context, commit bool, do func(verbs.Limiter) error) error {
	return do(rolledBackAlone{w, commit})
}

func (w wrong) AllowN(ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if w.allow == nil {
		return w.honest.AllowN(ctx, p, key, n)
	}
	return w.allow(w.honest, ctx, p, key, n)
}

func (w wrong) AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error) {
	if w.all == nil {
		return w.honest.AllowAll(ctx, requests...)
	}
	return w.all(w.honest, ctx, requests)
}

// racy reads and then writes without a lock: the mistake that a contest must find.
func racy(h honest, ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	seen, err := h.Check(ctx, p, key, n)
	if err != nil || !seen.Allowed {
		return seen, err
	}
	_, err = h.Charge(ctx, p, key, n)
	return seen, err
}

// forgetful forgets what a key has used above the capacity of the request.
func forgetful(h honest, ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	seen, err := h.Check(ctx, p, key, 0)
	if err == nil && seen.Level > seen.Burst {
		if err = h.Reset(ctx, p, key); err == nil {
			_, err = h.Charge(ctx, p, key, seen.Burst)
		}
	}
	if err != nil {
		return seen, err
	}
	return h.AllowN(ctx, p, key, n)
}

// continuous leaks without ticks.
func continuous(h honest, ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	p.Tick = 0
	return h.AllowN(ctx, p, key, n)
}

// unaligned begins windows at a key's first request.
func unaligned(h honest, ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	p.Aligned = false
	return h.AllowN(ctx, p, key, n)
}

// elsewhere takes the calendar of another time zone.
func elsewhere(h honest, ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if p.Calendar == limiter.Hour {
		p.TimeZone = "UTC"
	}
	return h.AllowN(ctx, p, key, n)
}

// shortHour ends an hour all the time, and does not say so.
func shortHour(h honest, ctx context.Context, p limiter.Policy, key string, n float64) (limiter.Result, error) {
	if p.Calendar != limiter.Hour {
		return h.AllowN(ctx, p, key, n)
	}
	p.Calendar, p.TimeZone, p.Period = "", "", 500*time.Microsecond // shorter than it takes to use a key up
	r, err := h.AllowN(ctx, p, key, n)
	r.Level = 0
	return r, err
}

// piecemeal takes the requests of an AllowAll that fit, although others are denied.
func piecemeal(h honest, ctx context.Context, requests []limiter.Request) (limiter.Results, error) {
	all, err := h.AllowAll(ctx, requests...)
	for i, r := range all.PerRequest {
		if !all.Allowed && r.Allowed && err == nil {
			_, err = h.Do(ctx, requests[i])
		}
	}
	return all, err
}

// lenient allows an AllowAll if one of its requests fits, and takes all of them.
func lenient(h honest, ctx context.Context, requests []limiter.Request) (limiter.Results, error) {
	all, err := h.AllowAll(ctx, requests...)
	if all.Allowed || !slices.ContainsFunc(all.PerRequest, func(r limiter.Result) bool { return r.Allowed }) {
		return all, err
	}
	for i, q := range requests {
		if _, err := h.Charge(ctx, q.Policy, q.Key, q.Cost); err != nil {
			return all, err
		}
		all.PerRequest[i].Allowed = true
	}
	all.Allowed = true
	return all, nil
}

// torn counts one key of an AllowAll whose answer is lost. Each key alone may have it.
func torn(h honest, ctx context.Context, requests []limiter.Request) (limiter.Results, error) {
	if rand.IntN(8) > 0 {
		return h.AllowAll(ctx, requests...)
	}
	_, err := h.Do(ctx, requests[0])
	return limiter.Results{}, cmp.Or(err, limiter.ErrUnavailable)
}

// doubled counts an AllowAll twice.
func doubled(h honest, ctx context.Context, requests []limiter.Request) (limiter.Results, error) {
	all, err := h.AllowAll(ctx, requests...)
	if err == nil {
		_, err = h.AllowAll(ctx, requests...)
	}
	return all, err
}

// TestContestFinds: a fault of each kind of keys is found, and no key of another kind is
// blamed for it. Without words of a fault the kind must be exceeded.
func TestContestFinds(t *testing.T) {
	t.Parallel()
	for _, b := range []struct {
		name      string
		algorithm limiter.Algorithm // all if empty
		client    wrong
		kind      Kind // any if empty
		fault     string
	}{
		{"racy", "", wrong{allow: racy}, "", ""},
		{"forgetful", "", wrong{allow: forgetful}, Plans, ""},
		{"continuous", limiter.LeakyBucket, wrong{allow: continuous}, Ticks, ""},
		{"continuous", limiter.LeakyBucket, wrong{allow: continuous}, Ticks, "only whole units leak"},
		{"unaligned", limiter.FixedWindow, wrong{allow: unaligned}, Aligned, "ends its window at"},
		{"elsewhere", limiter.FixedWindow, wrong{allow: elsewhere}, Calendars, "ends its window at"},
		{"short hour", limiter.FixedWindow, wrong{allow: shortHour}, Calendars, ""},
		{"piecemeal", "", wrong{all: piecemeal}, Sets, "are counted"},
		{"lenient", "", wrong{all: lenient}, Sets, ""},
		{"doubled", "", wrong{all: doubled}, Sets, "are counted"},
		{"torn", "", wrong{all: torn}, Sets, "always requested with it"},
	} {
		for _, a := range limiter.Algorithms() {
			if b.algorithm != "" && a != b.algorithm {
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
				fresh := func() wrong {
					c := b.client
					c.honest = newHonest()
					return c
				}
				seen := contend(t, fresh, a, 200*time.Millisecond, func(_ wrong, seen Algorithm) bool { return found(seen) > 0 })
				if found(seen) == 0 {
					t.Errorf("not found: %d faults, %d exceeded, %d requests", len(seen.Faults), len(seen.Exceeded), seen.Requests)
				}
				blamed := func(what any, key string) {
					if !strings.HasPrefix(key, string(b.kind)) {
						t.Errorf("blamed: %+v", what)
					}
				}
				for _, f := range seen.Faults {
					blamed(f, f.Key)
				}
				for _, e := range seen.Exceeded {
					blamed(e, e.Key)
					if b.kind == Plans && (e.Allowed != coldLimit || e.Policy.Limit != coldLimit) {
						t.Errorf("not the larger plan: %+v", e)
					}
				}
			})
		}
	}
}
