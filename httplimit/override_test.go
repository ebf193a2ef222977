package httplimit

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// overridden returns a limiter in memory whose clock stands still, with these overrides.
func overridden(t *testing.T, overrides ...policies.Override) *limiter.Limiter {
	t.Helper()
	live := must.OK(policies.New())(t)
	must.OK(live.Apply(t.Context(), policies.Edit{SetOverrides: overrides}))(t)
	return limiter.NewMemory(&limiter.Config{Policies: live, Now: func() time.Time { return at }})
}

// TestOverrideFields: the fields show the limit that decided, and not the one that the
// application passed; nothing names an unlimited key, or a shadow.
func TestOverrideFields(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 6, Period: time.Minute, Burst: 1}
	ghost := limiter.Policy{Name: "ghost", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour, Shadow: true}
	other := limiter.Policy{Name: "other", Algorithm: limiter.FixedWindow, Limit: 50, Period: time.Hour}
	l := overridden(t,
		policies.Override{Policy: "p", Key: "burst", Burst: new(3.0)},
		policies.Override{Policy: "p", Key: "both", Limit: new(30.0), Burst: new(0.0)},
		policies.Override{Policy: "p", Key: "free", Unlimited: true},
		policies.Override{Policy: "p", Key: "shadow", Limit: new(12.0), Shadow: new(true)},
		policies.Override{Policy: "ghost", Key: "bites", Shadow: new(false)},
		policies.Override{Policy: "other", Key: "less", Limit: new(1.0)},
		policies.Override{Policy: "other", Key: "bot-", Match: policies.MatchPrefix, Blocked: true, Until: at.Add(time.Minute)},
		policies.Override{Policy: "other", Key: "192.0.2.0/24", Match: policies.MatchCIDR, Blocked: true},
	)
	for _, c := range []struct {
		name             string
		requests         []limiter.Request
		policy, limit, x string
		violated         string // "": allowed
	}{
		{"none", []limiter.Request{p.Request("k", 1)}, `"p";q=6;w=60;pglimit-burst=1`, `"p";r=0;t=10`, "1", ""},
		{"burst", []limiter.Request{p.Request("burst", 1)}, `"p";q=6;w=60;pglimit-burst=3`, `"p";r=2;t=10`, "3", ""},
		{"both", []limiter.Request{p.Request("both", 1)}, `"p";q=30;w=60`, `"p";r=29;t=2`, "30", ""},
		{"unlimited", []limiter.Request{p.Request("free", 100)}, "", "", "", ""},
		{"a shadow by override", []limiter.Request{p.Request("shadow", 1)}, "", "", "", ""},
		{"no shadow by override", []limiter.Request{ghost.Request("bites", 1)}, `"ghost";q=2;w=3600`, `"ghost";r=1;t=3600`, "2", ""},
		{"several", []limiter.Request{p.Request("free", 1), p.Request("shadow", 1), other.Request("k", 1), ghost.Request("bites", 1)},
			`"other";q=50;w=3600, "ghost";q=2;w=3600`, `"other";r=49;t=3600, "ghost";r=0;t=3600`, "2", ""},
		{"one name", []limiter.Request{p.Request("free", 1), p.Request("burst", 1)}, `"p";q=6;w=60;pglimit-burst=3`, `"p";r=1;t=20`, "3", ""},
		{"nothing that limits", []limiter.Request{p.Request("free", 1), p.Request("shadow", 9), ghost.Request("k", 9)}, "", "", "", ""},
		{"the last unit", []limiter.Request{p.Request("free", 5), p.Request("shadow", 5), other.Request("less", 1)}, `"other";q=1;w=3600`, `"other";r=0;t=3600`, "1", ""},
		{"denied", []limiter.Request{p.Request("free", 5), p.Request("shadow", 5), ghost.Request("k", 9), other.Request("less", 1)},
			`"other";q=1;w=3600`, `"other";r=0;t=3600`, "1", `"violated-policies":["other"]`},
		{"denied, remembered", []limiter.Request{other.Request("less", 1)}, `"other";q=1;w=3600`, `"other";r=0;t=3600`, "1", `"violated-policies":["other"]`},
		{"blocked", []limiter.Request{other.Request("bot-1", 1)}, `"other";q=50;w=3600`, `"other";r=0;t=60`, "50", `"detail":"Try again in 60 s.","violated-policies":["other"]`},
		{"blocked without an end", []limiter.Request{p.Request("k2", 1), other.Request("192.0.2.7", 1)}, `"other";q=50;w=3600`, `"other";r=0`, "50",
			`"status":429,"detail":"The client is blocked.","violated-policies":["other"]`},
	} {
		w := get(New(l, fixed(c.requests...), WithXRateLimit())(&answering{status: 200}), request())
		h := w.Header()
		if (w.Code == 200) != (c.violated == "") || h.Get(policyField) != c.policy || h.Get(limitField) != c.limit || h.Get(xLimitField) != c.x || !strings.Contains(w.Body.String(), c.violated) {
			t.Errorf("%s: got %d, %q, %s", c.name, w.Code, h, w.Body)
		}
	}
}

// TestOverrideRefund: WithRefundIf gives nothing back for an unlimited key, whose units were
// not counted, and all for a key with another limit.
func TestOverrideRefund(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Hour}
	l := overridden(t, policies.Override{Policy: "p", Key: "free", Unlimited: true}, policies.Override{Policy: "p", Key: "more", Limit: new(50.0)})
	if _, err := l.Charge(t.Context(), p, "free", 3); err != nil { // Charge counts in spite of the override
		t.Fatal(err)
	}
	for _, requests := range [][]limiter.Request{{p.Request("free", 2)}, {p.Request("free", 2), p.Request("more", 20)}} {
		w := get(New(l, fixed(requests...), WithRefundIf(func(int) bool { return true }))(&answering{status: 200}), request())
		free, err := l.Usage(t.Context(), p, "free")
		more, err2 := l.Usage(t.Context(), p, "more")
		if w.Code != 200 || free.Spent != 3 || more.Spent != 0 || err != nil || err2 != nil {
			t.Errorf("%v: got %d, used %v and %v, %v, %v", requests, w.Code, free.Spent, more.Spent, err, err2)
		}
	}
}
