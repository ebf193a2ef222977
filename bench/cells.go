package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/processor"
	"github.com/pglimit/pglimit/bench/report"
)

// workload is a set of contenders that take turns.
type workload struct {
	keys       report.Keys
	callers    int
	sequence   []uint32
	contenders []contender.Contender
}

// allCallers are the numbers of callers, someCallers those at which contenders are
// measured that no goal names.
var (
	allCallers  = []int{1, 16, 128, 512}
	someCallers = []int{16, 128}
)

// choose chooses the contenders of each part.
func (b *bench) choose() {
	b.main = b.selection.choose(contender.All(), string(report.Hot), string(report.Even), string(report.Zipf))
	b.amounts = b.selection.choose(contender.Amounts(), string(report.Amounts))
	b.logs = b.selection.choose(contender.Logs(), logs)
}

// workloads returns what to measure but for the sliding logs.
func (b *bench) workloads() (list []workload) {
	// Most cells are for a goal, as a whole run should take no longer than a break.
	for _, w := range []struct {
		keys       report.Keys
		callers    []int
		sequence   []uint32
		contenders []contender.Contender
	}{
		{report.Hot, allCallers, []uint32{0}, b.main},
		{report.Even, allCallers, measure.Evenly(len(b.keys)), b.main},
		{report.Zipf, []int{1, 16, 128}, measure.Zipf(len(b.keys)), b.main},
		{report.Amounts, []int{128}, []uint32{0}, b.amounts},
	} {
		if !b.wants(string(w.keys)) || b.quick && w.keys == report.Zipf {
			continue
		}
		for _, n := range w.callers {
			if !b.wantsCallers(n) || b.quick && n > 128 {
				continue
			}
			taking := slices.DeleteFunc(slices.Clone(w.contenders), func(c contender.Contender) bool {
				return c.Aside && (w.keys == report.Zipf || !slices.Contains(someCallers, n))
			})
			if len(taking) > 0 {
				list = append(list, workload{w.keys, n, w.sequence, taking})
			}
		}
	}
	return list
}

// count returns how many cells there are to measure in each round.
func (b *bench) count() (n int) {
	for _, w := range b.workloads() {
		n += len(w.contenders)
	}
	return n + len(b.logWorkloads())*len(b.logs)
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

// logWorkload is a limit of sliding logs.
type logWorkload struct{ limit, callers int }

// logWorkloads returns what to measure of sliding logs.
func (b *bench) logWorkloads() (list []logWorkload) {
	const callers = 128
	if len(b.logs) == 0 || !b.wantsCallers(callers) {
		return nil
	}
	for _, limit := range contender.LogLimits {
		list = append(list, logWorkload{limit, callers})
	}
	return list
}

// logRate exceeds any contender's decisions per second: the logs have that much room, so
// that no request is denied.
const logRate = 300_000

// runLogs measures the sliding logs at one limit, on so many keys that half-full logs do
// not fill up.
func (b *bench) runLogs(ctx context.Context, w logWorkload) error {
	room := w.limit / 2
	keys := b.keys[:max(4, int(logRate*(b.warmup+b.duration).Seconds())/room)]
	sequence := measure.Evenly(len(keys))
	rule := contender.LogRule(w.limit)
	cells := make([]report.LogCell, len(b.logs))
	for round := range b.rounds {
		for _, i := range order(round, len(cells)) {
			c := b.logs[i]
			d, err := b.open(ctx, c, rule)
			if err != nil {
				return err
			}
			if err := d.(contender.LogDecider).Charge(ctx, keys, w.limit-room); err != nil {
				return fmt.Errorf("%s: %w", c.ID, err)
			}
			s, err := b.measure(ctx, c, d, rule, w.limit-room, fmt.Sprintf("round %d, logs of %d, %d callers", round+1, w.limit, w.callers), measure.Load{
				Callers: w.callers, Keys: keys, Sequence: sequence,
			})
			if err != nil {
				return err
			}
			cells[i] = report.LogCell{Limit: w.limit, KeyCount: len(keys), Cell: report.Cell{
				Callers: w.callers, Contender: c.ID, Samples: append(cells[i].Samples, s),
			}}
		}
	}
	b.report.Logs = append(b.report.Logs, cells...)
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
	l.Client, l.Server = processor.Self, b.env.Processor(c)
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
	if d, differ := d.(contender.AmountDecider); differ {
		allowed = d.Allowed() // since it was opened, for this cell, and all for the first key
	}
	if counted > allowed+rounding || counted < allowed-left {
		return measure.Sample{}, fmt.Errorf("%s allowed %v for key %s and counted %v", c.ID, allowed, l.Keys[0], counted)
	}
	b.measured++
	progress("cell %d of %d: %s, %s: %.0f/s, %.1f + %.1f µs", b.measured, b.cells, what, c.ID, s.PerSecond(), s.Client/1e3, s.Server/1e3)
	return s, nil
}
