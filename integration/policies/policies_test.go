package policies

import (
	"cmp"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// login is a policy for tests.
var login = limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Burst: 10}

// opened is Policies and the versions that it has loaded.
type opened struct {
	*policies.Policies
	versions chan int64
}

// open opens Policies that close when the test ends. By default they list no program.
func open(t *testing.T, pool *pgxpool.Pool, config policies.Config) *opened {
	t.Helper()
	config.PublishEvery = cmp.Or(config.PublishEvery, -1)
	o := &opened{versions: make(chan int64, 1000)}
	config.OnChange = func(v int64) { o.versions <- v }
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	p := must.OK(policies.Open(t.Context(), pool, &config))(t)
	o.Policies = p
	t.Cleanup(func() { _ = p.Close() })
	return o
}

// newLog returns a logger and what it writes.
func newLog() (*slog.Logger, *testworld.Buffer) {
	text := new(testworld.Buffer)
	return slog.New(slog.NewTextHandler(text, nil)), text
}

// expectLog expects one line with all parts, or nothing without parts, and forgets it.
func expectLog(t *testing.T, log *testworld.Buffer, parts ...string) {
	t.Helper()
	text := log.Take()
	if strings.Count(text, "\n") != min(1, len(parts)) {
		t.Errorf("%d lines: %s", strings.Count(text, "\n"), text)
	}
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("the log lacks %q: %s", p, text)
		}
	}
}

// await waits until that version is loaded.
func (o *opened) await(t *testing.T, version int64) {
	t.Helper()
	limit := time.After(time.Minute) // prevents a hang
	for o.Version() != version {
		select {
		case <-o.versions:
		case <-limit:
			t.Fatalf("version %d was not loaded, but %d", version, o.Version())
		}
	}
}

// apply applies an edit.
func apply(t *testing.T, p *policies.Policies, edit policies.Edit) int64 {
	t.Helper()
	version := must.OK(p.Apply(t.Context(), edit))(t)
	if p.Version() != version {
		t.Fatalf("version %d is loaded after Apply returned %d", p.Version(), version)
	}
	return version
}

// overrides reads the overrides of a policy.
func overrides(t *testing.T, p *policies.Policies, policy string) []policies.Override {
	t.Helper()
	all := must.OK(p.Overrides(t.Context(), policy))(t)
	return all
}

func TestApply(t *testing.T) {
	t.Parallel()
	p := open(t, testworld.NewPool(t), policies.Config{})
	if _, err := p.Get("login"); !errors.Is(err, policies.ErrNoPolicy) {
		t.Errorf("without a policy: %v", err)
	}
	day := limiter.Policy{
		Name: "spend", Algorithm: limiter.FixedWindow, Limit: 100, Calendar: limiter.Day, TimeZone: "Europe/Vienna",
		BlockFor: 1500 * time.Microsecond, Durability: limiter.Relaxed, OnError: limiter.FailLocal, LocalShare: 0.25, Shadow: true,
	}
	code := limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 3, Period: time.Hour, Burst: 2, BlockFor: time.Minute, BlockGrowth: 1.5, BlockMax: 90 * time.Second}
	until := time.Date(2200, 1, 2, 3, 4, 5, 678901000, time.UTC)
	version := apply(t, p.Policies, policies.Edit{
		Set: []policies.Stored{{Policy: login, Note: "first"}, {Policy: day, Askers: true, CountDenials: true, MaxTTL: time.Hour}, {Policy: code}},
		SetOverrides: []policies.Override{
			{Policy: "login", Key: "b", Limit: new(7.0), Until: until, Note: "plan"},
			{Policy: "login", Key: "a", Unlimited: true},
			{Policy: "spend", Key: "a", Shadow: new(false)},
		},
	})
	if version != 1 {
		t.Errorf("version %d, want 1", version)
	}
	for _, want := range []limiter.Policy{login, day, code} {
		if got, err := p.Get(want.Name); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
	list := p.List()
	if len(list) == 3 {
		list = list[1:]
	}
	if len(list) != 2 || list[0].Policy != login || list[0].Note != "first" || list[0].MaxTTL != 24*time.Hour ||
		list[1].MaxTTL != time.Hour || !list[1].Askers || !list[1].CountDenials || list[1].Version != 1 || list[1].ChangedBy == "" || list[1].ChangedAt.IsZero() {
		t.Errorf("%+v", list)
	}
	all := overrides(t, p.Policies, "login")
	if len(all) != 2 || all[0].Key != "a" || !all[0].Unlimited || *all[1].Limit != 7 || all[1].Burst != nil || !all[1].Until.Equal(until) || all[1].Note != "plan" {
		t.Errorf("%+v", all)
	}
	want := login
	want.Limit, want.Burst = 7, 14 // in the proportion of the policy
	if got, unlimited, err := p.For("login", "b"); err != nil || unlimited || got != want {
		t.Errorf("%+v, %v, %v", got, unlimited, err)
	}
	if got, unlimited, err := p.For("login", "a"); err != nil || !unlimited || got != login {
		t.Errorf("%+v, %v, %v", got, unlimited, err)
	}
	if got, _, err := p.For("spend", "a"); err != nil || got.Shadow {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestFollow(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]policies.Config{
		"listening": {PollEvery: time.Hour}, "polling": {DisableListen: true, PollEvery: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testworld.NewPool(t)
			writer, reader := open(t, pool, policies.Config{}), open(t, pool, config)
			version := apply(t, writer.Policies, policies.Edit{Set: []policies.Stored{{Policy: login}}})
			reader.await(t, version)
			testworld.Exec(t, pool, `UPDATE pglimit_policy SET limit_units = 6 WHERE name = 'login'`)
			for _, o := range []*opened{writer, reader} {
				o.await(t, version+1)
				if p, err := o.Get("login"); err != nil || p.Limit != 6 {
					t.Errorf("%+v, %v", p, err)
				}
			}
			testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('login', 'k', true)`)
			reader.await(t, version+2)
			if _, unlimited, err := reader.For("login", "k"); err != nil || !unlimited {
				t.Error(unlimited, err)
			}
		})
	}
}
