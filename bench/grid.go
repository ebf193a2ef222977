package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
)

// manyCallers is where contenders of different amounts and the logs are measured.
const manyCallers = 128

var ofMany = []report.Figure{report.P99, report.Client, report.Server}

// grid compares all contenders, by the way in which callers choose keys and their number.
func (b *bench) grid() part {
	p := part{
		sections: []report.Section{
			{Name: report.Hot, Title: "one hot key", By: "callers", Figure: report.PerSecond, More: ofMany},
			{Name: report.Even, Title: fmt.Sprintf("%d,000 keys evenly", len(b.keys)/1000), By: "callers", Figure: report.PerSecond, More: ofMany},
			{Name: "zipf", Title: "the same keys, Zipf", By: "callers", Figure: report.PerSecond, More: ofMany},
		},
		prepare: func(ctx context.Context) error { return errors.Join(b.checkExact(ctx), b.preload(ctx)) },
	}
	all := contender.All()
	for _, k := range []struct {
		section  string
		callers  []int
		sequence []uint32
	}{
		{report.Hot, []int{1, 16, 128, 512}, []uint32{0}},
		{report.Even, []int{1, 16, 128, 512}, measure.Evenly(len(b.keys), 2)},
		{"zipf", []int{1, 16, 128}, measure.Zipf(len(b.keys))},
	} {
		for _, n := range k.callers {
			for _, c := range all {
				if c.Amounts && (k.section != report.Hot || n != manyCallers) {
					continue
				}
				p.add(k.section, c.ID, strconv.Itoa(n), func(ctx context.Context, _ int) (report.Figures, error) {
					d, err := b.open(ctx, c, contender.Far)
					if err != nil {
						return nil, err
					}
					return b.closed(ctx, c, d, contender.Far, 0, measure.Load{Callers: n, Keys: b.keys, Sequence: k.sequence})
				})
			}
		}
	}
	return p
}

// logRate exceeds any contender's decisions per second: the logs have that much room, so
// that no request is denied.
const logRate = 300_000

// logs measures the sliding logs at each limit. It has enough keys that half-full logs do not
// fill up.
func (b *bench) logs() part {
	p := part{
		sections: []report.Section{{
			Name: "log", Title: "sliding log, 128 callers", By: "limit", Figure: report.PerSecond, More: append(slices.Clone(ofMany), walBytes, rowBytes),
			Note: "Logs are half full at first, over a minute. Higher limits have fewer keys.",
		}},
		prepare: b.checkExact,
	}
	for _, limit := range contender.LogLimits {
		for _, c := range contender.Logs() {
			p.add("log", c.ID, strconv.Itoa(limit), func(ctx context.Context, _ int) (report.Figures, error) {
				room, rule := limit/2, contender.LogRule(limit)
				keys := b.keys[:max(4, int(logRate*(b.short().warmup+b.short().duration).Seconds())/room)]
				d, err := b.open(ctx, c, rule)
				if err != nil {
					return nil, err
				}
				if err := d.(contender.LogDecider).Charge(ctx, keys, limit-room); err != nil {
					return nil, err
				}
				written := func() (wal, decisions float64, err error) {
					err = b.env.Pool.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, coalesce(sum(total), 0) FROM pglimit_sliding_window_log`).Scan(&wal, &decisions)
					return wal, decisions, err
				}
				wal, decisions, err := written()
				if err != nil {
					return nil, err
				}
				f, err := b.closed(ctx, c, d, rule, limit-room, measure.Load{Callers: manyCallers, Keys: keys, Sequence: measure.Evenly(len(keys), 2)})
				if err != nil || c.Redis {
					return f, err
				}
				walAfter, decisionsAfter, err := written()
				if err != nil {
					return nil, err
				}
				t, err := servers.ReadTable(ctx, b.env.Pool, "pglimit_sliding_window_log")
				f[walBytes], f[rowBytes] = (walAfter-wal)/(decisionsAfter-decisions), float64(t.Bytes)/float64(len(keys))
				return f, err
			})
		}
	}
	return p
}

// closed measures a contender under a closed load. It fails unless the first key's count
// equals its grants, less what has left meanwhile: by the rule, or of filled entries in a
// log.
func (b *bench) closed(ctx context.Context, c contender.Contender, d contender.Decider, rule contender.Rule, filled int, l measure.Load) (report.Figures, error) {
	l.Warmup, l.Duration, l.Decide = b.short().warmup, b.short().duration, d.Decide
	l.Client, l.Server = proc.Self, b.env.Processor(c)
	begin := time.Now()
	before, err := d.Used(ctx, l.Keys[0])
	if err != nil {
		return nil, err
	}
	s, err := measure.Run(ctx, l)
	if err != nil {
		return nil, err
	}
	after, err := d.Used(ctx, l.Keys[0])
	if err != nil {
		return nil, err
	}
	perPeriod := float64(rule.Limit)
	if filled > 0 {
		perPeriod = float64(filled)
	}
	const rounding = 2
	left := perPeriod*time.Since(begin).Seconds()/rule.Period.Seconds() + rounding
	if counted := after - before; counted > s.First+rounding || counted < s.First-left {
		return nil, fmt.Errorf("it allowed %v for key %s and counted %v", s.First, l.Keys[0], counted)
	}
	return figures(s), nil
}

// checkExact sends 20 requests with a limit of 10 to every contender, from four callers at
// once, and expects 10 to be allowed. It does so once.
func (b *bench) checkExact(ctx context.Context) error {
	if b.exact {
		return nil
	}
	b.exact = true
	const limit, requests, callers = 10, 20, 4
	progress("checking that each allows %d of %d at a limit of %d", limit, requests, limit)
	rule := contender.Rule{Name: "exact", Limit: limit, Period: 24 * time.Hour, Burst: limit}
	for _, c := range slices.Concat(contender.All(), contender.Logs()) {
		if c.Amounts {
			continue // it requests more than one unit
		}
		d, err := b.open(ctx, c, rule)
		if err != nil {
			return err
		}
		var allowed atomic.Int64
		err = inParallel(callers, func(int) error {
			for range requests / callers {
				units, err := d.Decide(ctx, "exact:"+c.ID)
				if err != nil {
					return err
				}
				allowed.Add(int64(units))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID, err)
		}
		if n := allowed.Load(); n != limit {
			return fmt.Errorf("%s allowed %d of %d at a limit of %d", c.ID, n, requests, limit)
		}
	}
	return nil
}

// preload has every contender decide once for each key that is measured, so that measured
// decisions find their rows.
func (b *bench) preload(ctx context.Context) error {
	const callers = 128
	for _, c := range contender.Stores() {
		progress("filling in %d keys for %s", len(b.keys), c.ID)
		d, err := b.open(ctx, c, contender.Far)
		if err != nil {
			return err
		}
		err = inParallel(callers, func(n int) error {
			for i := n; i < len(b.keys); i += callers {
				if _, err := d.Decide(ctx, b.keys[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", c.ID, err)
		}
	}
	for _, sql := range []string{"VACUUM (ANALYZE)", "CHECKPOINT"} {
		if _, err := b.env.Pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}
