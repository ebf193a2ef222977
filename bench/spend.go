package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
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

// spend counts a unit in a transaction.
func (s *spender) spend(ctx context.Context, tx pgx.Tx, key string) error {
	if s.bare {
		var n int64
		return tx.QueryRow(ctx, contender.BareUpsert, s.Policy.Name, key).Scan(&n)
	}
	r, err := s.InTx(tx).Allow(ctx, s.Policy, key)
	return allowed(r.Allowed, err)
}

func allowed(ok bool, err error) error {
	if err == nil && !ok {
		err = errors.New("denied, though the limit was far")
	}
	return err
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
				f, err := b.spends(ctx, n, 10_000, 1, limiter.Durable, c.bare, func(ctx context.Context, s *spender, keys []string) error {
					return pgx.BeginFunc(ctx, b.env.Pool, func(tx pgx.Tx) error {
						if _, err := tx.Exec(ctx, insertOrder, keys[0]); err != nil {
							return err
						}
						start := time.Now()
						err := s.spend(ctx, tx, keys[0])
						took := time.Since(start)
						mu.Lock()
						defer mu.Unlock()
						_ = times.RecordValue(int64(took)) // what is longer than its range ended the run
						return err
					})
				})
				return []report.Figures{f, {report.P50: float64(times.ValueAtQuantile(50)), report.P99: float64(times.ValueAtQuantile(99))}}, err
			}})
		}
	}
	for _, d := range []limiter.Durability{limiter.Relaxed, limiter.Durable} {
		for _, c := range []struct {
			name   string
			bare   bool
			decide func(ctx context.Context, s *spender, keys []string) error
		}{
			{"two upserts", true, func(ctx context.Context, s *spender, keys []string) error {
				slices.Sort(keys)
				return pgx.BeginFunc(ctx, b.env.Pool, func(tx pgx.Tx) error {
					return errors.Join(s.spend(ctx, tx, keys[0]), s.spend(ctx, tx, keys[1]))
				})
			}},
			{"AllowAll", false, func(ctx context.Context, s *spender, keys []string) error {
				all, err := s.AllowAll(ctx, s.Policy.Request(keys[0], 1), s.Policy.Request(keys[1], 1))
				return allowed(all.Allowed, err)
			}},
			{"AllowAll inside", false, func(ctx context.Context, s *spender, keys []string) error {
				return pgx.BeginFunc(ctx, b.env.Pool, func(tx pgx.Tx) error {
					all, err := s.InTx(tx).AllowAll(ctx, s.Policy.Request(keys[0], 1), s.Policy.Request(keys[1], 1))
					return allowed(all.Allowed, err)
				})
			}},
		} {
			p.add("spend-two", c.name, d.String(), func(ctx context.Context, _ int) (report.Figures, error) {
				return b.spends(ctx, 64, 10, 2, d, c.bare, c.decide)
			})
		}
	}
	return p
}

// spends measures a way to count a unit for each of n different random keys of so many,
// and compares the units it counted with those requested.
func (b *bench) spends(ctx context.Context, callers, keys, n int, durability limiter.Durability, bare bool,
	decide func(ctx context.Context, s *spender, keys []string) error) (report.Figures, error) {
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
	var units atomic.Int64
	sample, err := measure.Run(ctx, measure.Load{
		Callers: callers, Warmup: b.long().warmup, Duration: b.long().duration, Keys: all, Sequence: measure.Evenly(keys, 2),
		Decide: func(ctx context.Context, key string) (bool, error) {
			chosen := []string{key}
			for len(chosen) < n {
				if other := all[rand.IntN(keys)]; other != key {
					chosen = append(chosen, other)
				}
			}
			err := decide(ctx, s, chosen)
			if err == nil {
				units.Add(int64(n))
			}
			return err == nil, err
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
	return figures(sample), counted(ctx, d, all, units.Load())
}
