package sample

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

const day = 24 * time.Hour

func (s *Source) addPolicies() {
	stored := map[string]policies.Stored{}
	add := func(p limiter.Policy, note string, version int64, ago time.Duration, by string) {
		stored[p.Name] = policies.Stored{Policy: p, Note: note, MaxTTL: day, Version: version, ChangedAt: Now.Add(-ago), ChangedBy: by}
		s.policies = append(s.policies, stored[p.Name])
	}
	add(limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 600, Period: time.Minute, Burst: 100}, "per API key", 38, 3*time.Hour, "ops")
	add(limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_000, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}, "cents for models", 12, 20*day, "billing")
	add(limiter.Policy{Name: "checkout", Algorithm: limiter.SlidingWindowCounter, Limit: 30, Period: time.Hour, Shadow: true}, "measures before it denies", 40, 50*time.Minute, "ops")
	add(limiter.Policy{Name: "crawl", Algorithm: limiter.LeakyBucketQueue, Limit: 5, Period: time.Second, Burst: 50}, "calls to partners", 3, 90*day, "migrations")
	add(limiter.Policy{Name: "exports", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: day}, "", 7, 41*day, "ops")
	add(limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Burst: 10, BlockFor: 15 * time.Minute}, "after the attack in May", 41, 12*time.Minute, "ops")

	change := func(version int64, ago time.Duration, by, note string, before, after *policies.Stored) {
		name := cmp.Or(after, before).Name
		s.history = append(s.history, policies.Change{Version: version, ChangedAt: Now.Add(-ago), ChangedBy: by, Note: note, Name: name, Before: before, After: after})
	}
	now := stored["login"]
	before := now
	before.Limit, before.Burst, before.BlockFor = 10, 20, 0
	change(41, 12*time.Minute, "ops", "after the attack in May", &before, &now)
	shadow := stored["checkout"]
	change(40, 50*time.Minute, "ops", "measures before it denies", nil, &shadow)
	limit, until := 6000.0, Now.Add(30*day)
	s.overrides["key_partner_1"] = inspect.Override{Policy: "api", Key: "key_partner_1", Limit: &limit, Until: &until, Note: "contract until June", ChangedBy: "ops"}
	s.history = append(s.history, policies.Change{
		Version: 39, ChangedAt: Now.Add(-2 * time.Hour), ChangedBy: "ops", Note: "contract until June", Name: "api", Key: "key_partner_1",
		OverrideAfter: &policies.Override{Policy: "api", Key: "key_partner_1", Limit: &limit, Until: until},
	})
	api := stored["api"]
	slower := api
	slower.Limit = 300
	change(38, 3*time.Hour, "ops", "per API key", &slower, &api)
	old := policies.Stored{Policy: limiter.Policy{Name: "signup", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour, Aligned: true}, MaxTTL: day}
	change(37, 5*day, "migrations", "replaced by login", &old, nil)
	first := before
	change(2, 120*day, "migrations", "", nil, &first)
	s.overrides["account-17"] = inspect.Override{Policy: "budget", Key: "account-17", Unlimited: true, Note: "the house", ChangedBy: "billing"}
}

// addRow adds a row of a key under a policy, whose share is used / burst.
func (s *Source) addRow(policy, key string, used float64) *inspect.Key {
	p := s.policies[slices.IndexFunc(s.policies, func(p policies.Stored) bool { return p.Name == policy })]
	burst := cmp.Or(p.Burst, p.Limit)
	level := math.Max(0, used)
	share, remaining, i := level/burst, math.Max(0, burst-level), len(s.rows)
	s.rows = append(s.rows, inspect.Key{
		Policy: policy, Algorithm: algorithm.Name(p.Algorithm), Key: key, Level: &level, Burst: &burst, Share: &share, Remaining: &remaining,
		UpdatedAt: new(Now.Add(-time.Duration(i*i) * time.Second)), EmptyAt: new(Now.Add(time.Duration(share * float64(time.Hour)))),
	})
	return &s.rows[i]
}

func (s *Source) addKeys() {
	random := random()
	denied := func(policy, key string, used float64, denials int64, ago time.Duration) *inspect.Key {
		r := s.addRow(policy, key, used)
		r.Denials, r.LastDeniedAt = denials, new(Now.Add(-ago))
		return r
	}
	denied("login", "203.0.113.99", 10, 1304, 8*time.Second).BlockedUntil = new(Now.Add(14 * time.Minute))
	denied("login", "198.51.100.200", 9.6, 212, time.Minute)
	denied("api", "key_live_7f3a", 97, 1204, 3*time.Second)
	s.addRow("api", "key_partner_1", 41)
	denied("budget", "account-42", 99_310, 61, 4*time.Minute).Reservations = 3
	for i, ttl := range []time.Duration{40 * time.Second, 4 * time.Minute, 9 * time.Minute} {
		s.reservations["account-42"] = append(s.reservations["account-42"], inspect.Reservation{
			ID: fmt.Sprintf("budget/account-42/%08x", 0x5eed0000+i*4097), Policy: "budget", Algorithm: algorithm.FixedWindow, Units: []float64{250, 1200, 90}[i], ExpiresAt: Now.Add(ttl),
		})
	}
	s.addRow("budget", "account-17", 84_000)
	denied("login", "alice", 3, 7, 26*time.Minute)
	s.addRow("api", "alice", 12)
	s.addRow("checkout", "alice", 4)
	for i := range 40 {
		s.addRow("api", fmt.Sprintf("key_live_%04x", random.IntN(1<<16)), random.Float64()*80)
		s.addRow("login", fmt.Sprintf("192.0.2.%d", 10+i), random.Float64()*7)
		if i%3 == 0 {
			r := s.addRow("checkout", fmt.Sprintf("cart-%d", 1000+i*7), 5+random.Float64()*25)
			r.Denials = int64(random.IntN(30))
			s.addRow("exports", fmt.Sprintf("tenant-%d", i), float64(random.IntN(10)))
			s.addRow("crawl", fmt.Sprintf("partner-%d", i), random.Float64()*30)
		}
	}
}

func (s *Source) addDenials() {
	random := random()
	const slots = 144
	last := Now.Truncate(10 * time.Minute)
	for i := range slots {
		start := last.Add(-time.Duration(slots-1-i) * 10 * time.Minute)
		daily := 0.5 - 0.5*math.Cos(2*math.Pi*(float64(start.Hour())-4)/24)
		attack := 0.0
		if i > 128 && i < 141 {
			attack = 260 * math.Exp(-math.Pow(float64(i)-134, 2)/12)
		}
		for at, most := range []float64{60, 5, 22, 8 + attack} {
			policy := []string{"api", "budget", "checkout", "login"}[at]
			n := int64(most * (0.3 + 0.7*daily) * (0.6 + 0.4*random.Float64()))
			if n == 0 || policy == "budget" && i%5 != 0 {
				continue
			}
			slot := dashboard.DenialSlot{Start: start, Policy: policy, Denials: n, Units: float64(n)}
			switch policy {
			case "checkout":
				slot.Shadowed = n
			case "login":
				slot.Blocked = n * 3 / 4
			case "budget":
				slot.AboveBurst = n / 3
			}
			s.denials = append(s.denials, slot)
		}
	}
}

// checks are those of a doctor.
var checks = []doctor.Check{
	{Name: "server", Message: "PostgreSQL 15.18 answers in 0.4 ms"},
	{Name: "migrations", Message: "all 7 migrations are applied"},
	{Name: "grants", Message: "the role may do what the limiter does"},
	{Name: "schemas", Message: "no other role can create objects in schema limits"},
	{
		Name: "connections", Verdict: doctor.Warn, Message: "94 of 100 connections are in use",
		Fix: "ALTER SYSTEM SET max_connections = 200", FixAs: "a superuser", NextStep: "restart the server", Details: []string{"shop-web: 71", "shop-worker: 23"},
	},
	{Name: "snapshots", Verdict: doctor.Unchecked, Message: "sessions of other roles are not visible", Fix: "GRANT pg_read_all_stats TO app", FixAs: "a superuser"},
	{
		Name: "janitor", Verdict: doctor.Fail, Message: "no sweep for 3 h 12 min, so the tables grow",
		Fix: "pglimit janitor --interval 1m", Details: []string{"48,210 rows are due", "the last sweep was by worker-2"},
	},
}
