package search

import (
	"cmp"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// drawPolicies draws the plans of each name.
func (g *drawing) drawPolicies() {
	g.drawPlans("p", g.Base)
	if g.Names == 1 {
		return
	}
	if g.IntN(4) == 0 || g.Names > 2 {
		q := g.Policies[0]
		q.Name = "q"
		g.Policies = append(g.Policies, q)
	}
	for i := range max(0, g.Names-2) {
		if all := Variants(g.Base.Limit, g.Base.Period); g.IntN(3) > 0 {
			g.drawPlans(string(rune('r'+i)), all[g.IntN(len(all))])
		}
	}
}

// drawPlans draws one or some of a name.
func (g *drawing) drawPlans(name string, base limiter.Policy) {
	other := g.IntN(2) == 0 && !g.Leases // periods or rates
	limits := []float64{10, 10, 4, 40, 2.5}
	if !g.Coarse {
		limits = append(limits, 1, 1000, 1e12)
		if base.Algorithm == limiter.SlidingWindowLog { // its running totals are where sums of many costs round
			limits = append(limits, 1e12, 1<<52)
		}
	}
	if g.Draw.Plain {
		other, limits = false, []float64{8}
	}
	switch base.Algorithm {
	case limiter.Attempts:
		g.drawAttempts(name, base)
		return
	case limiter.Balance:
		g.drawBalances(name, base)
		return
	}
	if base.Algorithm == limiter.Concurrency {
		for range 1 + g.IntN(2) {
			base.Name, base.Limit = name, float64(1+g.IntN(4))
			g.Policies = append(g.Policies, base)
		}
		return
	}
	first := limits[g.IntN(len(limits))]
	for i := range []int{1, 2, 2, 3}[g.IntN(4)] {
		if i > 0 && (g.Draw.Plain || g.OnePlan) {
			return
		}
		p := base
		p.Name, p.Limit = name, limits[g.IntN(len(limits))]
		if !g.Coarse {
			p.Limit = first * []float64{1, 2, 0.5, 1. / 128}[min(3, i*(1+g.IntN(3)))]
		}
		switch {
		case len(g.Zones) > 0:
			g.calendar(&p, i)
		case other && p.Calendar == "":
			p.Period = []time.Duration{base.Period, base.Period / 5, 6 * base.Period}[g.IntN(3)]
		}
		if bucket(&p) && !g.Draw.Plain {
			p.Burst = p.Limit * []float64{1, 0.5, 3}[g.IntN(3)]
		}
		if g.IntN(4) == 0 {
			p.BlockFor = time.Duration(1+g.Int64N(period(&p))) * time.Microsecond
		}
		if g.Leases && p.Algorithm != limiter.LeakyBucketQueue && p.Algorithm != limiter.SlidingWindowLog {
			p.Lease, p.Limit = []float64{0.5, 0.5, 0.2, 0.05}[g.IntN(4)], max(p.Limit, 40)
			if p.Tick > 0 { // a life is one, at least
				p.Lease = 0.5
			}
		}
		p.Shadow = g.Shadows && g.IntN(4) == 0
		g.Policies = append(g.Policies, p)
	}
}

// drawAttempts draws one or two plans of a name.
func (g *drawing) drawAttempts(name string, p limiter.Policy) {
	for range 1 + g.IntN(2) {
		p.Name, p.Limit, p.Burst = name, float64(1+g.IntN(3)), float64(g.IntN(4))
		p.BlockFor, p.BlockGrowth = time.Duration(1+g.Int64N(period(&p)/4))*time.Microsecond, []float64{0, 1, 1.1, 1.7, 10}[g.IntN(5)]
		p.BlockMax = []time.Duration{0, p.BlockFor, 3 * p.BlockFor, 2 * p.Period}[g.IntN(4)]
		g.Policies = append(g.Policies, p)
	}
}

// drawBalances draws one or two plans of a name.
func (g *drawing) drawBalances(name string, p limiter.Policy) {
	for range 1 + g.IntN(2) {
		p.Name, p.Overdraft, p.BlockFor = name, []float64{0, 0, 2.5, 10}[g.IntN(4)], 0
		p.Shadow = g.Shadows && g.IntN(4) == 0
		if g.IntN(4) == 0 {
			p.BlockFor = time.Duration(1+g.Int64N(period(&p))) * time.Microsecond
		}
		p.Ledger = g.Ledgers && g.IntN(4) > 0
		g.Policies = append(g.Policies, p)
	}
}

// calendar draws the i-th plan's: those after the first may have none.
func (g *drawing) calendar(p *limiter.Policy, i int) {
	p.Period, p.Aligned, p.Calendar = 0, false, limiter.Calendars()[g.IntN(len(limiter.Calendars()))]
	p.TimeZone, p.Anchor = g.Zones[g.IntN(len(g.Zones))], []string{"", "2024-01-31", "2023-11-30T02:30", "2024-02-29T00:15"}[(1+len(g.Policies))%4]
	if i > 0 && g.IntN(2) == 0 {
		p.Calendar, p.TimeZone, p.Anchor, p.Period = "", "", "", 100*time.Minute
		if p.Aligned = g.IntN(2) == 0; p.Aligned {
			p.Period = time.Hour
		}
	}
}

// override draws one: usually the limits of a policy of the name.
func (g *drawing) override(p *limiter.Policy) *policies.Override {
	burst := cmp.Or(p.Burst, p.Limit)
	o := &policies.Override{Limit: &p.Limit, Burst: &burst}
	if !g.Shadows {
		return o
	}
	factor, on := []float64{0.1, 0.5, 2, 4}[g.IntN(4)], g.IntN(2) == 0
	limit := min(1<<53, p.Limit*factor)
	switch g.IntN(9) {
	case 0:
		o = &policies.Override{Unlimited: true}
	case 7:
		o = &policies.Override{Blocked: true}
	case 1:
		o = &policies.Override{Shadow: &on}
	case 2:
		o.Limit, o.Shadow = &limit, &on
	case 3:
		if p.Burst != 0 {
			o = &policies.Override{Burst: &limit}
		}
	case 4:
		o = &policies.Override{Limit: &limit}
	case 5:
		o = &policies.Override{Factor: &factor}
	case 6:
		if p.Burst != 0 {
			o = &policies.Override{Factor: &factor, Burst: &limit}
		}
	}
	if g.IntN(2) == 0 {
		ends := []int64{0, 1, 3_000_000}[g.IntN(3)]
		o.Until = conformance.Epoch.Add(time.Duration(g.at+ends) * time.Microsecond)
	}
	return o
}

// period returns the length of a policy's windows in microseconds, roughly for a calendar.
func period(p *limiter.Policy) int64 {
	days := map[limiter.Calendar]int64{limiter.Day: 1, limiter.Week: 7, limiter.Month: 31, limiter.Quarter: 92, limiter.Year: 366}
	switch p.Calendar {
	case "":
		if p.Algorithm == limiter.Balance {
			return 10_000_000
		}
		return p.Period.Microseconds()
	case limiter.Hour:
		return time.Hour.Microseconds()
	}
	return days[p.Calendar] * 24 * time.Hour.Microseconds()
}

// bucket reports whether a policy may have a Burst.
func bucket(p *limiter.Policy) bool { return !strings.Contains(string(p.Algorithm), "window") }
