package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/report"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/limiter"
)

// What is measured: callers request other keys while the row of one key is locked for
// holdFor of every holdEvery.
const (
	heldCallers = 64
	heldOthers  = 99
	holdFor     = 600 * time.Millisecond
	holdEvery   = 800 * time.Millisecond
)

// heldKey is the key whose row is locked; it is in the middle of the others.
const heldKey = "user:000050:held"

// held measures decisions while an application's transaction keeps one key's row locked
// most of the time, with the benchmark's pool and with the smallest default of a pool.
func (b *bench) held() part {
	p := part{sections: []report.Section{{
		Name: "held", Title: "other keys while a row is locked", By: "size of the pool", Figure: report.P99, More: []report.Figure{report.P50, report.P999, report.PerSecond},
		Note: fmt.Sprintf("%d callers request %d keys. One more is requested as often; a transaction locks its row %v of every %v.", heldCallers, heldOthers, holdFor, holdEvery),
	}}}
	for _, connections := range []int32{servers.PoolSize, 4} {
		for _, name := range []string{"others, free", "others, locked"} {
			p.add("held", name, fmt.Sprint(connections), func(ctx context.Context, _ int) (report.Figures, error) {
				return b.holdRow(ctx, connections, name == "others, locked")
			})
		}
	}
	return p
}

// holdRow measures a cell. The callers never wait for the locked key, otherwise all of them
// soon would: each request for it runs in a separate goroutine, as often as one for any
// other key.
func (b *bench) holdRow(ctx context.Context, connections int32, held bool) (report.Figures, error) {
	pool, err := b.env.Postgres.Connect(ctx, connections, func(c *pgx.ConnConfig) { c.Database = "bench" })
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	l, err := contender.NewLimiter(pool, true, contender.Counting(b.name()).Policy(limiter.Relaxed))
	if err != nil {
		return nil, err
	}
	if _, err := l.Decide(ctx, heldKey); err != nil { // it has a row
		return nil, err
	}
	var grants, asked atomic.Int64 // of the locked key, of the others
	grants.Add(1)

	holding, release := context.WithCancel(ctx)
	defer release()
	var beside errgroup.Group
	if held {
		conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
		if err != nil {
			return nil, err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		beside.Go(func() error { return hold(holding, conn, l, &grants) })
	}
	s, err := measure.Run(ctx, measure.Load{
		Callers: heldCallers, Warmup: b.long().warmup, Duration: b.long().duration,
		Keys: measure.Keys(heldOthers), Sequence: measure.Evenly(heldOthers, 2),
		Decide: func(loading context.Context, key string) (float64, error) {
			if asked.Add(1)%heldOthers == 0 {
				beside.Go(func() error {
					_, err := l.Decide(ctx, heldKey)
					grants.Add(1)
					return err
				})
			}
			return l.Decide(loading, key)
		},
	})
	release()
	if err := errors.Join(err, beside.Wait()); err != nil {
		return nil, err
	}
	return figures(s), errors.Join(
		counted(ctx, l, []string{heldKey}, float64(grants.Load())),
		counted(ctx, l, measure.Keys(1), s.First))
}

// hold locks the row repeatedly until ctx ends.
func hold(ctx context.Context, conn *pgx.Conn, l *contender.Limiter, grants *atomic.Int64) error {
	whole := context.WithoutCancel(ctx) // of a transaction
	for ctx.Err() == nil {
		err := pgx.BeginFunc(whole, conn, func(tx pgx.Tx) error {
			_, err := l.InTx(tx).Allow(whole, l.Policy, heldKey)
			measure.Pause(ctx, holdFor)
			return err
		})
		if err != nil {
			return fmt.Errorf("the transaction that holds the row: %w", err)
		}
		grants.Add(1)
		measure.Pause(ctx, holdEvery-holdFor)
	}
	return nil
}
