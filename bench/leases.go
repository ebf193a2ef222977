package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/limiter"
)

const (
	leaseShare   = 0.05
	leaseDemand  = 4000 // requests per second of all processes
	crowdCallers = 4    // of each process
	crowdPool    = 3    // its connections
)

// crowd is processes that request units of one key. Here each is a limiter with a pool.
type crowd struct {
	policy limiter.Policy
	demand []float64 // requests per second, by process
	full   bool      // at first the key has no room, so that the limit is all that passes
}

// decision is an answer that a process of a crowd got.
type decision struct {
	process int
	began   time.Time
	took    time.Duration
	limiter.Result
}

// leases measures keys that processes hold leases of, and the same without leases.
func (b *bench) leases() part {
	bucket := func(limit float64, lease bool) limiter.Policy {
		p := limiter.Policy{
			Name: b.name(), Algorithm: limiter.TokenBucket, Limit: limit, Period: time.Second, Burst: 10 * limit,
			Durability: limiter.Relaxed,
		}
		if lease {
			p.Lease = leaseShare
		}
		return p
	}
	p := part{
		sections: []report.Section{
			{
				Name: "leases", Title: "one key of 8 processes", By: "processes", Figure: report.PerSecond,
				More: []report.Figure{report.Lent, report.Statements, report.P50, report.P99, report.Admitted, report.Poorest},
				Note: fmt.Sprintf("%d requests a second: equally many of each, or one process 8 times as many as others. Ample: the limit is twice that; scarce: half of it, and the burst is used up. Burst: 10 s of the limit; Lease: %v, so 0.5 s.",
					leaseDemand, leaseShare) + " Statements: sent per decision. Admitted: of the units that the limit and the requests let pass. Poorest: what the process with the least got of its fair share.",
			},
			{
				Name: "leases-paced", Title: "one process, 1,000 requests a second for a key", By: "callers", Figure: report.P99, More: []report.Figure{report.P50, report.P999},
				Note: "A time counts from the request.",
			},
			{
				Name: "leases-flat", Title: "one process, one key, flat out", By: "callers", Figure: report.PerSecond,
				More: []report.Figure{report.P50, report.P99, report.Client, report.Server, report.Allocs},
				Note: "Rows: the same policy without a lease. Disabled: that, with DisableLeases, and so without the look-up of leases.",
			},
		},
	}
	equal := slices.Repeat([]float64{leaseDemand / 8}, 8)
	skewed := append([]float64{leaseDemand * 8 / 15.}, slices.Repeat([]float64{leaseDemand / 15.}, 7)...)
	for _, name := range []string{"equal, ample", "equal, scarce", "8:1, ample", "8:1, scarce"} {
		c := crowd{demand: equal, full: strings.HasSuffix(name, "scarce")}
		if strings.HasPrefix(name, "8:1") {
			c.demand = skewed
		}
		limit := 2.0 * leaseDemand
		if c.full {
			limit = leaseDemand / 2
		}
		for _, way := range []string{"", ", rows"} {
			p.add("leases", name+way, "8", func(ctx context.Context, _ int) (report.Figures, error) {
				c := c
				c.policy = bucket(limit, way == "")
				return b.crowded(ctx, c)
			})
		}
	}
	p.add("leases", "a burst", "8", func(ctx context.Context, _ int) (report.Figures, error) {
		c := crowd{bucket(leaseDemand/2, true), equal, false}
		c.policy.Burst = 2 * c.policy.Limit // which is used up within 2 s, and L is 0.1 s
		return b.crowded(ctx, c)
	})
	for _, way := range []string{"leases", "rows", "disabled"} {
		for _, section := range []string{"leases-paced", "leases-flat"} {
			callers := 2
			if section == "leases-paced" {
				callers = 50
			}
			load := measure.Load{Callers: callers, Warmup: b.long().warmup, Duration: b.long().duration, Keys: []string{hotKey}, Sequence: []uint32{0}}
			if section == "leases-paced" {
				load.PerSecond = rate
			}
			p.add(section, way, strconv.Itoa(callers), func(ctx context.Context, _ int) (report.Figures, error) {
				policy := bucket(1e9, way == "leases")
				l, err := limiter.New(b.env.Pool, &limiter.Config{Timeout: time.Minute, DisableLeases: way == "disabled"})
				if err != nil {
					return nil, err
				}
				load.Decide = (&contender.Limiter{Limiter: l, Policy: policy}).Decide
				load.Client, load.Server = proc.Self, b.env.Processor(contender.BatchRelaxed)
				s, err := measure.Run(ctx, load)
				if err == nil {
					err = l.Close()
				}
				return figures(s), err
			})
		}
	}
	return p
}

// crowded measures a crowd. It fails if more was admitted than the policy lets pass.
func (b *bench) crowded(ctx context.Context, c crowd) (report.Figures, error) {
	all, sent, err := b.ask(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := withinBound(c.policy, all); err != nil {
		return nil, err
	}
	from := all[0].began.Add(b.long().warmup)
	f := c.figures(all, sent, from, from.Add(b.long().duration))
	if !c.full && c.policy.Burst < 10*c.policy.Limit {
		b.picture = drawBurst(c.policy, all)
		delete(f, report.Admitted) // it depends on what is left of the burst
	}
	return f, nil
}

// sends are the moments at which statements were sent.
type sends struct {
	mu sync.Mutex
	at []time.Time
}

// TraceQueryStart implements pgx.QueryTracer.
func (s *sends) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Now())
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*sends) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (*sends) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (s *sends) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchQueryData) {
	s.TraceQueryStart(ctx, nil, pgx.TraceQueryStartData{})
}

// TraceBatchEnd implements pgx.BatchTracer.
func (*sends) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// ask makes a crowd's requests. It returns all decisions, by the time of their request, and the
// statements sent for them.
func (b *bench) ask(ctx context.Context, c crowd) (all []decision, sent *sends, err error) {
	var mu sync.Mutex
	sent = new(sends)
	decide := func(ctx context.Context, process int, request func() (limiter.Result, error)) error {
		began := time.Now()
		r, err := request()
		took := time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, decision{process, began, took, r})
		return err
	}
	processes := make([]*limiter.Limiter, len(c.demand))
	for i := range processes {
		pool, err := b.env.Postgres.Connect(ctx, crowdPool, func(config *pgx.ConnConfig) {
			config.Database, config.Tracer = b.env.Pool.Config().ConnConfig.Database, sent
		})
		if err != nil {
			return nil, sent, err
		}
		defer pool.Close()
		if processes[i], err = limiter.New(pool, &limiter.Config{Timeout: time.Minute}); err != nil {
			return nil, sent, err
		}
	}
	if c.full {
		err = decide(ctx, 0, func() (limiter.Result, error) {
			return processes[0].AllowUpTo(ctx, c.policy, hotKey, c.policy.Burst)
		})
		if err != nil {
			return nil, sent, err
		}
	}
	err = inParallel(len(processes), func(i int) error {
		_, err := measure.Run(ctx, measure.Load{
			Callers: crowdCallers, PerSecond: c.demand[i], Warmup: b.long().warmup, Duration: b.long().duration + time.Second/10,
			Keys: []string{hotKey}, Sequence: []uint32{0},
			Decide: func(ctx context.Context, key string) (float64, error) {
				return 1, decide(ctx, i, func() (limiter.Result, error) { return processes[i].Allow(ctx, c.policy, key) })
			},
		})
		return err
	})
	for _, l := range processes {
		err = cmp.Or(err, l.Close())
	}
	slices.SortFunc(all, func(x, y decision) int { return x.began.Compare(y.began) })
	return all, sent, err
}

// figures returns the figures of the requests made from one time until before another.
func (c *crowd) figures(all []decision, sent *sends, from, to time.Time) report.Figures {
	during := func(t time.Time) bool { return !t.Before(from) && t.Before(to) }
	var times []time.Duration
	var statements, lent, admitted float64
	got, requested := make([]float64, len(c.demand)), make([]float64, len(c.demand))
	for _, d := range all {
		if !during(d.began) {
			continue
		}
		times = append(times, d.took)
		if requested[d.process]++; d.Source == limiter.SourceLease {
			lent++
		}
		got[d.process] += d.Granted
		admitted += d.Granted
	}
	for _, at := range sent.at {
		if during(at) {
			statements++
		}
	}
	slices.Sort(times)
	n, poorest := float64(len(times)), 1.0
	for i, fair := range fairShares(requested, admitted) {
		poorest = min(poorest, got[i]/fair)
	}
	return report.Figures{
		report.PerSecond: n / to.Sub(from).Seconds(), report.Lent: lent / n, report.Statements: statements / n, report.Poorest: poorest,
		report.P50: float64(times[len(times)/2]), report.P99: float64(times[len(times)*99/100]),
		report.Admitted: admitted / min(n, c.policy.Limit*to.Sub(from).Seconds()),
	}
}

// fairShares shares units among demands. One that is less than an equal share gets all, and
// the others share what is left.
func fairShares(demands []float64, units float64) []float64 {
	shares, sorted := slices.Clone(demands), slices.Sorted(slices.Values(demands))
	for i, d := range sorted {
		equal := units / float64(len(sorted)-i)
		if d > equal {
			for k := range shares {
				shares[k] = min(shares[k], equal)
			}
			break
		}
		units -= d
	}
	return shares
}

// withinBound returns an error if in any span of time more was granted than a bucket's burst and
// what its limit lets pass.
func withinBound(p limiter.Policy, all []decision) error {
	sorted := slices.SortedFunc(slices.Values(all), func(x, y decision) int { return x.At.Compare(y.At) })
	level, last := 0.0, sorted[0].At
	for _, d := range sorted {
		level = max(0, level-p.Limit*d.At.Sub(last).Seconds()/p.Period.Seconds()) + d.Granted
		if last = d.At; level > p.Burst+1e-6 {
			return fmt.Errorf("%s: %v units too many were granted until %v", p.Name, level-p.Burst, d.At)
		}
	}
	return nil
}

// drawBurst draws what processes were granted from an unused bucket.
func drawBurst(p limiter.Policy, all []decision) string {
	const steps = 90
	first, last := all[0].began, all[len(all)-1].began
	areas := make([][]float64, 8)
	for i := range areas {
		areas[i] = make([]float64, steps+1)
	}
	var line []float64
	for step := range steps + 1 {
		line = append(line, p.Burst+p.Limit*last.Sub(first).Seconds()*float64(step)/steps)
	}
	for _, d := range all {
		for step := int(d.began.Sub(first)*steps/last.Sub(first)) + 1; step <= steps; step++ {
			areas[d.process][step] += d.Granted
		}
	}
	return report.Stacked("Units that 8 processes were granted of a key with leases, and the most that its policy lets pass", "burst + limit × time", "units granted, by process", last.Sub(first).Seconds(), areas, line)
}
