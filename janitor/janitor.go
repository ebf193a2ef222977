// Package janitor deletes the rows of limits that hold nothing any more, and gives
// back what expired holds had set aside.
//
// A row that holds nothing decides as no row does, so deleting it changes no
// decision; it only gives back room. Each row has a time at which it is looked at. If
// it holds nothing then, by its own columns, and has no open hold, it is deleted; else
// it is looked at again when it is to be empty, and an hour later at the soonest. So a
// row is gone an hour and a sweep, at most, after it was empty, and a row in use costs
// one update an hour. Rows are looked at in batches, each one statement, which passes
// over rows that a transaction holds.
//
// Two bounds, for what a deleted row no longer knows. A row is empty by the policy that
// last decided on it: a policy of the same name that is slower might still have counted
// some of it, and so what both admit together is bounded by the larger burst and the
// faster rate of the two. And the clock of a key never moves back while it has a row;
// after that it starts with a decision's own reading, which is older than the sweep's
// by as long as that decision waited for the row, at most, or as the server's clock was
// set back since.
//
// Any number of processes may run a janitor: a lease in the database lets one
// of them sweep. When it ends, or vanishes and its lease runs out, another
// takes over.
//
//	j, err := janitor.New(pool, nil)
//	...
//	go j.Run(ctx)
package janitor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/janitor/internal/lease"
	"github.com/pglimit/pglimit/janitor/internal/sweep"
)

// A Janitor deletes rows that hold nothing. Its methods may be called from several
// goroutines at once; it sweeps one sweep at a time.
type Janitor struct {
	pool *pgxpool.Pool
	cfg  Config // complete

	turn  chan struct{} // holds one token: its holder may sweep and use lease
	lease *lease.Lease

	mu      sync.Mutex
	running bool
	total   Removed // since New
}

// New returns a janitor for the tables that pool's connections find in their
// search_path. A nil cfg stands for the defaults. It sends nothing and starts
// no goroutine; cfg is copied. The error names the field of cfg that is out of
// bounds, and its value.
func New(pool *pgxpool.Pool, cfg *Config) (*Janitor, error) {
	if pool == nil {
		return nil, errors.New("pglimit: janitor: pool is nil: pass the pool of the limits' database")
	}
	full, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	j := &Janitor{
		pool: pool, cfg: full, lease: lease.New(pool, full.Lease, full.Now),
		turn: make(chan struct{}, 1), total: Removed{ByTable: map[string]int64{}},
	}
	j.turn <- struct{}{}
	return j, nil
}

// Run sweeps at once and then every interval, until ctx ends; then it returns
// nil. It keeps the lease from sweep to sweep and gives it up at the end, for
// which it takes five seconds at most, even though ctx has ended.
//
// A sweep that fails is logged, and the next interval tries again: neither a
// restart of the database nor missing tables end Run. The one error is that of
// a janitor whose Run is running already.
func (j *Janitor) Run(ctx context.Context) error {
	if !j.setRunning(true) {
		return errors.New("pglimit: janitor: Run is running already: call it once, or make another janitor")
	}
	defer j.end(ctx)
	for ctx.Err() == nil {
		removed, err := j.Sweep(ctx)
		switch {
		case ctx.Err() != nil: // its error is ctx's
		case err != nil:
			j.cfg.Logger.ErrorContext(ctx, "pglimit: the janitor's sweep failed; the next interval tries again",
				"error", err, "removed", removed.Total())
		default:
			j.cfg.Logger.DebugContext(ctx, "pglimit: the janitor swept",
				"removed", removed.Total(), "by_table", removed.ByTable, "kept", removed.Kept, "holds_expired", removed.ReservationsExpired, "held_elsewhere", removed.HeldElsewhere)
		}
		wait := time.NewTimer(jitter(j.cfg.Interval))
		select {
		case <-ctx.Done():
			wait.Stop()
		case <-wait.C:
		}
	}
	return nil
}

// end gives the lease up, though ctx has ended.
func (j *Janitor) end(ctx context.Context) {
	<-j.turn // until a sweep by another caller has ended
	defer func() { j.turn <- struct{}{} }()
	j.setRunning(false)
	if err := j.lease.Release(ctx); err != nil {
		j.cfg.Logger.WarnContext(ctx, "pglimit: the janitor could not give its lease up; others wait until it runs out",
			"error", err, "lease", j.cfg.Lease)
	}
}

// Sweep looks once at all rows that were due when it began, and deletes those that
// hold nothing. It takes the lease for that, and, unless [Janitor.Run] is running,
// gives it up again; if another process holds the lease, it does nothing and
// says so in [Removed.HeldElsewhere]. A row that a transaction holds stays for
// the next sweep.
//
// It returns what it removed, also beside an error. A table that cannot be
// swept does not keep the others from it, unless the connection is gone or ctx
// has ended. If the tables do not exist, the error says how to make them.
func (j *Janitor) Sweep(ctx context.Context) (Removed, error) {
	removed, err := j.takeTurn(ctx)
	if j.cfg.OnSweep != nil {
		j.cfg.OnSweep(removed)
	}
	return removed, err
}

// takeTurn waits until no other sweep of this janitor runs, and sweeps.
func (j *Janitor) takeTurn(ctx context.Context) (Removed, error) {
	select {
	case <-j.turn:
		defer func() { j.turn <- struct{}{} }()
	case <-ctx.Done():
		return Removed{}, fmt.Errorf("pglimit: sweep: %w", ctx.Err())
	}
	removed := Removed{ByTable: map[string]int64{}}
	one := sweep.Sweep{
		Pool: j.pool, Lease: j.lease, BatchSize: j.cfg.BatchSize, Logger: j.cfg.Logger,
		CountRows: func(table string, deleted, kept int64) {
			removed.addRows(table, deleted, kept)
			j.mu.Lock()
			defer j.mu.Unlock()
			j.total.addRows(table, deleted, kept)
		},
		CountReservation: func() {
			removed.ReservationsExpired++
			j.mu.Lock()
			defer j.mu.Unlock()
			j.total.ReservationsExpired++
		},
	}
	var err error
	removed.HeldElsewhere, err = one.Run(ctx)
	if !j.isRunning() {
		if late := j.lease.Release(ctx); err == nil {
			err = late
		}
	}
	return removed, err
}

// Removed returns how many rows this janitor has deleted since it was made, by
// table, and how many expired holds it has given back, those of a running sweep
// included; HeldElsewhere is false. It may be called at any time, and the map is
// the caller's.
func (j *Janitor) Removed() Removed {
	j.mu.Lock()
	defer j.mu.Unlock()
	total := j.total
	total.ByTable = maps.Clone(total.ByTable)
	return total
}

// setRunning reports whether that was a change.
func (j *Janitor) setRunning(running bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	changed := j.running != running
	j.running = running
	return changed
}

func (j *Janitor) isRunning() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.running
}

// jitter returns d give or take a tenth, so that processes that started at once spread.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
