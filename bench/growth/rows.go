package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/bench/memory"
	"github.com/pglimit/pglimit/limiter"
)

// rowsPolicy allows everything, and its rows outlast the measurement.
var rowsPolicy = limiter.Policy{
	Name: "growth", Algorithm: limiter.TokenBucket, Limit: 1_000_000, Period: time.Hour, Durability: limiter.Relaxed,
}

// cell is one measurement, for a number of rows and callers.
type cell struct {
	P50, P99  time.Duration
	PerSecond float64
}

// sizeResult is all measurements for one number of rows.
type sizeResult struct {
	Rows          int64
	Cells         map[int][]cell // by callers, one for each round
	Before, After stats          // of the table: filled, and at the end
	Memory        memory.Use     // with 16 callers in the last round
}

// measureRows fills a separate database for each size and then measures them in turn,
// round after round, so that a machine whose speed drifts slows all of them.
func measureRows(ctx context.Context, s *server, p plan) (results []sizeResult, err error) {
	var databases []*database
	for _, rows := range p.Rows {
		d, err := s.createDatabase(ctx, fmt.Sprintf("rows_%d", rows))
		if err != nil {
			return nil, err
		}
		databases = append(databases, d)
		before, err := d.fillRows(ctx, rows)
		if err != nil {
			return nil, err
		}
		results = append(results, sizeResult{Rows: rows, Cells: map[int][]cell{}, Before: before})
	}
	for round := range p.Rounds {
		for _, n := range []int{1, callers} {
			for i := range databases {
				if round%2 == 1 { // backwards, against drift within a round
					i = len(databases) - 1 - i
				}
				r := &results[i]
				c, m, err := databases[i].measureCell(ctx, n, r.Rows, uint64(round), p)
				if err != nil {
					return nil, err
				}
				r.Cells[n] = append(r.Cells[n], c)
				r.Memory = m
				progress("round %d of %d: %s rows, callers %d: p50 %v, p99 %v, %s/s", round+1, p.Rounds,
					grouped(r.Rows), n, c.P50.Round(time.Microsecond), c.P99.Round(time.Microsecond), grouped(int64(c.PerSecond)))
			}
		}
	}
	for i, d := range databases {
		if err := d.settle(ctx, 1); err != nil {
			return nil, err
		}
		if results[i].After, err = readStats(ctx, d.conn); err != nil {
			return nil, err
		}
		if err := d.drop(ctx); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (d *database) fillRows(ctx context.Context, rows int64) (stats, error) {
	pool, err := d.pool(ctx, 1)
	if err != nil {
		return stats{}, err
	}
	defer pool.Close()
	l, err := newLimiter(pool)
	if err != nil {
		return stats{}, err
	}
	if err := fill(ctx, d.conn, l, rowsPolicy, rows); err != nil {
		return stats{}, err
	}
	pool.Close()
	if err := d.settle(ctx, 1); err != nil {
		return stats{}, err
	}
	return readStats(ctx, d.conn)
}

// measureCell measures one cell. The checkpoint before it keeps earlier changes from being
// written out meanwhile. It also means that the first change of each page logs the whole
// page.
func (d *database) measureCell(ctx context.Context, n int, rows int64, seed uint64, p plan) (cell, memory.Use, error) {
	pool, err := d.pool(ctx, callers)
	if err != nil {
		return cell{}, memory.Use{}, err
	}
	defer pool.Close()
	lim, err := newLimiter(pool)
	if err != nil {
		return cell{}, memory.Use{}, err
	}
	if _, err := d.conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return cell{}, memory.Use{}, err
	}
	l := load{limiter: lim, policy: rowsPolicy, callers: n, keys: evenly(rows, 2*seed), mustAllow: true}
	if _, err := l.run(ctx, p.Warm); err != nil {
		return cell{}, memory.Use{}, err
	}
	l.keys = evenly(rows, 2*seed+1)
	t, err := l.run(ctx, p.Cell)
	if err == nil && t.decisions() == 0 {
		err = errors.New("no decision was made")
	}
	if err != nil {
		return cell{}, memory.Use{}, err
	}
	return cell{t.quantile(50), t.quantile(99), t.perSecond()}, memory.Read(d.server.postmaster), nil
}

// median returns the median of f over all elements; for an even number the mean of the
// middle two. There must be at least one.
func median[T any](of []T, f func(T) float64) float64 {
	var values []float64
	for _, v := range of {
		values = append(values, f(v))
	}
	slices.Sort(values)
	half := len(values) / 2
	if len(values)%2 == 0 {
		return (values[half-1] + values[half]) / 2
	}
	return values[half]
}

// ratios returns, per round, the p50 with the most rows divided by that with the fewest.
func ratios(results []sizeResult, n int) (of []float64) {
	first, last := results[0].Cells[n], results[len(results)-1].Cells[n]
	for i := range first {
		of = append(of, float64(last[i].P50)/float64(first[i].P50))
	}
	return of
}
