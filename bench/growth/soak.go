package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/bench/memory"
	"github.com/pglimit/pglimit/limiter"
)

// soak is a load on a table that is empty at first, while the janitor runs.
type soak struct {
	Name     string // also of its database
	Policy   limiter.Policy
	Interval time.Duration // the janitor's
	Length   time.Duration
	Every    time.Duration // the interval between the report's lines

	keys func(caller int) func() string
	// drains makes it wait at the end until the janitor has deleted a row for each
	// decision, for keys that are used once.
	drains bool
}

// moment is a line of the report: what happened since the previous line, and the table at
// its end.
type moment struct {
	At time.Duration // since the start
	tally
	Removed int64 // rows, by the janitor
	Stats   stats
	HOT     float64 // share of the updates; -1 without updates
}

// soakResult is a soak's measurements.
type soakResult struct {
	soak
	Moments    []moment
	Total      moment        // of the whole soak, with the table as it was after the drain
	Sweeps     int           // that the janitor completed under load
	Drained    time.Duration // from the load's end until no row was left, if it drains
	Start, End memory.Use
}

// run runs the soak in a separate database, which it drops at the end.
func (k soak) run(ctx context.Context, s *server) (*soakResult, error) {
	d, err := s.createDatabase(ctx, k.Name)
	if err != nil {
		return nil, err
	}
	result := &soakResult{soak: k, Total: moment{At: k.Length, tally: newTally()}}
	if err := k.runOn(ctx, d, result); err != nil {
		return nil, fmt.Errorf("%s: %w", k.Name, err)
	}
	if err := d.settle(ctx, 1); err != nil {
		return nil, err
	}
	if result.Total.Stats, err = readStats(ctx, d.conn); err != nil {
		return nil, err
	}
	result.Total.HOT = result.Total.Stats.hotSince(stats{})
	return result, d.drop(ctx)
}

func (k soak) runOn(ctx context.Context, d *database, result *soakResult) (err error) {
	pool, err := d.pool(ctx, callers)
	if err != nil {
		return err
	}
	defer pool.Close()
	lim, err := newLimiter(pool)
	if err != nil {
		return err
	}
	if _, err := d.conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	sweeper, err := d.startJanitor(ctx, k.Interval, fail)
	if err != nil {
		return err
	}
	defer sweeper.stop()
	result.Start = memory.Read(d.server.postmaster)

	r := load{limiter: lim, policy: k.Policy, callers: callers, keys: k.keys}.start(ctx)
	err = k.watch(ctx, d, r, sweeper, result)
	if late := r.stop(); err == nil {
		err = late
	}
	if err != nil || !k.drains {
		return err
	}
	ended := time.Now()
	progress("%s: waiting until the janitor has deleted every row", k.Name)
	err = sweeper.await(ctx, result.Total.decisions())
	result.Drained = time.Since(ended)
	return err
}

// watch collects the moments, and stops the load at its end.
func (k soak) watch(ctx context.Context, d *database, r *running, sweeper *sweeper, result *soakResult) error {
	start := r.since
	var before moment
	for before.At < k.Length {
		m := moment{At: min(before.At+k.Every, k.Length)}
		if err := r.until(start.Add(m.At)); err != nil {
			return err
		}
		if m.At == k.Length {
			if err := r.stop(); err != nil {
				return err
			}
			result.Sweeps = sweeper.sweeps()
		}
		m.tally = r.collect()
		m.Removed = sweeper.removed() - result.Total.Removed
		result.Total.add(m.tally)
		result.Total.Removed += m.Removed
		var err error
		if m.Stats, err = readStats(ctx, d.conn); err != nil {
			return err
		}
		m.HOT = m.Stats.hotSince(before.Stats)
		progress("%s: %v of %v: p50 %v, p99 %v, %s decisions/s, table %s MB, %s rows deleted", k.Name, m.At, k.Length,
			m.quantile(50).Round(time.Microsecond), m.quantile(99).Round(time.Microsecond), grouped(int64(m.perSecond())),
			megabytes(m.Stats.Table), grouped(m.Removed))
		result.Moments = append(result.Moments, m)
		before = m
	}
	result.End = memory.Read(d.server.postmaster)
	return nil
}

// attack is callers that send a new key on every call.
func (p pace) attack() soak {
	return soak{
		Name: "attack", Length: p.Length, Every: p.Every, Interval: p.Interval, keys: fresh(), drains: true,
		Policy: limiter.Policy{Name: "attack", Algorithm: limiter.TokenBucket, Limit: 10, Period: p.Period, Durability: limiter.Relaxed},
	}
}

// zipf is traffic in which a few keys make up most requests.
func (p pace) zipf() soak {
	const seed = 1
	return soak{
		Name: "zipf", Length: p.Length, Every: p.Every, Interval: p.Interval, keys: zipf(zipfKeys, zipfS, seed),
		Policy: limiter.Policy{Name: "zipf", Algorithm: limiter.TokenBucket, Limit: 60, Period: p.Period, Durability: limiter.Relaxed},
	}
}
