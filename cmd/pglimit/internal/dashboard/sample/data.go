package sample

import (
	"fmt"
	"math"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/limiter"
)

const day = 24 * time.Hour

func (s *Source) addPolicies() {
	add := func(p limiter.Policy, note string, version int64, ago time.Duration, by string, overrides int) {
		s.policies = append(s.policies, dashboard.Policy{
			StoredPolicy: limiter.StoredPolicy{Policy: p, Note: note, MaxTTL: day, Version: version, ChangedAt: Now.Add(-ago), ChangedBy: by},
			Overrides:    overrides,
		})
	}
	add(limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 600, Period: time.Minute, Burst: 100}, "per API key", 38, 3*time.Hour, "ops", 2)
	add(limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_000, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}, "cents for models", 12, 20*day, "billing", 1)
	add(limiter.Policy{Name: "checkout", Algorithm: limiter.SlidingWindowCounter, Limit: 30, Period: time.Hour, Shadow: true}, "measures before it denies", 40, 50*time.Minute, "ops", 0)
	add(limiter.Policy{Name: "crawl", Algorithm: limiter.LeakyBucketQueue, Limit: 5, Period: time.Second, Burst: 50}, "calls to partners", 3, 90*day, "migrations", 0)
	add(limiter.Policy{Name: "exports", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: day}, "", 7, 41*day, "ops", 0)
	add(limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Burst: 10, BlockFor: 15 * time.Minute}, "after the attack in May", 41, 12*time.Minute, "ops", 1)

	stored := func(name string) limiter.StoredPolicy {
		for _, p := range s.policies {
			if p.Name == name {
				return p.StoredPolicy
			}
		}
		return limiter.StoredPolicy{}
	}
	change := func(version int64, ago time.Duration, by, note string, before, after *limiter.StoredPolicy) {
		c := limiter.PolicyChange{Version: version, ChangedAt: Now.Add(-ago), ChangedBy: by, Note: note, Before: before, After: after}
		for _, p := range []*limiter.StoredPolicy{before, after} {
			if p != nil {
				c.Name = p.Name
			}
		}
		s.history = append(s.history, c)
	}
	now := stored("login")
	before := now
	before.Limit, before.Burst, before.BlockFor = 10, 20, 0
	change(41, 12*time.Minute, "ops", "after the attack in May", &before, &now)
	shadow := stored("checkout")
	change(40, 50*time.Minute, "ops", "measures before it denies", nil, &shadow)
	limit := 6000.0
	partner := limiter.Override{Policy: "api", Key: "key_partner_1", Limit: &limit, Until: Now.Add(30 * day), Note: "contract until June", ChangedBy: "ops", ChangedAt: Now.Add(-2 * time.Hour)}
	s.overrides[partner.Key] = []limiter.Override{partner}
	s.history = append(s.history, limiter.PolicyChange{Version: 39, ChangedAt: partner.ChangedAt, ChangedBy: "ops", Note: partner.Note, Name: "api", Key: partner.Key, OverrideAfter: &partner})
	api := stored("api")
	slower := api
	slower.Limit = 300
	change(38, 3*time.Hour, "ops", "per API key", &slower, &api)
	old := limiter.StoredPolicy{Policy: limiter.Policy{Name: "signup", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour, Aligned: true}, MaxTTL: day}
	change(37, 5*day, "migrations", "replaced by login", &old, nil)
	first := before
	change(2, 120*day, "migrations", "", nil, &first)
	s.overrides["account-17"] = []limiter.Override{{Policy: "budget", Key: "account-17", Unlimited: true, Note: "the house", ChangedBy: "billing", ChangedAt: Now.Add(-40 * day)}}
}

// addRow adds a row of a key under a policy, whose share is used / burst.
func (s *Source) addRow(policy, key string, used float64) *dashboard.Row {
	var p limiter.Policy
	for _, known := range s.policies {
		if known.Name == policy {
			p = known.Policy
		}
	}
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	level := math.Max(0, used)
	share, remaining := level/burst, math.Max(0, burst-level)
	i := len(s.rows)
	s.rows = append(s.rows, dashboard.Row{
		Policy: policy, Algorithm: p.Algorithm, Key: key, Level: &level, Burst: &burst, Share: &share, Remaining: &remaining,
		UpdatedAt: Now.Add(-time.Duration(i*i) * time.Second), EmptyAt: Now.Add(time.Duration(share * float64(time.Hour))),
	})
	return &s.rows[i]
}

func (s *Source) addKeys() {
	random := random()
	attacker := s.addRow("login", "203.0.113.99", 10)
	attacker.BlockedUntil, attacker.Denials, attacker.LastDenied = Now.Add(14*time.Minute), 1304, Now.Add(-8*time.Second)
	second := s.addRow("login", "198.51.100.200", 9.6)
	second.Denials, second.LastDenied = 212, Now.Add(-time.Minute)
	key := s.addRow("api", "key_live_7f3a", 97)
	key.Denials, key.LastDenied = 1204, Now.Add(-3*time.Second)
	s.addRow("api", "key_partner_1", 41)
	account := s.addRow("budget", "account-42", 99_310)
	account.Denials, account.LastDenied, account.Reservations = 61, Now.Add(-4*time.Minute), 3
	for i, ttl := range []time.Duration{40 * time.Second, 4 * time.Minute, 9 * time.Minute} {
		s.reservations["account-42"] = append(s.reservations["account-42"], dashboard.Reservation{
			ID: fmt.Sprintf("budget/account-42/%08x", 0x5eed0000+i*4097), Policy: "budget", Algorithm: limiter.FixedWindow, Units: []float64{250, 1200, 90}[i], Expires: Now.Add(ttl),
		})
	}
	s.addRow("budget", "account-17", 84_000)
	alice := s.addRow("login", "alice", 3)
	alice.Denials, alice.LastDenied = 7, Now.Add(-26*time.Minute)
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
			if policy == "checkout" {
				slot.Shadowed = n
			}
			s.denials = append(s.denials, slot)
		}
	}
}

func (s *Source) addChecks() {
	s.checks = []dashboard.Check{
		{Name: "server", Status: "ok", Message: "PostgreSQL 15.18 answers in 0.4 ms"},
		{Name: "migrations", Status: "ok", Message: "all 7 migrations are applied"},
		{Name: "grants", Status: "ok", Message: "the role may do what the limiter does"},
		{Name: "schemas", Status: "ok", Message: "no other role can create objects in schema limits"},
		{
			Name: "connections", Status: "warn", Message: "94 of 100 connections are in use",
			Fix: "ALTER SYSTEM SET max_connections = 200;\n-- then restart the server", Details: []string{"shop-web: 71", "shop-worker: 23"},
		},
		{Name: "durability", Status: "ok", Message: "synchronous_commit is on"},
		{
			Name: "janitor", Status: "fail", Message: "no sweep for 3 h 12 min, so the tables grow",
			Fix: "pglimit janitor --interval 1m", Details: []string{"48,210 rows are due", "the last sweep was by worker-2"},
		},
	}
}
