package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
)

// The load that is measured.
const (
	rate         = 1000 // requests per second for one key
	surgeTimes   = 15   // as many in the surge
	surgeCallers = 512  // of the key that surges: enough that requests do not wait for callers
	otherKeys    = 1000
	otherRate    = 1000 // requests per second for the other keys together
	otherCallers = 50
)

// hotKey sorts between the other keys.
const hotKey = "user:000500:hot"

// load measures requests that arrive by a clock: many for one key, and a surge on one key
// while others are used steadily.
func (b *bench) load() part {
	more := []report.Figure{report.P50, report.P999, report.Late}
	p := part{sections: []report.Section{
		{
			Name: "load-clock", Title: fmt.Sprintf("one key, %d requests a second", rate), By: "callers", Figure: report.P99, More: more,
			Note: "A time counts from the moment at which the request was due, so it includes how late the clock was.",
		},
		{
			Name: "load-surge", Title: "a surge on one key", By: "durability", Figure: report.P99, More: more,
			Note: fmt.Sprintf("%d other keys get %d requests a second together. The one key gets %d, then %d.", otherKeys, otherRate, rate, surgeTimes*rate),
		},
	}}
	for _, n := range []int{20, 50} {
		for _, c := range []contender.Contender{contender.BareOn, contender.BatchDurable, contender.BatchRelaxed} {
			p.add("load-clock", c.ID, strconv.Itoa(n), func(ctx context.Context, _ int) (report.Figures, error) {
				d, err := b.open(ctx, c, contender.Counting(b.name()))
				if err != nil {
					return nil, err
				}
				s, err := b.byClock(ctx, d, time.Now(), n, []string{hotKey}, rate)
				if err != nil {
					return nil, err
				}
				return figures(s[1]), counted(ctx, d, []string{hotKey}, decisions(s))
			})
		}
	}
	for _, c := range []contender.Contender{contender.BatchDurable, contender.BatchRelaxed} {
		var cells []*report.Cell // by keys and stage
		for _, name := range []string{"others, before", "others, surge", "the key, before", "the key, surge"} {
			cells = append(cells, &report.Cell{Section: "load-surge", Contender: name, Setting: strings.TrimPrefix(c.ID, "batch-")})
		}
		p.turns = append(p.turns, turn{cells, func(ctx context.Context, _ int) (list []report.Figures, err error) {
			d, err := b.open(ctx, c, contender.Counting(b.name()))
			if err != nil {
				return nil, err
			}
			start, others := time.Now(), measure.Keys(otherKeys)
			var of [2][]measure.Sample // the others and the key
			err = inParallel(2, func(i int) (err error) {
				if i == 0 {
					of[i], err = b.byClock(ctx, d, start, otherCallers, others, otherRate, otherRate)
				} else {
					of[i], err = b.byClock(ctx, d, start, surgeCallers, []string{hotKey}, rate, surgeTimes*rate)
				}
				return err
			})
			if err != nil {
				return nil, err
			}
			for i := range cells {
				list = append(list, figures(of[i/2][1+i%2]))
			}
			return list, errors.Join(counted(ctx, d, others, decisions(of[0])), counted(ctx, d, []string{hotKey}, decisions(of[1])))
		}})
	}
	return p
}

// byClock measures stages with these rates after a warm-up at the first.
func (b *bench) byClock(ctx context.Context, d contender.Decider, start time.Time, callers int, keys []string, rates ...float64) ([]measure.Sample, error) {
	const ahead = 10 * time.Millisecond // so that several loads begin together
	l := measure.OpenLoad{
		Begin: start.Add(ahead), Stages: []measure.Stage{{PerSecond: rates[0], Length: b.long().warmup}},
		Callers: callers, Keys: keys, Sequence: measure.Evenly(len(keys), 2), Decide: d.Decide,
	}
	for _, r := range rates {
		l.Stages = append(l.Stages, measure.Stage{PerSecond: r, Length: b.long().duration})
	}
	return measure.RunOpen(ctx, l)
}

// decisions returns how many were made in all stages.
func decisions(samples []measure.Sample) (n float64) {
	for _, s := range samples {
		n += float64(s.Decisions)
	}
	return n
}
