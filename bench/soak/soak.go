package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

// decisionTimeout is far above the time of a decision, so that one slow moment of the disk
// shows in the figures and ends no decision.
const decisionTimeout = 30 * time.Second

// denyCacheKeys is few enough that the cache of denials, which gets some 350 keys a minute,
// is full when the warm-up of two minutes ends. With more it grows for longer, to its bound.
const denyCacheKeys = 512

// soak runs everything.
func soak(ctx context.Context, p plan) (o *outcome, err error) {
	s, err := startServer(ctx, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	o = &outcome{plan: p, When: time.Now().UTC(), Go: runtime.Version(), PostgreSQL: s.Version(), CPUs: runtime.NumCPU()}
	before := runtime.NumGoroutine()
	if err := o.run(ctx, s); err != nil {
		return nil, err
	}
	o.GoroutinesBefore, o.GoroutinesAfter = before, settledGoroutines(ctx, before)
	o.judge()
	return o, nil
}

// settledGoroutines waits until no more goroutines run than before, and returns how many
// there are, at the latest after ten seconds.
func settledGoroutines(ctx context.Context, before int) int {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 200 {
		if runtime.NumGoroutine() <= before {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return runtime.NumGoroutine()
}

// run runs the traffic and collects the readings.
func (o *outcome) run(ctx context.Context, s *server) error {
	p := o.plan
	pool, err := s.pool(ctx, "limiter", callers)
	if err != nil {
		return err
	}
	defer pool.Close()
	own, err := s.pool(ctx, "application", callers/4)
	if err != nil {
		return err
	}
	defer own.Close()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	c := clock{time.Now(), p.Speed}
	const kept = 30 * time.Minute
	lim, err := limiter.New(pool, &limiter.Config{
		Timeout: decisionTimeout, Now: c.Now, DenyCacheKeys: denyCacheKeys, IdempotencyTTL: kept,
	})
	if err != nil {
		return err
	}
	defer func() { _ = lim.Close() }()
	total := p.Warm + p.Length + time.Minute // and what a slow machine takes
	t := &traffic{
		plan: p, limiter: lim, pool: own, clock: c,
		keys: newPopulation(p.Generation, p.arrivals(total)), watched: newWatched(p.Watched),
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	sweeper, err := s.startJanitor(ctx, p, c, fail)
	if err != nil {
		return err
	}
	defer sweeper.stop()
	t.start(ctx)
	defer t.stop()
	r := &reader{traffic: t, sweeper: sweeper, server: s, conn: conn, calls: newHistogram(), last: t.began}

	progress("warming up for %v", p.Warm)
	if err := t.until(ctx, t.began.Add(p.Warm)); err != nil {
		return err
	}
	if err := o.watch(ctx, t, r); err != nil {
		return err
	}
	t.stop()
	o.Cached = t.cached.Load()
	o.Bounds = checkWatched(t.watched)
	o.Overdue, err = checkRows(ctx, conn, t.keys, sweeper)
	return err
}

// watch takes the readings of the soak.
func (o *outcome) watch(ctx context.Context, t *traffic, r *reader) error {
	p := o.plan
	o.first, o.last = newHistogram(), newHistogram()
	start, err := r.read(ctx, 0, nil)
	if err != nil {
		return err
	}
	progress("%s", start.line(start, start))
	o.Readings = append(o.Readings, start)
	for at := p.Every; at <= p.Length; at += p.Every {
		if err := r.wait(ctx, t.began.Add(p.Warm+at)); err != nil {
			return err
		}
		var part = o.first
		switch {
		case at > p.Length-p.Part:
			part = o.last
		case at > p.Part:
			part = nil
		}
		g, err := r.read(ctx, at, part)
		if err != nil {
			return err
		}
		progress("%s", g.line(o.Readings[len(o.Readings)-1], start))
		o.Readings = append(o.Readings, g)
	}
	return nil
}

// overdue is rows that the janitor should have deleted.
type overdue struct {
	Rows int64 // that were compared
	Late int64 // that the rule says must be gone
	Odd  int64 // whose key was never in use
	// Oldest is the longest time for which a row that is still there has been empty, and
	// Allowed the longest that the rule allows, by the clock.
	Oldest  time.Duration
	Allowed time.Duration
	Example string
}

// checkRows compares each row's key with the time at which the answers said that it would
// be empty. By the janitor's rule it is gone an hour and a sweep later. A sweep is here
// three times the longest time from the end of one to the end of the next: a reservation
// that expires, and a row that becomes due, may each just miss one.
func checkRows(ctx context.Context, conn *pgx.Conn, keys *population, sweeper *sweeper) (o overdue, err error) {
	for _, name := range limitTables {
		now := sweeper.clock.Now()
		rows, err := conn.Query(ctx, "SELECT key FROM "+prefix+name)
		if err != nil {
			return o, err
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return o, err
		}
		_, longest := sweeper.state()
		o.Allowed = time.Hour + 3*longest
		for _, key := range all {
			n, ok := keyNumber(key)
			if !ok {
				continue // a watched key
			}
			o.add(name+" "+key, now, keys.emptyBy[n].Load())
		}
	}
	return o, nil
}

// add compares one row.
func (o *overdue) add(row string, now time.Time, emptyBy int64) {
	o.Rows++
	if emptyBy == 0 {
		o.Odd++
		o.Example = row
		return
	}
	empty := now.Sub(time.UnixMicro(emptyBy))
	o.Oldest = max(o.Oldest, empty)
	if empty > o.Allowed {
		o.Late++
		o.Example = fmt.Sprintf("%s has been empty for %v", row, empty.Round(time.Second))
	}
}
