package policies_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// overridden returns a limiter in memory, its Policies and its clock.
func overridden(t *testing.T, config limiter.Config, overrides ...policies.Override) (*limiter.Limiter, *policies.Policies, *time.Time) {
	t.Helper()
	p := must.OK(policies.New())(t)
	for _, o := range overrides {
		must.OK(p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{o}}))(t)
	}
	now := time.UnixMicro(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()) // as in a Result
	config.Policies, config.Now = p, func() time.Time { return now }
	return limiter.NewMemory(&config), p, &now
}

var three = limiter.Policy{Name: "three", Algorithm: limiter.TokenBucket, Limit: 3, Period: time.Hour}

func TestOverrideOfLimit(t *testing.T) {
	t.Parallel()
	l, p, now := overridden(t, limiter.Config{}, policies.Override{Policy: "three", Key: "vip", Limit: new(100.0), Until: time.Date(2025, 1, 1, 0, 30, 0, 0, time.UTC)})
	check := func(key string, limit, burst float64) {
		t.Helper()
		r, err := l.Check(t.Context(), three, key, 0)
		if err != nil || r.Limit != limit || r.Burst != burst || r.Source != limiter.SourceMemory {
			t.Errorf("%+v, %v; want limit %v, burst %v", r, err, limit, burst)
		}
	}
	check("vip", 100, 100)
	check("other", 3, 3)
	*now = now.Add(30*time.Minute - 1)
	check("vip", 100, 100)
	*now = now.Add(1) // Until
	check("vip", 3, 3)
	must.OK(p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "three", Key: "vip", Burst: new(7.0)}}}))(t)
	check("vip", 3, 7)
	must.OK(p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "three", Key: "vip", Limit: new(5.0), Burst: new(0.0)}}}))(t)
	check("vip", 5, 5)
	must.OK(p.Apply(t.Context(), policies.Edit{DeleteOverrides: []policies.Override{{Policy: "three", Key: "vip"}}, Note: "gone"}))(t)
	check("vip", 3, 3)
}

// TestOverrideKeepsProportion: with ten times the limit ten times as much is admitted at once,
// and a factor follows its policy. TestFunctionsOverrideAsGo compares SQL with this.
func TestOverrideKeepsProportion(t *testing.T) {
	t.Parallel()
	_, p, _ := overridden(t, limiter.Config{})
	for _, c := range []struct {
		limit, burst         float64 // of the policy
		override             policies.Override
		wantLimit, wantBurst float64
	}{
		{100, 20, policies.Override{Limit: new(1000.0)}, 1000, 200},
		{300, 30, policies.Override{Limit: new(100.0)}, 100, 10},
		{100, 0, policies.Override{Limit: new(1000.0)}, 1000, 0},
		{100, 20, policies.Override{Limit: new(1000.0), Burst: new(5.0)}, 1000, 5},
		{100, 20, policies.Override{Burst: new(5.0)}, 100, 5},
		{100, 20, policies.Override{Factor: new(10.0)}, 1000, 200},
		{7, 3, policies.Override{Factor: new(10.0)}, 70, 30}, // the policy has changed
		{100, 0, policies.Override{Factor: new(1.1)}, 110, 0},
		{100, 20, policies.Override{Factor: new(0.5), Burst: new(7.0)}, 50, 7},
		{1 << 52, 1 << 53, policies.Override{Factor: new(3.0)}, 1 << 53, 1 << 53},
		{1, 1e-9, policies.Override{Factor: new(1e-9)}, 1e-9, 1e-9},
	} {
		c.override.Policy, c.override.Key = "p", "k"
		policy := policies.Stored{Policy: limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: c.limit, Burst: c.burst, Period: time.Hour}}
		must.OK(p.Apply(t.Context(), policies.Edit{Set: []policies.Stored{policy}, SetOverrides: []policies.Override{c.override}}))(t)
		if got, _, err := p.For("p", "k"); err != nil || got.Limit != c.wantLimit || got.Burst != c.wantBurst {
			t.Errorf("%v, %v with %+v: %v, %v, %v; want %v, %v", c.limit, c.burst, c.override, got.Limit, got.Burst, err, c.wantLimit, c.wantBurst)
		}
	}
	l, _, _ := overridden(t, limiter.Config{}, policies.Override{Policy: "three", Key: "k", Limit: new(9.0)})
	invalid := three
	invalid.Limit, invalid.Burst = 0, 5
	if _, err := l.Allow(t.Context(), invalid, "k"); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("an override made a policy valid: %v", err)
	}
}

// TestOverrideOfWindow: a window has no burst apart from its limit.
func TestOverrideOfWindow(t *testing.T) {
	t.Parallel()
	l, _, _ := overridden(t, limiter.Config{},
		policies.Override{Policy: "window", Key: "limit", Limit: new(9.0)}, policies.Override{Policy: "window", Key: "burst", Burst: new(9.0)})
	for _, burst := range []float64{0, 3} {
		p := limiter.Policy{Name: "window", Algorithm: limiter.FixedWindow, Limit: 3, Burst: burst, Period: time.Hour}
		for key, want := range map[string]float64{"limit": 9, "burst": 3, "none": 3} {
			if r, err := l.Check(t.Context(), p, key, 1); err != nil || r.Limit != want || r.Burst != want {
				t.Errorf("%s: %+v, %v", key, r, err)
			}
		}
	}
}

// TestOverrideOfAnchor: a key has the periods of its subscription, under a policy with a calendar.
func TestOverrideOfAnchor(t *testing.T) {
	t.Parallel()
	month := limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: 3, Calendar: limiter.Month, Anchor: "2024-01-15"}
	hour := limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}
	l, p, now := overridden(t, limiter.Config{}, policies.Override{Policy: "month", Key: "late", Anchor: "2024-01-31T09:30"}, policies.Override{Policy: "month", Key: "reset", Anchor: "2024-01-01"})
	*now = time.Date(2025, 2, 10, 0, 0, 0, 0, time.UTC)
	for key, want := range map[string]time.Time{
		"late": time.Date(2025, 2, 28, 9, 30, 0, 0, time.UTC), "reset": time.Date(2025, 3, 1, 0, 0, 0, 0, time.UTC), "other": time.Date(2025, 2, 15, 0, 0, 0, 0, time.UTC),
	} {
		if r, err := l.Allow(t.Context(), month, key); err != nil || !now.Add(r.ResetAfter).Equal(want) {
			t.Errorf("%s: ends at %v, want %v; %v", key, now.Add(r.ResetAfter), want, err)
		}
	}
	if r, err := l.Check(t.Context(), hour, "late", 1); err != nil || r.Policy != hour {
		t.Errorf("without a calendar: %+v, %v", r, err)
	}
	invalid := month
	invalid.Anchor = "31"
	if _, err := l.Allow(t.Context(), invalid, "late"); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("an override made an anchor valid: %v", err)
	}
	must.Succeed(t, p.Default(hour))
	for want, o := range map[string]policies.Override{
		`Override.Anchor "31": must be a date such as 2024-01-31`: {Policy: "p", Key: "k", Anchor: "31"},
		`"2024-01-31": policy month has no calendar`:              {Policy: "month", Key: "k", Anchor: "2024-01-31"},
		`Unlimited true: excludes Limit, Factor, Burst, Anchor`:   {Policy: "p", Key: "k", Anchor: "2024-01-31", Unlimited: true},
		`Match "prefix": needs Unlimited or Blocked`:              {Policy: "p", Key: "k", Anchor: "2024-01-31", Match: policies.MatchPrefix},
	} {
		if _, err := p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{o}}); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestUnlimited(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var observed []limiter.Source
	config := limiter.Config{Observe: func(_ context.Context, o limiter.Observation) {
		observed = append(observed, o.Result.Source)
	}}
	l, _, now := overridden(t, config, policies.Override{Policy: "three", Key: "free", Unlimited: true})
	must.Succeed(t, l.Block(ctx, three, "free", time.Hour))
	want := func(n float64) limiter.Result {
		return limiter.Result{Allowed: true, Granted: n, Policy: three, Limit: 3, Burst: 3, Remaining: 3, Source: limiter.SourceOverride, At: *now}
	}
	check := func(name string, n float64, got limiter.Result, err error) {
		t.Helper()
		if err != nil || got != want(n) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	r, err := l.Allow(ctx, three, "free")
	check("Allow", 1, r, err)
	r, err = l.AllowN(ctx, three, "free", 1000)
	check("AllowN", 1000, r, err)
	r, err = l.AllowUpTo(ctx, three, "free", 1000)
	check("AllowUpTo", 1000, r, err)
	r, err = l.Check(ctx, three, "free", 5)
	check("Check", 5, r, err)
	r, err = l.Do(ctx, limiter.Request{Policy: three, Key: "free", Cost: 4, IdempotencyKey: "once"})
	check("Do", 4, r, err)
	queue := limiter.Policy{Name: "three", Algorithm: limiter.LeakyBucketQueue, Limit: 3, Period: time.Hour}
	if err := l.Wait(ctx, queue, "free", 1000); err != nil {
		t.Error(err)
	}
	if len(observed) != 7 || observed[0] != "" || observed[6] != limiter.SourceOverride { // the first is of Block
		t.Errorf("observed %q", observed)
	}

	for _, err := range []error{
		func() error { _, err := l.AllowN(ctx, three, "free", -1); return err }(),
		func() error { _, err := l.Allow(ctx, limiter.Policy{Name: "three"}, "free"); return err }(),
	} {
		if !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("an invalid request: %v", err)
		}
	}
	ended, end := context.WithCancel(ctx)
	end()
	if _, err := l.Allow(ended, three, "free"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}

	// The other methods act as without the override.
	if r, err := l.Charge(ctx, three, "free", 2); err != nil || r.Level != 2 || r.Source != limiter.SourceMemory {
		t.Errorf("Charge: %+v, %v", r, err)
	}
	if u, err := l.Usage(ctx, three, "free"); err != nil || u.Spent != 2 {
		t.Errorf("Usage: %+v, %v", u, err)
	}
	must.Succeed(t, l.Close())
	if _, err := l.Allow(ctx, three, "free"); !errors.Is(err, limiter.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestUnlimitedReservation(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	secret := []byte("a secret of more than 16 bytes")
	l, p, now := overridden(t, limiter.Config{KeySecret: secret})
	must.OK(p.Apply(ctx, policies.Edit{SetOverrides: []policies.Override{{Policy: "three", Key: "free", Unlimited: true}}}))(t)
	r, err := l.Reserve(ctx, three.Request("free", 50), time.Minute)
	if err != nil || !r.Result.Allowed || r.Result.Granted != 50 || !r.ExpiresAt.Equal(now.Add(time.Minute)) {
		t.Fatalf("%+v, %v", r, err)
	}
	if policy, key, ok := store.ParseUncountedID(r.ID); !ok || policy != "three" || key == "free" || len(key) < 40 {
		t.Errorf("%s, %s of %s", policy, key, r.ID)
	}
	other, err := l.Reserve(ctx, three.Request("free", 50), time.Minute)
	if err != nil || other.ID == r.ID {
		t.Errorf("a second reservation: %q, %v", other.ID, err)
	}
	want := limiter.Result{Allowed: true, Policy: limiter.Policy{Name: three.Name}, Source: limiter.SourceSkipped, At: *now}
	if s, err := l.Settle(ctx, r.ID, 20); err != nil || s != want {
		t.Errorf("Settle: %+v, %v", s, err)
	}
	if err := l.Cancel(ctx, r.ID); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	if u, err := l.Usage(ctx, three, "free"); err != nil || u.Spent != 0 || u.Reserved != 0 {
		t.Errorf("Usage: %+v, %v", u, err)
	}
	for _, id := range []string{"uncounted:x:three:Zg", "uncounted:0123456789abcdef:Three:Zg", "uncounted:0123456789abcdef:three:", r.ID + "="} {
		if _, err := l.Settle(ctx, id, 1); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("Settle(%q): %v", id, err)
		}
		if err := l.Cancel(ctx, id); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("Cancel(%q): %v", id, err)
		}
	}
	if _, err := l.Settle(ctx, r.ID, -1); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("Settle of -1: %v", err)
	}
	_ = l.Close()
	if err := l.Cancel(ctx, r.ID); !errors.Is(err, limiter.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestUnlimitedInAllowAll(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	two := limiter.Policy{Name: "two", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour}
	l, _, _ := overridden(t, limiter.Config{}, policies.Override{Policy: "three", Key: "free", Unlimited: true}, policies.Override{Policy: "two", Key: "k", Limit: new(4.0)})
	requests := []limiter.Request{three.Request("free", 10), two.Request("k", 3), three.Request("free", 1), three.Request("x", 1)}
	given := append([]limiter.Request(nil), requests...)
	all, err := l.AllowAll(ctx, requests...)
	if err != nil || !all.Allowed || all.DeniedBy != -1 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []struct {
		granted, limit float64
		source         limiter.Source
	}{{10, 3, limiter.SourceOverride}, {3, 4, limiter.SourceMemory}, {1, 3, limiter.SourceOverride}, {1, 3, limiter.SourceMemory}} {
		if r := all.PerRequest[i]; r.Granted != want.granted || r.Limit != want.limit || r.Source != want.source {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if !reflect.DeepEqual(requests, given) {
		t.Error("AllowAll changed the caller's requests")
	}
	all, err = l.AllowAll(ctx, requests...)
	if err != nil || all.Allowed || all.DeniedBy != 1 || !all.PerRequest[0].Allowed || all.PerRequest[0].Granted != 0 {
		t.Errorf("the second: %+v, %v", all, err)
	}
	if all, err = l.WaitAll(ctx, requests[0], requests[2]); err != nil || !all.Allowed {
		t.Errorf("only unlimited ones: %+v, %v", all, err)
	}
	requests[2].Cost = -1
	if _, err := l.AllowAll(ctx, requests...); !errors.Is(err, limiter.ErrInvalid) || err.Error()[:len("requests[2]")] != "requests[2]" {
		t.Errorf("an invalid request: %v", err)
	}
}

// TestOverrideCostsNothing: overrides of other keys allocate nothing.
func TestOverrideCostsNothing(t *testing.T) {
	p := must.OK(policies.New(three))(t)
	allocations := func(config *limiter.Config) float64 {
		l := limiter.NewMemory(config)
		return testing.AllocsPerRun(100, func() { _, _ = l.Check(context.Background(), three, "k", 1) })
	}
	without, none := allocations(nil), allocations(&limiter.Config{Policies: p})
	must.OK(p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "three", Key: "other", Unlimited: true}, {Policy: "three", Key: "other", Match: policies.MatchPrefix, Blocked: true}}}))(t)
	if one := allocations(&limiter.Config{Policies: p}); none != without || one != without {
		t.Errorf("%v allocations without Policies, %v without an override, %v with one", without, none, one)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = p.Get("three") }); n != 0 {
		t.Errorf("Get allocates %v times", n)
	}
}

// TestOverrideOfOneState: an AllowAll is decided by one state of the policies, at one time.
func TestOverrideOfOneState(t *testing.T) {
	t.Parallel()
	end := time.UnixMicro(1_800_000_000_000_000)
	readings := 0
	p := must.OK(policies.New())(t)
	must.OK(p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "three", Key: "k", Limit: new(9.0), Until: end}}}))(t)
	l := limiter.NewMemory(&limiter.Config{Policies: p, Now: func() time.Time { // ends between two readings
		readings++
		return end.Add(time.Duration(readings-2) * time.Second)
	}})
	all, err := l.AllowAll(t.Context(), three.Request("k", 1), three.Request("k", 1), three.Request("k", 1))
	if err != nil || !all.Allowed || all.PerRequest[2].Limit != 9 {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestPolicyOfResult: Result.Policy is the policy that decided, override included.
func TestPolicyOfResult(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ghost := limiter.Policy{Name: "ghost", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour, Shadow: true}
	l, _, _ := overridden(t, limiter.Config{},
		policies.Override{Policy: "three", Key: "shadow", Shadow: new(true)}, policies.Override{Policy: "ghost", Key: "bites", Shadow: new(false)})
	requests := []limiter.Request{three.Request("k", 1), three.Request("shadow", 1), ghost.Request("k", 1), ghost.Request("bites", 1)}
	want := make([]limiter.Policy, len(requests))
	for i, in := range requests {
		want[i] = in.Policy
	}
	want[1].Shadow, want[3].Shadow = true, false
	for i := range 3 { // the third is of a remembered denial
		for j, in := range requests {
			if r, err := l.Do(ctx, in); err != nil || r.Policy != want[j] || r.Shadowed && !want[j].Shadow {
				t.Errorf("%d, Do %d: %+v, %v", i, j, r, err)
			}
		}
		all, err := l.AllowAll(ctx, requests...)
		if err != nil || all.Allowed || all.DeniedBy != 3 {
			t.Fatalf("%d: %+v, %v", i, all, err)
		}
		for j, r := range all.PerRequest {
			if r.Policy != want[j] {
				t.Errorf("%d, AllowAll %d: %+v", i, j, r)
			}
		}
	}
}

// TestSetOverrideAgain: an override that is so already is no change, also if its end is
// given in another time zone.
func TestSetOverrideAgain(t *testing.T) {
	t.Parallel()
	p := must.OK(policies.New())(t)
	end := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, until := range []time.Time{end, end, end.In(time.FixedZone("", 3600)), end.Add(time.Nanosecond)} {
		o := policies.Override{Policy: "p", Key: "k", Limit: new(9.0), Shadow: new(true), Until: until}
		if _, err := p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{o}}); err != nil || p.Version() != 1 {
			t.Errorf("%v: version %d, %v", until, p.Version(), err)
		}
	}
	if _, err := p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "p", Key: "k", Limit: new(9.0), Shadow: new(false), Until: end}}}); err != nil || p.Version() != 2 {
		t.Errorf("with another shadow: version %d, %v", p.Version(), err)
	}
}

// TestNoPolicies: a nil *Policies in a Config is none, with a KeySecret too.
func TestNoPolicies(t *testing.T) {
	t.Parallel()
	var none *policies.Policies
	l := limiter.NewMemory(&limiter.Config{Policies: none, KeySecret: []byte("0123456789abcdef")})
	if r, err := l.Allow(t.Context(), three, "k"); err != nil || r.Limit != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	if all, err := l.AllowAll(t.Context(), three.Request("k", 1), three.Request("k", 1)); err != nil || !all.Allowed {
		t.Errorf("%+v, %v", all, err)
	}
}
