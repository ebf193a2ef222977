package policies_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// rules returns Policies with those overrides, of the policy three unless they name another.
func rules(t testing.TB, overrides ...policies.Override) *policies.Policies {
	t.Helper()
	p, err := policies.New(three)
	for i := range overrides {
		if overrides[i].Policy == "" {
			overrides[i].Policy = "three"
		}
	}
	if err == nil {
		_, err = p.Apply(context.Background(), policies.Edit{SetOverrides: overrides})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRuleMatches: which keys a rule is for. TestFunctionsRuleAsGo compares SQL with this.
func TestRuleMatches(t *testing.T) {
	t.Parallel()
	for _, c := range conformance.Matches {
		p := rules(t, policies.Override{Key: c.Text, Match: c.Match, Unlimited: true})
		if _, got, err := p.For("three", c.Key); got != c.Want || err != nil {
			t.Errorf("%s %q, key %q: %v, %v", c.Match, c.Text, c.Key, got, err)
		}
	}
}

// TestRulesOfSeveral: the key's own override decides before rules, and an exemption before
// blocks. Of several blocks the longest counts, and none after its end.
func TestRulesOfSeveral(t *testing.T) {
	t.Parallel()
	start := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	l, p, now := overridden(t, limiter.Config{}, policies.Override{Policy: "three", Key: "bot-more", Limit: new(9.0)})
	edit := policies.Edit{SetOverrides: []policies.Override{
		{Key: "bot-vip", Unlimited: true}, {Key: "10.0.0.7", Blocked: true},
		{Key: "bot-", Match: policies.MatchPrefix, Blocked: true, Until: start.Add(time.Hour)},
		{Key: "bot-1", Match: policies.MatchPrefix, Blocked: true, Until: start.Add(2 * time.Hour)},
		{Key: "bot-12", Match: policies.MatchPrefix, Blocked: true, Until: start.Add(time.Minute)},
		{Key: "bot-*x", Match: policies.MatchPattern, Blocked: true},
		{Key: "0.0.0.0/0", Match: policies.MatchCIDR, Blocked: true, Until: start.Add(time.Hour)},
		{Key: "10.0.0.0/8", Match: policies.MatchCIDR, Unlimited: true, Until: start.Add(time.Hour)},
		{Key: "10.0.0.0/16", Match: policies.MatchCIDR, Blocked: true},
	}}
	for i := range edit.SetOverrides {
		edit.SetOverrides[i].Policy = "three"
	}
	must.OK(p.Apply(t.Context(), edit))(t)
	const decided = -1
	for _, step := range []struct {
		at    time.Duration
		wants map[string]time.Duration // RetryAfter of a block; 0: it passes
	}{
		{0, map[string]time.Duration{"bot-0": time.Hour, "bot-1": 2 * time.Hour, "bot-123": 2 * time.Hour, "bot-1x": limiter.Never, "bot-vip": 0, "bot-more": time.Hour,
			"192.0.2.1": time.Hour, "10.1.0.7": 0, "10.0.0.8": 0, "10.0.0.7": limiter.Never, "alice": decided}},
		{time.Hour - time.Microsecond, map[string]time.Duration{"bot-0": time.Microsecond, "10.1.0.7": 0}},
		{time.Hour, map[string]time.Duration{"bot-0": decided, "bot-1": time.Hour, "192.0.2.1": decided, "10.1.0.7": decided, "10.0.0.8": limiter.Never, "bot-1x": limiter.Never}},
	} {
		*now = time.UnixMicro(start.UnixMicro()).Add(step.at)
		for key, want := range step.wants {
			r, err := l.Allow(t.Context(), three, key)
			if err != nil || r.Allowed != (want <= 0) || (r.Source == limiter.SourceOverride) != (want != decided) {
				t.Errorf("%v, %s: %+v, %v", step.at, key, r, err)
			}
			if want > 0 && (r.Reason != limiter.ReasonBlocked || r.RetryAfter != want || r.ResetAfter != want || r.Granted != 0 || r.Remaining != 0) {
				t.Errorf("%v, %s: %+v; want RetryAfter %v", step.at, key, r, want)
			}
			if key == "bot-more" && r.Limit != 9 {
				t.Errorf("%s: %+v", key, r)
			}
		}
	}
	if n := p.OverrideCount("three"); n != 5 { // by the clock of this machine
		t.Errorf("%d overrides have not ended", n)
	}
}

// TestBlockedByOverride: every verb that requests is denied, and observed. The others act as
// without the override.
func TestBlockedByOverride(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	queue := limiter.Policy{Name: "queue", Algorithm: limiter.LeakyBucketQueue, Limit: 3, Period: time.Hour}
	var observed []limiter.Reason
	config := limiter.Config{KeySecret: []byte("a secret of more than 16 bytes"), Observe: func(_ context.Context, o limiter.Observation) { observed = append(observed, o.Result.Reason) }}
	l, _, _ := overridden(t, config,
		policies.Override{Policy: "three", Key: "bot-", Match: policies.MatchPrefix, Blocked: true}, policies.Override{Policy: "queue", Key: "*", Match: policies.MatchPattern, Blocked: true})
	denied := func(name string, r limiter.Result, err error) {
		t.Helper()
		if err != nil || r.Allowed || r.Reason != limiter.ReasonBlocked || r.RetryAfter != limiter.Never || r.Source != limiter.SourceOverride {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	r, err := l.Allow(ctx, three, "bot-1")
	denied("Allow", r, err)
	r, err = l.AllowUpTo(ctx, three, "bot-1", 2)
	denied("AllowUpTo", r, err)
	r, err = l.Check(ctx, three, "bot-1", 0)
	denied("Check", r, err)
	r, err = l.Do(ctx, limiter.Request{Policy: three, Key: "bot-1", Cost: 1, IdempotencyKey: "once"})
	denied("Do", r, err)
	reserved, err := l.Reserve(ctx, three.Request("bot-1", 1), time.Minute)
	denied("Reserve", reserved.Result, err)
	r, err = l.DoWait(ctx, queue.Request("k", 1))
	denied("DoWait", r, err)
	all, err := l.WaitAll(ctx, queue.Request("k", 1))
	denied("WaitAll", all.PerRequest[0], err)
	if len(observed) != 7 || strings.Count(fmt.Sprint(observed), "blocked") != 7 || reserved.ID != "" {
		t.Errorf("observed %q; reservation %q", observed, reserved.ID)
	}
	if err := l.Wait(ctx, queue, "k", 1); err == nil || err.Error() != "pglimit: denied by queue (blocked)" {
		t.Errorf("Wait: %v", err)
	}
	if _, err := l.AllowN(ctx, three, "bot-1", -1); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("an invalid request: %v", err)
	}
	if r, err := l.Charge(ctx, three, "bot-1", 2); err != nil || r.Level != 2 {
		t.Errorf("Charge: %+v, %v", r, err)
	}
	if u, err := l.Usage(ctx, three, "bot-1"); err != nil || u.Spent != 2 || !u.Result.Allowed {
		t.Errorf("Usage: %+v, %v", u, err)
	}
	if r, err := l.Refund(ctx, three, "bot-1", 1); err != nil || r.Level != 1 {
		t.Errorf("Refund: %+v, %v", r, err)
	}
}

// TestBlockedInAllowAll: a block denies the whole and nothing is consumed; that of a shadow
// policy denies nothing.
func TestBlockedInAllowAll(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ghost := limiter.Policy{Name: "ghost", Algorithm: limiter.GCRA, Limit: 9, Period: time.Hour, Shadow: true}
	l, _, _ := overridden(t, limiter.Config{}, policies.Override{Policy: "three", Key: "free", Unlimited: true},
		policies.Override{Policy: "three", Key: "bot-", Match: policies.MatchPrefix, Blocked: true}, policies.Override{Policy: "ghost", Key: "bot", Match: policies.MatchPrefix, Blocked: true})
	all, err := l.AllowAll(ctx, three.Request("free", 1), three.Request("x", 1), ghost.Request("bot", 1), three.Request("bot-1", 1))
	if err != nil || all.Allowed || all.DeniedBy != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []limiter.Source{limiter.SourceOverride, limiter.SourceSkipped, limiter.SourceSkipped, limiter.SourceOverride} {
		if r := all.PerRequest[i]; r.Source != want || r.Granted != 0 || r.Allowed != (i == 0) || (r.Reason == limiter.ReasonBlocked) != (i == 3) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	all, err = l.AllowAll(ctx, three.Request("x", 3), ghost.Request("bot", 2)) // x has used nothing
	if r := all.PerRequest; err != nil || !all.Allowed || r[0].Remaining != 0 || !r[1].Shadowed || r[1].Granted != 2 || r[1].Reason != limiter.ReasonBlocked {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestRulesRefused: what is not a rule is refused with its field and value.
func TestRulesRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		override policies.Override
		want     string
	}{
		{policies.Override{Key: "k", Match: "regexp", Blocked: true}, `Override.Match "regexp": must be prefix, pattern, cidr or empty`},
		{policies.Override{Key: "k", Match: "prefix", Limit: new(9.0)}, `Override.Match "prefix": needs Unlimited or Blocked`},
		{policies.Override{Key: "203.0.113.7/24", Match: "cidr", Blocked: true}, `Override.Key "203.0.113.7/24": must be a network such as 203.0.113.0/24 or 2001:db8::/32; this address is in 203.0.113.0/24`},
		{policies.Override{Key: "203.0.113.7", Match: "cidr", Blocked: true}, `Override.Key "203.0.113.7": must be a network`},
		{policies.Override{Key: "10.0.0.0/08", Match: "cidr", Blocked: true}, `Override.Key "10.0.0.0/08": must be a network`},
		{policies.Override{Key: "010.0.0.0/8", Match: "cidr", Blocked: true}, `Override.Key "010.0.0.0/8": must be a network`},
		{policies.Override{Key: "::ffff:203.0.113.0/120", Match: "cidr", Blocked: true}, `Override.Key "::ffff:203.0.113.0/120": must be a network`},
		{policies.Override{Key: "2001:DB8::/32", Match: "cidr", Blocked: true}, `Override.Key "2001:DB8::/32": must be a network`},
		{policies.Override{Key: "k", Blocked: true, Unlimited: true}, "Override.Blocked true: excludes"},
		{policies.Override{Key: "k", Blocked: true, Limit: new(9.0)}, "Override.Blocked true: excludes"},
		{policies.Override{Match: "prefix", Blocked: true}, "key"},
		{policies.Override{Key: strings.Repeat("a", 129), Match: "pattern", Blocked: true}, "must have at most 128 bytes and 8 ? as a pattern"},
		{policies.Override{Key: strings.Repeat("?", 9), Match: "pattern", Blocked: true}, "must have at most 128 bytes and 8 ? as a pattern"},
	} {
		c.override.Policy = "three"
		_, err := rules(t).Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{c.override}})
		if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %s", c.override, err, c.want)
		}
	}
}

// most returns as many rules of one kind as a policy can have. None is for the key
// bot-1:203.0.113.9.
func most(match policies.Match) (all []policies.Override) {
	n := 1000
	if match == policies.MatchPattern {
		n = 100
	}
	for i := range n {
		text := map[policies.Match]string{policies.MatchPrefix: fmt.Sprintf("bot-1%d", i), policies.MatchPattern: fmt.Sprintf("bot-1*%d", i),
			policies.MatchCIDR: fmt.Sprintf("203.%d.%d.0/24", i/256+1, i%256)}[match]
		all = append(all, policies.Override{Policy: "three", Key: text, Match: match, Blocked: true})
	}
	return all
}

// TestRulesBound: a policy can have 1,000 rules, and 100 patterns.
func TestRulesBound(t *testing.T) {
	t.Parallel()
	p := rules(t, most(policies.MatchCIDR)...)
	more := policies.Override{Policy: "three", Key: "more", Match: policies.MatchPrefix, Blocked: true}
	other := more
	other.Policy = "other"
	if _, err := p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{more}}); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "at most 1000") {
		t.Errorf("one more: %v", err)
	}
	edit := policies.Edit{SetOverrides: []policies.Override{more, other, {Policy: "three", Key: "more", Blocked: true}}, DeleteOverrides: most(policies.MatchCIDR)[:1]}
	if _, err := p.Apply(t.Context(), edit); err != nil {
		t.Errorf("instead of another, of another policy, and for one key: %v", err)
	}
	p, more.Match = rules(t, most(policies.MatchPattern)...), policies.MatchPattern
	if _, err := p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{more}}); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "100 patterns") {
		t.Errorf("one more pattern: %v", err)
	}
}

func BenchmarkRules(b *testing.B) {
	for name, all := range map[string][]policies.Override{
		"none": nil, "prefixes": most(policies.MatchPrefix), "patterns": most(policies.MatchPattern), "networks": most(policies.MatchCIDR),
	} {
		b.Run(name, func(b *testing.B) {
			p := rules(b, all...)
			for b.Loop() {
				if _, unlimited, err := p.For("three", "bot-1:203.0.113.9"); unlimited || err != nil {
					b.Fatal(unlimited, err)
				}
			}
		})
	}
}
