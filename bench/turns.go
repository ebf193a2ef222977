package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
)

// part is measurements that take turns.
type part struct {
	sections []report.Section
	// prepare runs before the first; nil does nothing.
	prepare func(context.Context) error
	close   func() error // ends what prepare has begun; nil does nothing
	turns   []turn
}

// turn measures some cells, usually one, in a round.
type turn struct {
	cells []*report.Cell
	take  func(ctx context.Context, round int) ([]report.Figures, error)
}

// add adds a turn of one cell.
func (p *part) add(section, contender, setting string, take func(ctx context.Context, round int) (report.Figures, error)) {
	cell := &report.Cell{Section: section, Contender: contender, Setting: setting}
	p.turns = append(p.turns, turn{[]*report.Cell{cell}, func(ctx context.Context, round int) ([]report.Figures, error) {
		f, err := take(ctx, round)
		return []report.Figures{f}, err
	}})
}

// parts returns the selected measurements. Contenders that are compared with each other are
// adjacent, so that little time lies between them.
func (b *bench) parts() (parts []part) {
	for _, p := range []part{b.grid(), b.logs(), b.denial(), b.spend(), b.load(), b.leases(), b.growth(), b.attack(), b.cluster(), b.serve()} {
		p.turns = slices.DeleteFunc(p.turns, func(t turn) bool {
			return b.only != nil && !slices.ContainsFunc(t.cells, func(c *report.Cell) bool { return b.only.MatchString(c.Name()) })
		})
		for _, t := range p.turns {
			b.report.Cells = append(b.report.Cells, t.cells...)
		}
		b.cells += len(p.turns) * b.rounds
		b.report.Sections = append(b.report.Sections, p.sections...)
		parts = append(parts, p)
	}
	return parts
}

// measure measures a part's turns in each round. Every other round goes backwards, so that
// a machine that gets slower or faster favours none.
func (b *bench) measure(ctx context.Context, p part) (err error) {
	if p.close != nil {
		defer func() { err = errors.Join(err, p.close()) }()
	}
	if p.prepare != nil && len(p.turns) > 0 {
		if err := p.prepare(ctx); err != nil {
			return err
		}
	}
	for round := range b.rounds {
		for place := range p.turns {
			t := p.turns[order(round, place, len(p.turns))]
			list, err := t.take(ctx, round)
			if err != nil {
				return fmt.Errorf("%s: %w", t.cells[0].Name(), err)
			}
			b.measured++
			for i, f := range list {
				c := t.cells[i]
				c.Rounds = append(c.Rounds, f)
				progress("%d of %d: round %d, %s: %v", b.measured, b.cells, round+1, c.Name(), f)
			}
		}
	}
	return nil
}

// order returns which of n turns comes at a place in a round.
func order(round, place, n int) int {
	if round%2 == 1 {
		return n - 1 - place
	}
	return place
}

// figures converts a sample for the report.
func figures(s measure.Sample) report.Figures {
	f := report.Figures{
		report.PerSecond: s.PerSecond(), report.P50: float64(s.P50), report.P99: float64(s.P99), report.P999: float64(s.P999),
		report.Late: float64(s.Late), report.Allocs: s.Allocs, report.Client: s.Client, report.Service: s.Service, report.Server: s.Server,
	}
	for _, name := range []report.Figure{report.Client, report.Service, report.Server} {
		if f[name] == measure.Unknown {
			delete(f, name)
		}
	}
	return f
}

// counted fails unless a Decider with a rule of contender.Counting has counted what it
// allowed.
func counted(ctx context.Context, d contender.Decider, keys []string, allowed float64) error {
	sum := 0.0
	for _, key := range keys {
		n, err := d.Used(ctx, key)
		if err != nil {
			return err
		}
		sum += n
	}
	if math.Round(sum) != allowed {
		return fmt.Errorf("%s and %d more were counted %v times and allowed %v times", keys[0], len(keys)-1, sum, allowed)
	}
	return nil
}

// inParallel runs f n times at once and returns the first error.
func inParallel(n int, f func(i int) error) error {
	var all errgroup.Group
	for i := range n {
		all.Go(func() error { return f(i) })
	}
	return all.Wait()
}
