package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/client"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// shared is the methods that both the library and the client have, so that a caller can use either.
type shared interface {
	verbs.Remote
	Close() error
}

// TestClient: the client answers each call as the library does, errors included.
func TestClient(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	s := start(t, database)
	direct := testworld.NewLimiter(t, testworld.Connect(t, database), nil)
	remote := must.OK(client.New(s.HTTP+"/", nil))(t)
	defer remote.Close()
	code := limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 2, Period: 1000 * time.Hour, BlockFor: time.Hour}
	exports := limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 2, Period: time.Hour}
	budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100, Period: 1000 * time.Hour}
	type answer struct {
		Value any
		Err   error
	}
	// cut leaves out what differs: time, which passes, and fields of the policy.
	cut := func(r limiter.Result) limiter.Result {
		if r.At.IsZero() || r.Policy.Name == "" {
			t.Errorf("no time or name: %+v", r)
		}
		never := func(d time.Duration) time.Duration {
			return map[bool]time.Duration{d == limiter.Never: limiter.Never}[true]
		}
		return limiter.Result{
			Allowed: r.Allowed, Granted: r.Granted, Limit: r.Limit, Burst: r.Burst, Remaining: r.Remaining, Level: r.Level, Full: r.Full,
			Reason: r.Reason, Replayed: r.Replayed, Expired: r.Expired, RetryAfter: never(r.RetryAfter), ResetAfter: never(r.ResetAfter),
		}
	}
	run := func(l shared, p limiter.Policy, key string) (all []answer) {
		var holds []answer
		var ids []string
		one := func(r limiter.Result, err error) {
			if err == nil {
				r = cut(r)
			}
			all = append(all, answer{r, err})
		}
		done := func(err error) { all = append(all, answer{nil, err}) }
		c := t.Context()
		one(l.Allow(c, p, key))
		one(l.AllowN(c, p, key, 2.5))
		one(l.AllowN(c, p, key, 101))
		one(l.AllowN(c, p, key, -1))
		one(l.AllowN(c, p, "", 1))
		one(l.AllowN(c, p, strings.Repeat("k", 1025), 1))
		one(l.AllowN(c, p, key, math.NaN()))
		q := p.Request(key, 3)
		q.IdempotencyKey = `once "more"`
		one(l.Do(c, q))
		one(l.Do(c, q))
		one(l.Do(c, limiter.Request{Policy: p, Key: key, Cost: 1, Floor: 0.99}))
		one(l.AllowUpTo(c, p, key, 200))
		one(l.Allow(c, p, key))
		one(l.Check(c, p, key, 0))
		one(l.Refund(c, p, key, 50))
		one(l.Charge(c, p, key, 10))
		rs, err := l.AllowAll(c, p.Request(key, 1), p.Request(key+"2", 99), p.Request(key+"3", 50))
		for _, r := range rs.PerRequest {
			one(r, err)
		}
		rs, err = l.AllowAll(c, p.Request(key+"2", 2), p.Request(key+"3", 1))
		all = append(all, answer{[]any{rs.Allowed, rs.DeniedBy, len(rs.PerRequest)}, err})
		_, err = l.AllowAll(c)
		done(err)
		for _, cost := range []float64{70, 70, 40, 9, 1e6} {
			pools := []limiter.Request{p.Request(key+"4", cost), p.Request(key+"5", cost)}
			for _, ask := range []func(context.Context, ...limiter.Request) (limiter.Any, error){l.AllowAny, l.AllowAnySplit} {
				a, err := ask(c, pools...)
				for _, r := range a.PerRequest {
					one(r, err)
				}
				all = append(all, answer{[]any{a.Allowed, a.GrantedBy, a.RetryAfter > 0, a.RetryAfter == limiter.Never, len(a.PerRequest)}, err})
			}
		}
		_, err = l.AllowAny(c, p.Request(key, 1), p.Request(key, 1))
		done(err)
		for range 2 {
			hold, err := l.Reserve(c, p.Request(key, 20), 90*time.Second)
			one(hold.Result, err)
			if lasts := time.Until(hold.ExpiresAt); (hold.ID != "") != hold.Result.Allowed || hold.Result.Allowed && (lasts < time.Minute || lasts > 2*time.Minute) {
				t.Errorf("%T: %+v", l, hold)
			}
			u, err := l.Usage(c, p, key)
			one(u.Result, err)
			u.Result = limiter.Result{}
			u.WindowEndsAt = time.Time{}
			all = append(all, answer{u, nil})
			part, err := l.ReserveUpTo(c, limiter.Request{Policy: p, Key: key + " part", Cost: 5000, Estimate: true}, time.Minute)
			one(part.Result, err)
			if (part.ID != "") != part.Result.Allowed {
				t.Errorf("%T: %+v", l, part)
			}
			one(l.Settle(c, hold.ID, 5))
			one(l.Settle(c, hold.ID, 6))
			done(l.Cancel(c, hold.ID))
			one(l.AllowUpTo(c, p, key, 200)) // so that the next one is denied
		}
		for _, costs := range [][2]float64{{30, 40}, {60, 70}} { // the second is denied, and leaves nothing
			all := []limiter.Request{p.Request(key+" all", costs[0]), p.Request(key+" all2", costs[1])}
			all[0].IdempotencyKey, all[1].IdempotencyKey = fmt.Sprint(costs), fmt.Sprint(costs)
			for range 2 {
				made, err := l.ReserveAll(c, time.Minute, all...)
				for _, r := range made.Results.PerRequest {
					one(r, err)
				}
				lasts := time.Until(made.ExpiresAt)
				holds = append(holds, answer{[]any{made.Results.Allowed, made.Results.DeniedBy, len(made.IDs), lasts > 50*time.Second && lasts < 70*time.Second}, err})
				if ids = append(ids, made.IDs...); len(ids) == 4 {
					holds = append(holds, answer{slices.Equal(ids[:2], ids[2:]), nil})
				}
			}
			u, err := l.Usage(c, p, key+" all")
			holds = append(holds, answer{u.Reserved, err})
		}
		for _, units := range [][]float64{{}, {1, 2, 3}, {1, -1}, {20, 10}, {20, 10}, {7}} {
			rs, err := l.SettleAll(c, ids[:2], units...)
			for _, r := range rs {
				one(r, err)
			}
			done(err)
		}
		_, err = l.SettleAll(c, nil, 1)
		done(err)
		done(l.CancelAll(c))
		done(l.CancelAll(c, ids[0]))
		for range 2 {
			made, err := l.ReserveAll(c, time.Minute, p.Request(key+" all", 5), p.Request(key+" all2", 5))
			done(err)
			done(l.CancelAll(c, made.IDs...))
		}
		all = append(all, holds...)
		for _, from := range []string{"home", "away", "away", "away", "home", strings.Repeat("f", 1025)} {
			ticket, err := l.Attempt(c, code, key, limiter.AttemptOptions{From: from, TTL: 90 * time.Second})
			one(ticket.Result, err)
			if lasts := time.Until(ticket.ExpiresAt); (ticket.ID != "") != ticket.Result.Allowed || ticket.Result.Allowed && (lasts < time.Minute || lasts > 2*time.Minute) {
				t.Errorf("%T: %+v", l, ticket)
			}
			for range 2 {
				if from == "home" {
					done(l.Succeeded(c, ticket.ID))
				} else {
					one(l.Failed(c, ticket.ID))
				}
			}
		}
		credits := limiter.Policy{Name: "credits", Algorithm: limiter.Balance, Overdraft: 1}
		for _, o := range []limiter.GrantOptions{{Source: "gift", Priority: 2, Expires: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}, {IdempotencyKey: "a"}, {IdempotencyKey: "a"}, {Priority: 1001}} {
			one(l.Grant(c, credits, key, 5, o))
		}
		one(l.AllowN(c, credits, key, 7))
		one(l.AllowN(c, credits, key, 5))
		for _, settles := range []bool{true, false} {
			h, err := l.Reserve(c, credits.Request(key, 2), time.Hour)
			if one(h.Result, err); settles {
				one(l.Settle(c, h.ID, 1))
			}
		}
		left, err := l.Usage(c, credits, key)
		left.Result = cut(left.Result)
		for i := range left.Lots {
			left.Lots[i].Expires = left.Lots[i].Expires.UTC()
		}
		all = append(all, answer{left, err})
		_, err = l.Attempt(c, code, key, limiter.AttemptOptions{TTL: time.Millisecond})
		done(err)
		_, err = l.Attempt(c, p, key, limiter.AttemptOptions{})
		done(err)
		for _, cost := range []float64{1, 2, 1, 0.5} {
			slot, err := l.DoAcquire(c, exports.Request(key, cost), 90*time.Second)
			one(slot.Result, err)
			if lasts := time.Until(slot.ExpiresAt); (slot.ID != "") != slot.Result.Allowed || (slot.Fence > 0) != slot.Result.Allowed || slot.Result.Allowed && (lasts < time.Minute || lasts > 2*time.Minute) {
				t.Errorf("%T: %+v", l, slot)
			}
			until, err := l.Renew(c, slot.ID, 2*time.Hour)
			all = append(all, answer{time.Until(until) > time.Hour, err})
			if cost == 1 {
				done(l.Release(c, slot.ID))
				done(l.Release(c, slot.ID))
			}
		}
		slot, err := l.Acquire(c, exports, key+" one")
		one(slot.Result, err)
		one(l.Allow(c, code, key))
		done(l.Cancel(c, "no id"))
		done(l.Block(c, p, key, 0))
		done(l.Block(c, p, key, time.Hour))
		one(l.Check(c, p, key, 0))
		done(l.Unblock(c, p, key))
		done(l.Reset(c, p, key))
		one(l.Check(c, p, key, 0))
		return all
	}
	want, got := run(direct, budget, "direct"), run(remote, client.Named("budget"), "remote")
	if len(want) != len(got) || len(want) < 55 {
		t.Fatalf("%d answers, want %d", len(got), len(want))
	}
	known := []error{
		limiter.ErrInvalid, limiter.ErrUnsupported, limiter.ErrUnavailable, limiter.ErrOverloaded, limiter.ErrNoReservation, limiter.ErrReservationEnded, limiter.ErrNoTicket, limiter.ErrNoSlot,
		policies.ErrNoPolicy, limiter.ErrMisconfigured,
	}
	for i := range want {
		if !reflect.DeepEqual(want[i].Value, got[i].Value) || (want[i].Err == nil) != (got[i].Err == nil) {
			t.Errorf("answer %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
		for _, err := range known {
			if errors.Is(want[i].Err, err) != errors.Is(got[i].Err, err) {
				t.Errorf("answer %d: %v, want %v", i, got[i].Err, want[i].Err)
			}
		}
	}
	if _, err := remote.Allow(t.Context(), client.Named("none"), "k"); !errors.Is(err, policies.ErrNoPolicy) {
		t.Error(err)
	}
	if _, err := remote.Reserve(t.Context(), client.Named("queue").Request("k", 1), time.Minute); !errors.Is(err, limiter.ErrUnsupported) {
		t.Error(err)
	}
}
