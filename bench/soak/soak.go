// Package soak runs mixed traffic over keys that come and go, with the janitor running, and
// checks that nothing grows: memory, rows, bytes, goroutines and the time of an operation.
//
// The janitor deletes a row within an hour after it became empty. To see rows of all ages
// end within ten minutes, the limiter and the janitor share a clock that runs 120 times as
// fast (Config.Now): an hour passes in 30 seconds, and a soak of ten minutes covers 20
// hours. The rule itself is unchanged. Durations of requests, and all figures per second,
// are by the real clock.
package soak

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/measure"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// Run starts a PostgreSQL, runs the soak on it for twelve minutes, or quick for half a
// minute, and reports its progress on the standard error.
func Run(ctx context.Context, quick bool) (_ *Outcome, err error) {
	o := &Outcome{plan: full}
	var further map[string]string
	if quick { // it ends before autovacuum's default of a minute
		o.plan, further = short, map[string]string{"autovacuum_naptime": "2s"}
	}
	s, err := servers.StartPostgres(ctx, further)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	o.conditions = fmt.Sprintf("%s, PostgreSQL %s, %s, %d CPUs for callers and server",
		time.Now().UTC().Format(time.DateOnly), s.Version(), runtime.Version(), runtime.NumCPU())
	before := runtime.NumGoroutine()
	if err := o.run(ctx, s); err != nil {
		return nil, err
	}
	o.goroutines = [2]int{before, settled(ctx, before)}
	o.judge()
	return o, nil
}

// settled waits up to two seconds until no more goroutines run than enough, and returns how
// many there are.
func settled(ctx context.Context, enough int) int {
	for range 40 {
		if runtime.NumGoroutine() <= enough {
			break
		}
		measure.Pause(ctx, 50*time.Millisecond)
	}
	return runtime.NumGoroutine()
}

// run runs the traffic and takes the readings, each between two loads.
func (o *Outcome) run(ctx context.Context, s *servers.Postgres) error {
	p := o.plan
	pool, err := s.NewDatabase(ctx, "soak", callers)
	if err != nil {
		return err
	}
	defer pool.Close()
	own, err := s.Connect(ctx, callers/2, func(c *pgx.ConnConfig) { c.Database = "soak" })
	if err != nil {
		return err
	}
	defer own.Close()

	c := clock{time.Now(), p.speed}
	lim, err := limiter.New(pool, &limiter.Config{
		Now: c.Now, IdempotencyTTL: 30 * time.Minute,
		// One slow moment of the disk shows in the figures and ends no operation.
		Timeout: 30 * time.Second,
		// Few enough that the cache of denials, which gets some 350 keys a minute, is full when
		// the warm-up of two minutes ends. With more it grows for longer, to its bound.
		DenyCacheKeys: 512,
	})
	if err != nil {
		return err
	}
	defer func() { _ = lim.Close() }()
	const slack = time.Minute // that a slow machine takes
	t := &traffic{
		plan: p, limiter: lim, pool: own, clock: c,
		keys: newPopulation(p.generation, p.arrivals(p.warm+p.length+slack)),
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	w, stop, err := startJanitor(ctx, own, p, c, fail)
	if err != nil {
		return err
	}
	defer stop()

	r := &reader{pool: own, traffic: t, janitor: w.janitor, postmaster: s.Postmaster}
	for at := time.Duration(0); at <= p.length; at += p.every {
		load := measure.Load{
			Callers: callers, PerSecond: float64(p.rate), Duration: p.every, Keys: []string{""}, Sequence: []uint32{0}, Decide: t.request,
		}
		if at == 0 {
			load.Duration = p.warm
			progress("warming up for %v", p.warm)
		}
		sample, err := measure.Run(ctx, load)
		if err != nil {
			return err
		}
		g, err := r.read(ctx, at, sample)
		if err != nil {
			return err
		}
		o.readings = append(o.readings, g)
		progress("%v: %v", at, g.Figures)
	}
	o.overdue, err = checkRows(ctx, own, t.keys, w)
	return err
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "soak: %s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// sweeps is a running janitor.
type sweeps struct {
	janitor *janitor.Janitor
	clock   clock

	mu   sync.Mutex
	last time.Time     // the clock's time at the end of the last sweep
	most time.Duration // from the end of one sweep to the end of the next
}

// startJanitor runs a janitor until stop is called. Its warnings go to fail.
func startJanitor(ctx context.Context, pool *pgxpool.Pool, p plan, c clock, fail func(error)) (w *sweeps, stop func(), err error) {
	w = &sweeps{clock: c, last: c.Now()}
	const lease = 30 * time.Second // by the real clock
	w.janitor, err = janitor.New(pool, &janitor.Config{
		Interval: p.sweep, Lease: lease * time.Duration(p.speed), Now: c.Now, OnSweep: func(janitor.Removed) { w.longest() },
		Logger: slog.New(slog.NewTextHandler(complaints(fail), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := w.janitor.Run(ctx); err != nil {
			fail(err)
		}
	}()
	return w, func() { cancel(); <-ended }, nil
}

// longest records that a sweep ends now, and returns the longest time from the end of one
// to the end of the next, by the clock.
func (w *sweeps) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	w.most, w.last = max(w.most, now.Sub(w.last)), now
	return w.most
}

// complaints is a log in which each line is a failure.
type complaints func(error)

func (c complaints) Write(line []byte) (int, error) {
	c(errors.New("the janitor: " + strings.TrimSpace(string(line))))
	return len(line), nil
}
