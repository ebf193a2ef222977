package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
)

// workload is a set of contenders that take turns.
type workload struct {
	keys       report.Keys
	callers    int
	sequence   []uint32
	contenders []contender.Contender
}

func (b *bench) workloads() (list []workload) {
	choices, callers := []workload{
		{keys: report.Hot, sequence: []uint32{0}},
		{keys: report.Even, sequence: measure.Evenly(len(b.keys))},
		{keys: report.Zipf, sequence: measure.Zipf(len(b.keys))},
	}, []int{1, 16, 128, 512}
	if b.quick {
		choices, callers = choices[:2], callers[:3]
	}
	for _, w := range choices {
		for _, w.callers = range callers {
			w.contenders = slices.DeleteFunc(slices.Clone(b.main), func(c contender.Contender) bool {
				return w.keys == report.Hot && c.MostOnOneKey > 0 && w.callers > c.MostOnOneKey
			})
			if len(w.contenders) > 0 {
				list = append(list, w)
			}
		}
	}
	return list
}

// runWorkload measures its contenders, in turn within each round. Every other round goes
// backwards, so that a machine that gets slower or faster favours none.
func (b *bench) runWorkload(ctx context.Context, w workload) error {
	cells := make([]report.Cell, len(w.contenders))
	for round := range b.rounds {
		for _, i := range order(round, len(cells)) {
			c := w.contenders[i]
			d, err := b.open(ctx, c, contender.Far)
			if err != nil {
				return err
			}
			s, err := b.measure(ctx, c, d, contender.Far, 0, fmt.Sprintf("round %d, %s, %d callers", round+1, w.keys, w.callers), measure.Load{
				Callers: w.callers, Keys: b.keys, Sequence: w.sequence,
			})
			if err != nil {
				return err
			}
			cells[i] = report.Cell{Keys: w.keys, Callers: w.callers, Contender: c.ID, Samples: append(cells[i].Samples, s)}
		}
	}
	b.report.Cells = append(b.report.Cells, cells...)
	return nil
}

// logCallers are the numbers of callers of sliding logs: few and many.
var logCallers = []int{16, 128}

func (b *bench) logLimits() []int {
	if len(b.logs) == 0 {
		return nil
	}
	return contender.LogLimits
}

// logRate exceeds any contender's decisions per second: the logs have that much room, so
// that no request is denied.
const logRate = 300_000

// runLogs measures the sliding logs at one limit, on so many keys that half-full logs do
// not fill up.
func (b *bench) runLogs(ctx context.Context, limit int) error {
	room := limit / 2
	keys := b.keys[:max(4, int(logRate*(b.warmup+b.duration).Seconds())/room)]
	sequence := measure.Evenly(len(keys))
	rule := contender.LogRule(limit)
	for _, callers := range logCallers {
		cells := make([]report.LogCell, len(b.logs))
		for round := range b.rounds {
			for _, i := range order(round, len(cells)) {
				c := b.logs[i]
				d, err := b.open(ctx, c, rule)
				if err != nil {
					return err
				}
				if err := d.(contender.LogDecider).Charge(ctx, keys, limit-room); err != nil {
					return fmt.Errorf("%s: %w", c.ID, err)
				}
				s, err := b.measure(ctx, c, d, rule, limit-room, fmt.Sprintf("round %d, logs of %d, %d callers", round+1, limit, callers), measure.Load{
					Callers: callers, Keys: keys, Sequence: sequence,
				})
				if err != nil {
					return err
				}
				cells[i] = report.LogCell{Limit: limit, KeyCount: len(keys), Cell: report.Cell{
					Callers: callers, Contender: c.ID, Samples: append(cells[i].Samples, s),
				}}
			}
		}
		b.report.Logs = append(b.report.Logs, cells...)
	}
	return nil
}

// order returns the contenders' order in a round.
func order(round, n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	if round%2 == 1 {
		slices.Reverse(list)
	}
	return list
}

// measure runs one contender once. It fails unless the first key's count equals its
// grants, less what has left meanwhile: by the rule, or of filled entries in a log.
func (b *bench) measure(ctx context.Context, c contender.Contender, d contender.Decider, rule contender.Rule, filled int, what string, l measure.Load) (measure.Sample, error) {
	l.Warmup, l.Duration, l.Decide = b.warmup, b.duration, d.Decide
	begin := time.Now()
	before, err := d.Used(ctx, l.Keys[0])
	if err != nil {
		return measure.Sample{}, fmt.Errorf("%s: %w", c.ID, err)
	}
	s, err := measure.Run(ctx, l)
	if err != nil {
		return measure.Sample{}, fmt.Errorf("%s: %w", c.ID, err)
	}
	after, err := d.Used(ctx, l.Keys[0])
	if err != nil {
		return measure.Sample{}, fmt.Errorf("%s: %w", c.ID, err)
	}
	perPeriod := float64(rule.Limit)
	if filled > 0 {
		perPeriod = float64(filled)
	}
	const rounding = 2
	left := perPeriod*time.Since(begin).Seconds()/rule.Period.Seconds() + rounding
	if c.State == "bare" {
		left = 0 // it counts and never forgets
	}
	counted, allowed := after-before, float64(s.FirstCount)
	if counted > allowed+rounding || counted < allowed-left {
		return measure.Sample{}, fmt.Errorf("%s allowed %v for key %s and counted %v", c.ID, allowed, l.Keys[0], counted)
	}
	b.measured++
	progress("cell %d of %d: %s, %s: %.0f/s", b.measured, b.cells, what, c.ID, s.PerSecond())
	return s, nil
}
