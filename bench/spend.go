package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

const (
	orders      = `CREATE TABLE IF NOT EXISTS spend_orders (account text NOT NULL, cents bigint NOT NULL)`
	insertOrder = `INSERT INTO spend_orders (account, cents) VALUES ($1, 1)`
)

// spender counts units in bench_bare, or in a limiter's table.
type spender struct {
	*contender.Limiter
	bare bool
}

// spend counts a unit for each key in a transaction, and returns how many.
func (s *spender) spend(ctx context.Context, tx pgx.Tx, keys ...string) (units float64, err error) {
	for _, key := range keys {
		if s.bare {
			var n int64
			err, units = tx.QueryRow(ctx, contender.BareUpsert, s.Policy.Name, key).Scan(&n), units+1
		} else {
			var r limiter.Result
			r, err = s.InTx(tx).Allow(ctx, s.Policy, key)
			units += r.Granted
		}
		if err != nil {
			return 0, err
		}
	}
	return units, nil
}

// all requests a unit for each of two keys.
func (s *spender) all(ctx context.Context, d verbs.Limiter, keys []string) (units float64, err error) {
	all, err := d.AllowAll(ctx, s.Policy.Request(keys[0], 1), s.Policy.Request(keys[1], 1))
	for _, r := range all.PerRequest {
		units += r.Granted
	}
	return units, err
}

// spend measures limits that commit with an application's data, compared with bare upserts:
// a spend in a transaction, and two limits at once.
func (b *bench) spend() part {
	p := part{
		sections: []report.Section{
			{
				Name: "spend-order", Title: "an order and its spend", By: "callers", Figure: report.P50, More: []report.Figure{report.P99, report.PerSecond},
				Note: "BEGIN; INSERT of an order; bare upsert or `InTx(tx).Allow`; COMMIT. Durable, 10,000 accounts.",
			},
			{
				Name: "spend-two", Title: "two of ten hot keys, 64 callers", By: "durability", Figure: report.PerSecond, More: []report.Figure{report.P99},
				Note: "Two upserts, or AllowAll inside a transaction: four round trips. AllowAll: one.",
			},
		},
		prepare: func(ctx context.Context) error {
			_, err := b.env.Pool.Exec(ctx, orders)
			return err
		},
	}
	for _, n := range []int{1, 16} {
		for _, c := range []struct {
			whole, alone string
			bare         bool
		}{{"order with upsert", "the upsert alone", true}, {"order with spend", "the spend alone", false}} {
			whole := &report.Cell{Section: "spend-order", Contender: c.whole, Setting: strconv.Itoa(n)}
			alone := &report.Cell{Section: "spend-order", Contender: c.alone, Setting: strconv.Itoa(n)}
			p.turns = append(p.turns, turn{[]*report.Cell{whole, alone}, func(ctx context.Context, _ int) ([]report.Figures, error) {
				var mu sync.Mutex
				times := hdrhistogram.New(100, int64(5*time.Minute), 3)
				f, err := b.spends(ctx, n, 10_000, 1, limiter.Durable, c.bare, func(ctx context.Context, s *spender, tx pgx.Tx, keys []string) (float64, error) {
					if _, err := tx.Exec(ctx, insertOrder, keys[0]); err != nil {
						return 0, err
					}
					start := time.Now()
					units, err := s.spend(ctx, tx, keys...)
					took := time.Since(start)
					mu.Lock()
					defer mu.Unlock()
					_ = times.RecordValue(int64(took)) // what is longer than its range ended the run
					return units, err
				})
				return []report.Figures{f, {report.P50: float64(times.ValueAtQuantile(50)), report.P99: float64(times.ValueAtQuantile(99))}}, err
			}})
		}
	}
	for _, d := range []limiter.Durability{limiter.Relaxed, limiter.Durable} {
		for _, c := range []struct {
			name   string
			bare   bool
			inside way // nil: AllowAll without a transaction
		}{
			{"two upserts", true, func(ctx context.Context, s *spender, tx pgx.Tx, keys []string) (float64, error) {
				slices.Sort(keys)
				return s.spend(ctx, tx, keys...)
			}},
			{"AllowAll", false, nil},
			{"AllowAll inside", false, func(ctx context.Context, s *spender, tx pgx.Tx, keys []string) (float64, error) {
				return s.all(ctx, s.InTx(tx), keys)
			}},
		} {
			p.add("spend-two", c.name, d.String(), func(ctx context.Context, _ int) (report.Figures, error) {
				return b.spends(ctx, 64, 10, 2, d, c.bare, c.inside)
			})
		}
	}
	return p
}

// way counts a unit for each key in a transaction, and returns how many.
type way func(ctx context.Context, s *spender, tx pgx.Tx, keys []string) (units float64, err error)

// spends measures a way to count a unit for each of n different random ones of the keys,
// and compares the units it counted with those requested.
func (b *bench) spends(ctx context.Context, callers, keys, n int, durability limiter.Durability, bare bool, inside way) (report.Figures, error) {
	commit := "on"
	if durability == limiter.Relaxed {
		commit = "off"
	}
	if err := servers.SetCommit(ctx, b.env.Pool, commit); err != nil {
		return nil, err
	}
	rule := contender.Counting(b.name())
	l, err := contender.NewLimiter(b.env.Pool, true, rule.Policy(durability))
	if err != nil {
		return nil, err
	}
	s, all := &spender{l, bare}, measure.Keys(keys)
	sample, err := measure.Run(ctx, measure.Load{
		Callers: callers, Warmup: b.long().warmup, Duration: b.long().duration, Keys: all, Sequence: measure.Evenly(keys, 2),
		Decide: func(ctx context.Context, key string) (units float64, err error) {
			chosen := []string{key}
			for len(chosen) < n {
				if other := all[rand.IntN(keys)]; other != key {
					chosen = append(chosen, other)
				}
			}
			if inside == nil {
				return s.all(ctx, s, chosen)
			}
			err = pgx.BeginFunc(ctx, b.env.Pool, func(tx pgx.Tx) error {
				units, err = inside(ctx, s, tx, chosen)
				return err
			})
			return units, err
		},
	})
	if err != nil {
		return nil, err
	}
	var d contender.Decider = l
	if bare {
		if d, err = contender.BareOn.Open(b.env, rule); err != nil {
			return nil, err
		}
	}
	return figures(sample), counted(ctx, d, all, sample.Units)
}
