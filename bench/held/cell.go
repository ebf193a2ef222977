package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// What is measured: callers request other keys while the row of one key is locked for
// holdFor of every holdEvery.
const (
	callers   = 64
	keys      = 100
	holdFor   = 600 * time.Millisecond
	holdEvery = 800 * time.Millisecond
)

// pools are the sizes of the limiter's pool: the benchmark's, and the default minimum of a
// pool, one connection of which waits for locked rows.
var pools = []int32{16, 4}

// heldKey is the key whose row is locked; it is in the middle of the others.
const heldKey = "user:000050:held"

// cell is one measurement.
type cell struct {
	Connections int32
	Held        bool
	Others      measure.Sample // of the other keys
	Holds       int64          // transactions that locked the row, including the warm-up
	Answered    int64          // requests for the locked key, including the warm-up
}

// decisionTimeout is far above the time of a decision, so that one slow moment of the disk
// shows in the figures and ends no decision.
const decisionTimeout = 30 * time.Second

func migrate(ctx context.Context, pool *pgxpool.Pool) error { return migrations.Up(ctx, pool) }

// policy allows everything and leaks next to nothing, so that levels count.
func (c *cell) policy() limiter.Policy {
	return limiter.Policy{
		Name: fmt.Sprintf("held-%d-%v", c.Connections, c.Held), Algorithm: limiter.TokenBucket,
		Limit: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 1e9, Durability: limiter.Relaxed,
	}
}

// measure measures the cell. The callers never wait for the locked key, otherwise all of
// them soon would: each request for it runs in a separate goroutine, as often as one for
// any other key.
func (c *cell) measure(ctx context.Context, config *pgxpool.Config, p plan) error {
	config.MaxConns, config.MinConns = c.Connections, c.Connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := limiter.New(pool, &limiter.Config{DisableDenyCache: true, Timeout: decisionTimeout})
	if err != nil {
		return err
	}
	policy := c.policy()
	if _, err := l.Allow(ctx, policy, heldKey); err != nil { // it has a row
		return err
	}
	c.Answered++

	holding, release := context.WithCancel(ctx)
	defer release()
	var wg sync.WaitGroup
	holder := make(chan error, 1)
	if c.Held {
		conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
		if err != nil {
			return err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		wg.Go(func() { holder <- c.hold(holding, conn, l, policy) })
	}
	var asked, answered atomic.Int64
	failed := make(chan error, 1)
	askHeld := func() {
		if _, err := l.Allow(ctx, policy, heldKey); err != nil {
			select {
			case failed <- err:
			default: // the first counts
			}
			return
		}
		answered.Add(1)
	}
	c.Others, err = measure.Run(ctx, measure.Load{
		Callers: callers, Warmup: p.Warmup, Duration: p.Length,
		Keys: measure.Keys(keys - 1), Sequence: measure.Evenly(keys - 1),
		Decide: func(ctx context.Context, key string) (bool, error) {
			if asked.Add(1)%(keys-1) == 0 {
				wg.Go(askHeld)
			}
			r, err := l.Allow(ctx, policy, key)
			return r.Allowed, err
		},
	})
	release()
	wg.Wait()
	c.Answered += answered.Load()
	for _, errs := range []chan error{failed, holder} {
		select {
		case e := <-errs:
			err = errors.Join(err, e)
		default:
		}
	}
	if err != nil {
		return err
	}
	return c.count(ctx, l)
}

// hold locks the row repeatedly until ctx ends.
func (c *cell) hold(ctx context.Context, conn *pgx.Conn, l *limiter.Limiter, policy limiter.Policy) error {
	whole := context.WithoutCancel(ctx) // of a transaction
	for ctx.Err() == nil {
		err := pgx.BeginFunc(whole, conn, func(tx pgx.Tx) error {
			_, err := l.InTx(tx).Allow(whole, policy, heldKey)
			pause(ctx, holdFor)
			return err
		})
		if err != nil {
			return fmt.Errorf("the transaction that holds the row: %w", err)
		}
		c.Holds++
		pause(ctx, holdEvery-holdFor)
	}
	return nil
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// count compares what was counted with what was answered.
func (c *cell) count(ctx context.Context, l *limiter.Limiter) error {
	for _, k := range []struct {
		key  string
		want int64
	}{
		{measure.Keys(1)[0], c.Others.FirstCount},
		{heldKey, c.Answered + c.Holds},
	} {
		r, err := l.Check(ctx, c.policy(), k.key, 0)
		if err != nil {
			return err
		}
		if n := int64(math.Round(r.Level)); n != k.want {
			return fmt.Errorf("%s was counted %d times and allowed %d times", k.key, n, k.want)
		}
	}
	return nil
}
