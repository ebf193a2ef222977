package faults

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// admissions are what tight limits let pass, by the database's clock.
type admissions struct {
	mu  sync.Mutex
	all map[place][]admission
}

type admission struct {
	policy limiter.Policy
	at     time.Time // by the database's clock
	when   time.Time // of the answer, by this machine's
	units  float64
}

func (a *admissions) add(p limiter.Policy, key string, r limiter.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		a.all = map[place][]admission{}
	}
	at := place{p.Name, key}
	a.all[at] = append(a.all[at], admission{p, r.At, time.Now(), r.Granted})
}

// judge returns the units admitted and the most that were allowed in the time between the
// first and the last, and what exceeds the exact bound. What was lost may be admitted
// again, so it does not count.
func (a *admissions) judge(lossy func(time.Time) bool) (admitted, allowed float64, excess []error) {
	for _, passed := range a.all {
		slices.SortStableFunc(passed, func(x, y admission) int { return cmp.Compare(x.at.UnixMicro(), y.at.UnixMicro()) })
		var exact search.Bound
		allowed += most(passed[0].policy, passed[0].at, passed[len(passed)-1].at)
		for _, x := range passed {
			admitted += x.units
			if lossy(x.when) {
				allowed += x.units
				continue
			}
			if err := exact.Admit(x.at.UnixMicro(), &x.policy, x.units); err != nil {
				excess = append(excess, err)
				break
			}
		}
	}
	return admitted, allowed, excess
}

// most returns the most units that a policy may admit between two moments.
func most(p limiter.Policy, from, to time.Time) float64 {
	period := p.Period.Microseconds()
	span := to.UnixMicro() - from.UnixMicro()
	if p.Tick > 0 {
		span -= span % p.Tick.Microseconds() // only whole ticks leak
	}
	switch windows := float64(span / period); {
	case p.Aligned:
		return p.Limit * float64(to.UnixMicro()/period-from.UnixMicro()/period+1)
	case p.Algorithm == limiter.SlidingWindowCounter && windows < 1:
		return math.Floor(p.Limit * (1 + float64(span)/float64(period)))
	case p.Algorithm == limiter.SlidingWindowCounter:
		return p.Limit * (windows + 2)
	case p.Algorithm == limiter.FixedWindow, p.Algorithm == limiter.SlidingWindowLog:
		return p.Limit * (windows + 1)
	}
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	return math.Floor(burst + p.Limit*float64(span)/float64(period) + 1e-6)
}
