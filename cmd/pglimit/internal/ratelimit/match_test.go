package ratelimit

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// matched is the configuration of TestMatch.
const matched = `
domain: d
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 1}
- key: user
  value: alice
  rate_limit: {unit: minute, requests_per_unit: 2}
- key: path
  value: /files/*
  share_threshold: true
  rate_limit: {unit: minute, requests_per_unit: 3}
- key: path
  value: /a*b*c
  rate_limit: {unit: minute, requests_per_unit: 4}
- key: path
  value: /a*
  value_to_metric: true
  rate_limit: {unit: minute, requests_per_unit: 5}
- key: route
  value_to_metric: true
  descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 6}
- key: any*
  rate_limit: {unit: minute, requests_per_unit: 7}
- key: deep
  value: x*
  share_threshold: true
  descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 8}
- key: a_b
  descriptors:
  - key: c_d
    rate_limit: {unit: minute, requests_per_unit: 9}
`

// TestMatch checks which limit, key and metric a descriptor has.
func TestMatch(t *testing.T) {
	t.Parallel()
	c := mustConfig(t, matched)
	seen := map[string][]string{} // by limit and key
	for _, c2 := range []struct {
		pairs       []string
		limit       uint32 // 0: none
		key, metric string
	}{
		{[]string{"user", "bob"}, 1, "bob", "d.user"},
		{[]string{"user", ""}, 1, ":", "d.user"},
		{[]string{"user", "alice"}, 2, "alice", "d.user_alice"},
		{[]string{"user", "al:ice"}, 1, `al\:ice`, "d.user"},
		{[]string{"path", "/files/1"}, 3, "/files/*", "d.path_/files/*"},
		{[]string{"path", "/files/*"}, 3, "/files/*", "d.path_/files/*"},
		{[]string{"path", "/abc"}, 4, "/abc", "d.path_/a*b*c"},
		{[]string{"path", "/a1b2b3c"}, 4, "/a1b2b3c", "d.path_/a*b*c"},
		{[]string{"path", "/acb"}, 5, "/acb", "d.path_/acb"},
		{[]string{"path", "/ab"}, 5, "/ab", "d.path_/ab"},
		{[]string{"path", "/b"}, 0, "", ""},
		{[]string{"route", "r"}, 0, "", ""},
		{[]string{"route", "r", "user", "bob"}, 6, "r:bob", "d.route_r.user_bob"},
		{[]string{"route", "r", "user", ""}, 6, "r:", "d.route_r.user_"},
		{[]string{"route", "r", "user", "bob", "more", ""}, 0, "", ""},
		{[]string{"user", "bob", "user", "bob"}, 0, "", ""},
		{[]string{"anything", "x"}, 7, "x:0=anything", "d.anything_any*"},
		{[]string{"a_b", "v", "c_d", "w"}, 9, "v:w", "d.a_b.c_d"},
		{[]string{"a_b", "b", "c_d", "c_d"}, 9, "b:c_d", "d.a_b.c_d"},
		{[]string{"a_b", "a_b", "c_d", "c_d"}, 9, "a_b:c_d", "d.a_b.c_d"},
		{[]string{"a", "b", "c_d", "c_d"}, 9, "b:c_d:0=a", "d.a_b.c_d"},
		{[]string{"a_b", "b", "c", "d"}, 9, "b:d:1=c", "d.a_b.c_d"},
		{[]string{"a", "b", "c", "d"}, 9, "b:d:0=a:1=c", "d.a_b.c_d"},
		{[]string{"a_b", "b:d", "c", "d"}, 9, `b\:d:d:1=c`, "d.a_b.c_d"},
		{[]string{"deep", "xy", "user", ""}, 8, `x*:`, "d.deep_x*.user"},
		{nil, 0, "", ""},
	} {
		m, known, err := c.match("d", descriptorOf(c2.pairs...))
		if err != nil || !known {
			t.Fatalf("%q: known %t, error %v", c2.pairs, known, err)
		}
		var limit uint32
		if m.limit != nil {
			limit = m.perUnit
		}
		if limit == 9 {
			seen[m.key] = append(seen[m.key], fmt.Sprint(c2.pairs))
		}
		if limit != c2.limit || m.key != c2.key || m.metric != c2.metric {
			t.Errorf("%q: limit %d, key %q, metric %q; want %d, %q, %q", c2.pairs, limit, m.key, m.metric, c2.limit, c2.key, c2.metric)
		}
	}
	for _, pairs := range seen {
		if len(pairs) > 1 {
			t.Errorf("%q share one count", pairs)
		}
	}
	if _, known, _ := c.match("e", descriptorOf("user", "bob")); known {
		t.Error("a domain without a configuration is known")
	}
}

// TestOwnPolicies checks the policies of limits with fields of pglimit.
func TestOwnPolicies(t *testing.T) {
	t.Parallel()
	window := limiter.Policy{Name: "envoy.d.k.minute", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Minute, Aligned: true}
	with := func(change func(*limiter.Policy)) limiter.Policy { p := window; change(&p); return p }
	for _, c := range []struct {
		limit string
		want  limiter.Policy
		unit  string
		per   uint32
	}{
		{"{unit: Minute, requests_per_unit: 10}", window, "MINUTE", 10},
		{"{unit: minute, requests_per_unit: 10, pglimit: {lease: 0.05, on_error: fail_open}}", with(func(p *limiter.Policy) { p.Lease, p.OnError = .05, limiter.FailOpen }), "MINUTE", 10},
		{"{unit: minute, requests_per_unit: 10, pglimit: {algorithm: token_bucket, burst: 30}}",
			with(func(p *limiter.Policy) { p.Algorithm, p.Aligned, p.Burst = limiter.TokenBucket, false, 30 }), "MINUTE", 10},
		{"{pglimit: {period: 90s, limit: 2.5}}", with(func(p *limiter.Policy) { p.Name, p.Limit, p.Period = "envoy.d.k.1m30s", 2.5, 90*time.Second }), "UNKNOWN", 2},
		{"{requests_per_unit: 10, pglimit: {calendar: month, time_zone: Europe/Vienna}}",
			with(func(p *limiter.Policy) {
				p.Name, p.Period, p.Aligned, p.Calendar, p.TimeZone = "envoy.d.k.calendar-month", 0, false, limiter.Month, "Europe/Vienna"
			}), "MONTH", 10},
		{"{unit: minute, requests_per_unit: 10, pglimit: {aligned: false}}", with(func(p *limiter.Policy) { p.Aligned = false }), "MINUTE", 10},
	} {
		m, _, err := mustConfig(t, "domain: d\ndescriptors: [{key: k, rate_limit: "+c.limit+"}]").match("d", descriptorOf("k", "v"))
		if err != nil || m.policy != c.want || m.unit.String() != c.unit || m.perUnit != c.per {
			t.Errorf("%s: %+v, %d a %v, error %v; want %+v, %d a %s", c.limit, m.policy, m.perUnit, m.unit, err, c.want, c.per, c.unit)
		}
	}
}

// TestPolicyNames checks that all names are valid and differ where the parts do.
func TestPolicyNames(t *testing.T) {
	t.Parallel()
	valid := regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,63}$`)
	seen := map[string][]string{}
	for _, parts := range [][]string{
		{"d", "k", "minute"}, {"d", "k", "hour"}, {"d", "k.l", "minute"}, {"d", "k", "l", "minute"}, {"d.k", "l", "minute"},
		{"D", "k", "minute"}, {"d", "K", "minute"}, {"d", "", "minute"}, {"d", "k", "", "minute"}, {"d", "k--l", "minute"}, {"ü", "k", "minute"},
		{"d", strings.Repeat("k", 60), "minute"}, {"d", strings.Repeat("k", 61), "minute"}, {"d", "a b", "minute"}, {"d", "a\x00b", "minute"},
	} {
		name := policyName(parts[0], parts[1:len(parts)-1], parts[len(parts)-1])
		if !valid.MatchString(name) {
			t.Errorf("the name of %q is %q, which is not valid", parts, name)
		}
		if other := seen[name]; other != nil {
			t.Errorf("%q and %q both have the name %q", parts, other, name)
		}
		seen[name] = parts
	}
	if name := policyName("mongo_cps", []string{"database", "users"}, "second"); name != "envoy.mongo_cps.database.users.second" {
		t.Errorf("a plain name is %q", name)
	}
}

// TestKeys checks that keys are valid and differ where the values do.
func TestKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1025)
	seen := map[string][]string{}
	for _, values := range [][]string{{""}, {"", ""}, {":"}, {`\`}, {"a", "b"}, {"a:b"}, {long}, {long + "x"}, {"a\x00"}, {strings.Repeat("x", 1024)}} {
		k := key(values)
		if k == "" || len(k) > 1024 || strings.Contains(k, "\x00") {
			t.Errorf("the key of %.20q is %.20q, which is not valid", values, k)
		}
		k = fmt.Sprint(len(values), k) // other numbers of values have other policies
		if other := seen[k]; other != nil {
			t.Errorf("%.20q and %.20q have one key", values, other)
		}
		seen[k] = values
	}
}
