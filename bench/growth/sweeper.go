package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/janitor"
)

// sweeper is a running janitor with its own connection.
type sweeper struct {
	janitor *janitor.Janitor
	pool    *pgxpool.Pool
	swept   chan struct{} // has a token after a sweep
	count   atomic.Int64  // of sweeps
	cancel  context.CancelFunc
	ended   chan struct{}
}

// startJanitor runs a janitor every interval until ctx ends. Its warnings go to fail.
func (d *database) startJanitor(ctx context.Context, interval time.Duration, fail func(error)) (*sweeper, error) {
	pool, err := d.pool(ctx, 1)
	if err != nil {
		return nil, err
	}
	s := &sweeper{pool: pool, swept: make(chan struct{}, 1), ended: make(chan struct{})}
	s.janitor, err = janitor.New(pool, &janitor.Config{
		Interval: interval,
		Logger:   slog.New(slog.NewTextHandler(complaints(fail), &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnSweep: func(janitor.Removed) {
			s.count.Add(1)
			select {
			case s.swept <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		pool.Close()
		return nil, err
	}
	ctx, s.cancel = context.WithCancel(ctx)
	go func() {
		defer close(s.ended)
		if err := s.janitor.Run(ctx); err != nil {
			fail(err)
		}
	}()
	return s, nil
}

// complaints is a log in which each line is a failure.
type complaints func(error)

func (c complaints) Write(line []byte) (int, error) {
	c(errors.New(strings.TrimSpace(string(line))))
	return len(line), nil
}

// stop ends it and returns when it has ended.
func (s *sweeper) stop() {
	s.cancel()
	<-s.ended
	s.pool.Close()
}

func (s *sweeper) sweeps() int { return int(s.count.Load()) }

// removed returns how many rows it has deleted, including those of a running sweep.
func (s *sweeper) removed() int64 { return s.janitor.Removed().Total() }

// await waits until it has deleted that many rows in total.
func (s *sweeper) await(ctx context.Context, rows int64) error {
	const patience = 10 * time.Minute
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for s.removed() < rows {
		select {
		case <-s.swept:
		case <-timer.C:
			return fmt.Errorf("the janitor has deleted %d of %d rows within %v", s.removed(), rows, patience)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
