package limiter_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// under returns the requests with an IdempotencyKey.
func under(key string, requests ...limiter.Request) []limiter.Request {
	for i := range requests {
		requests[i].IdempotencyKey = key
	}
	return requests
}

// TestAllowAllOnce: a set that was admitted is replayed under its IdempotencyKey, also if the
// limits would deny it now, and counts again after Config.IdempotencyTTL. A denial is decided anew.
// A Do with the same key is another request only if its cost is.
func TestAllowAllOnce(t *testing.T) {
	t.Parallel()
	ctx, now := t.Context(), time.Unix(1e9, 0)
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }, IdempotencyTTL: time.Hour})
	a, b := window("a", 10), window("b", 5)
	shadow := window("shadow", 4)
	shadow.Shadow = true
	ask := func() []limiter.Request {
		return under("order 7", a.Request("k", 3), b.Request("k", 3), shadow.Request("k", 3))
	}
	level := func(p limiter.Policy) float64 { return must.OK(l.Check(ctx, p, "k", 0))(t).Level }
	first := must.OK(l.AllowAll(ctx, ask()...))(t)
	for range 3 { // b has no room for another
		again := must.OK(l.AllowAll(ctx, ask()...))(t)
		for i, r := range again.PerRequest {
			want := first.PerRequest[i]
			if want.Replayed = true; !again.Allowed || r.Granted != 3 || r.Level != want.Level || r.RetryAfter != 0 || !r.Replayed || r.Policy != want.Policy {
				t.Errorf("requests[%d] again: %+v, want %+v", i, r, want)
			}
		}
	}
	if level(a) != 3 || level(b) != 3 || level(shadow) != 3 {
		t.Errorf("levels %v, %v and %v, want 3 each", level(a), level(b), level(shadow))
	}
	if r := must.OK(l.Do(ctx, ask()[1]))(t); !r.Replayed {
		t.Errorf("one of them by Do: %+v", r)
	}
	denied := under("order 8", a.Request("k", 3), b.Request("k", 3))
	if all := must.OK(l.AllowAll(ctx, denied...))(t); all.Allowed || all.DeniedBy != 1 || level(a) != 3 {
		t.Errorf("denied: %+v, level %v", all, level(a))
	}
	must.Succeed(t, l.Reset(ctx, b, "k"))
	if all := must.OK(l.AllowAll(ctx, denied...))(t); !all.Allowed || all.PerRequest[0].Replayed || level(a) != 6 {
		t.Errorf("a denial is decided anew: %+v, level %v", all, level(a))
	}
	now = now.Add(time.Hour)
	if all := must.OK(l.AllowAll(ctx, ask()...))(t); !all.Allowed || all.PerRequest[0].Replayed {
		t.Errorf("after the IdempotencyTTL: %+v", all)
	}
}

// TestAllowAllOnceRefuses: what an IdempotencyKey cannot mean is an error that names the request,
// and nothing is counted.
func TestAllowAllOnceRefuses(t *testing.T) {
	t.Parallel()
	ctx, l := t.Context(), limiter.NewMemory(nil)
	a, b, c := window("a", 10), window("b", 10), window("c", 10)
	must.OK(l.AllowAll(ctx, under("x", a.Request("k", 1), b.Request("k", 1))...))(t)
	one := under("x", a.Request("k", 1))
	for text, requests := range map[string][]limiter.Request{
		`requests[1].IdempotencyKey "": must be that of requests[0], "x"`:                     append(one, b.Request("k", 1)),
		`requests[0] and requests[2] are for the same policy "a" and key`:                     under("x", a.Request("k", 1), b.Request("k", 1), a.Request("k", 2)),
		`IdempotencyKey "x": was used without requests[1]`:                                    under("x", a.Request("k", 1), c.Request("k", 1)),
		`requests[1]: pglimit: invalid: IdempotencyKey "x": was used with cost 1, now with 2`: under("x", a.Request("k", 1), b.Request("k", 2)),
	} {
		if all, err := l.AllowAll(ctx, requests...); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), text) || all.Allowed {
			t.Errorf("%+v, %v, want %s", all, err, text)
		}
	}
	for _, p := range []limiter.Policy{a, b, c} {
		if r := must.OK(l.Check(ctx, p, "k", 0))(t); r.Level != 1 && p != c || r.Level != 0 && p == c {
			t.Errorf("%s: %+v", p.Name, r)
		}
	}
}

// TestAllowAnyOnce: a repeated request is answered by the pools that gave, although others have
// room by now.
func TestAllowAnyOnce(t *testing.T) {
	t.Parallel()
	ctx, l := t.Context(), limiter.NewMemory(nil)
	weekly, credits := window("weekly", 10), window("credits", 10)
	for key, ask := range map[string]func(context.Context, ...limiter.Request) (limiter.Any, error){"any": l.AllowAny, "split": l.AllowAnySplit} {
		must.OK(l.AllowN(ctx, weekly, key, 7))(t)
		requests := under("order 7", weekly.Request(key, 5), credits.Request(key, 5))
		first := must.OK(ask(ctx, requests...))(t)
		must.Succeed(t, l.Reset(ctx, weekly, key))
		again := must.OK(ask(ctx, requests...))(t)
		for i, r := range again.PerRequest {
			if want := first.PerRequest[i]; r.Granted != want.Granted || r.Replayed != (want.Granted > 0) || again.GrantedBy != first.GrantedBy || !again.Allowed {
				t.Errorf("%s again: %+v, want %+v", key, again, first)
			}
		}
		if level := must.OK(l.Check(ctx, credits, key, 0))(t).Level; level != first.PerRequest[1].Granted {
			t.Errorf("%s: credits have %v in use, want %v", key, level, first.PerRequest[1].Granted)
		}
		if a, err := ask(ctx, under("order 7", weekly.Request(key, 6), credits.Request(key, 6))...); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%s with another cost: %+v, %v", key, a, err)
		}
	}
}
