package doctor

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Programs keep all overrides in memory, up to mostOverrides.
const (
	mostOverrides = 100_000
	manyOverrides = 80_000
)

// policyRow is a row of pglimit_policy.
type policyRow struct {
	Name, Algorithm     string
	Limit               float64
	PeriodS, Burst      *float64
	TickS, BlockForS    float64
	Aligned             bool
	Calendar, TimeZone  string
	Durability, OnError string
}

func checkPolicies(ctx context.Context, p *patient) (Check, error) {
	if err := p.needsTables(); err != nil {
		return Check{}, err
	}
	t, ok := p.has("pglimit_policy")
	overrides, also := p.has("pglimit_override")
	version, too := p.has("pglimit_policy_version")
	if !ok || !also || !too {
		return Check{}, fmt.Errorf("%w: no table pglimit_policy in schema %s", errNoTables, p.home)
	}
	all, err := rows[policyRow](ctx, p, `SELECT t.name, t.algorithm, t.limit_units, t.period_s, t.burst, t.tick_s, t.block_for_s, t.aligned, t.calendar, t.time_zone, t.durability, t.on_error
		FROM `+t.quoted+` AS t ORDER BY t.name LIMIT 10000`)
	if err != nil {
		return Check{}, err
	}
	counted, err := rows[struct{ N, Ended int64 }](ctx, p, fmt.Sprintf(`SELECT count(*), count(*) FILTER (WHERE o.until <= clock_timestamp())
		FROM (SELECT v.until FROM %s AS v LIMIT %d) AS o`, overrides.quoted, mostOverrides+1))
	if err != nil {
		return Check{}, err
	}
	versions, err := rows[struct{ N int64 }](ctx, p, "SELECT count(*) FROM "+version.quoted)
	if err != nil {
		return Check{}, err
	}
	if versions[0].N != 1 {
		return Check{Status: Fail, Message: fmt.Sprintf("%s has %d rows, so that no policy can be changed", version.quoted, versions[0].N),
			Fix: fmt.Sprintf("INSERT INTO %s (version) SELECT coalesce(max(version), 0) FROM %s.pglimit_policy_history", version.quoted, p.home)}, nil
	}
	c := Check{Message: fmt.Sprintf("%d policies and %d overrides are stored, all valid", len(all), counted[0].N)}
	for _, row := range all {
		if err := row.policy().Validate(); err != nil {
			c = worse(c, Check{Status: Fail, Details: []string{fmt.Sprintf("policy %s: %s", row.Name, strings.TrimPrefix(err.Error(), "pglimit: "))}})
		}
	}
	if n := len(c.Details); n > 0 {
		c.Message = fmt.Sprintf("%d of %d stored policies are not valid, and programs keep the last valid ones: %s", n, len(all), c.Details[0])
		c.Fix = fmt.Sprintf("correct the rows in %s, or delete them", t.quoted)
	}
	return judgeOverrides(c, counted[0].N, counted[0].Ended, overrides.quoted), nil
}

// judgeOverrides adds what is to say of n overrides, of which some have ended.
func judgeOverrides(c Check, n, ended int64, table string) Check {
	if n < manyOverrides {
		return c
	}
	status := Warn
	if n > mostOverrides {
		status = Fail
	}
	return worse(c, Check{Status: status, Details: []string{fmt.Sprintf("%d overrides of at most %d, of which %d have ended", n, mostOverrides, ended)},
		Fix: fmt.Sprintf("DELETE FROM %s WHERE until <= clock_timestamp(), and give large groups of keys their own policy", table)})
}

// policy converts a row. What a Policy cannot hold becomes a value that is not valid.
func (r policyRow) policy() limiter.Policy {
	p := limiter.Policy{
		Name: r.Name, Algorithm: limiter.Algorithm(r.Algorithm), Limit: r.Limit, Tick: seconds(r.TickS), BlockFor: seconds(r.BlockForS),
		Aligned: r.Aligned, Calendar: limiter.Calendar(r.Calendar), TimeZone: r.TimeZone, Durability: limiter.Durability(math.MaxUint8), OnError: limiter.FailMode(math.MaxUint8),
	}
	if r.PeriodS != nil {
		p.Period = seconds(*r.PeriodS)
	}
	if r.Burst != nil && !(*r.Burst == r.Limit) {
		p.Burst = *r.Burst
	}
	for _, d := range []limiter.Durability{limiter.Durable, limiter.Relaxed} {
		if d.String() == r.Durability {
			p.Durability = d
		}
	}
	for _, m := range []limiter.FailMode{limiter.FailClosed, limiter.FailOpen} {
		if m.String() == r.OnError {
			p.OnError = m
		}
	}
	return p
}

// seconds converts s to whole microseconds; to a negative duration, which is not valid, if
// it is out of a Duration's range.
func seconds(s float64) time.Duration {
	us := math.Round(s * 1e6)
	if !(us >= 0 && us <= math.MaxInt64/1000) {
		return -1
	}
	return time.Duration(us) * time.Microsecond
}
