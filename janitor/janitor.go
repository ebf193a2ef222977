// Package janitor deletes empty rows and returns the units of expired reservations.
//
//	j, err := janitor.New(pool, nil)
//	...
//	go j.Run(ctx)
//
// At its end, Run gives up a lease in the database, so that another process may sweep at
// once. That needs the pool. So wait for Run before you close it:
//
//	ctx, stop := context.WithCancel(ctx)
//	var running sync.WaitGroup
//	running.Go(func() { _ = j.Run(ctx) }) // fails only if it runs already
//	...
//	stop()
//	running.Wait()
//	pool.Close()
//
// or, with golang.org/x/sync/errgroup, g.Go(func() error { return j.Run(ctx) }) and
// g.Wait() before pool.Close(). If the pool was closed first, the lease ends by itself, by
// default three minutes after its last renewal.
//
// An empty row decides like a missing one, so deleting it only frees space. Each row
// has a time at which it is due. A due row is deleted if its own columns show it empty
// and its key has no open reservation. Otherwise it is due again when it will be empty,
// but not within the next hour. So a row is deleted at most an hour and one sweep after
// it became empty, and a row in use costs one update an hour. One statement checks a
// batch of rows and skips rows that a transaction has locked.
//
// Any number of processes may run a janitor: a lease in the database lets one of them
// sweep. When that one ends, or crashes and its lease runs out, another takes over.
//
// # Limits
//
// A deleted row loses two facts:
//
//   - The policy that last decided. A slower policy of the same name might still have
//     counted some units of the row. Together the two policies admit at most the
//     larger burst at the faster rate.
//   - The time of the last decision, before which the key's clock cannot move back. The
//     next row starts at its own decision's clock reading. So a row stays for a minute
//     after its last use: no statement outside a caller's transaction waits that long for
//     its rows. A server's clock that was set back by more still moves the key's clock back.
package janitor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/janitor/internal/leader"
	"github.com/pglimit/pglimit/janitor/internal/sweep"
)

// A Janitor deletes empty rows and returns the units of expired reservations. Its
// methods are safe for concurrent use; sweeps of one janitor run one at a time.
type Janitor struct {
	config Config // complete

	turn  chan struct{} // contains one token: the goroutine that takes it may sweep and use lease
	lease *leader.Lease

	mu      sync.Mutex
	running bool
	total   Removed // since New
}

// New returns a janitor for the tables in the search_path of pool's connections. If config
// is nil, it uses the defaults; otherwise it copies config. New sends no statement and
// starts no goroutine. It returns limiter.ErrInvalid for a nil pool or a field of config
// that is out of bounds.
func New(pool *pgxpool.Pool, config *Config) (*Janitor, error) {
	if pool == nil {
		return nil, errNoPool
	}
	return newJanitor(exec.PGX(pool, exec.Idle(0)), config)
}

// NewSQL is [New] for database/sql, with any PostgreSQL driver. A sweep uses one connection
// of db at a time. The caller closes db, after Run has returned.
func NewSQL(db *sql.DB, config *Config) (*Janitor, error) {
	if db == nil {
		return nil, errNoDB
	}
	return newJanitor(exec.SQL(db, exec.Idle(0)), config)
}

var (
	errNoPool = store.Invalid("pool", "nil", "open one with pgxpool.New")
	errNoDB   = store.Invalid("db", "nil", "open one with sql.Open")
)

func newJanitor(connections exec.Connections, config *Config) (*Janitor, error) {
	full, err := config.complete()
	if err != nil {
		return nil, err
	}
	run := exec.NewPool(connections, exec.NewCache(exec.Warn(full.Logger)))
	j := &Janitor{
		config: full, lease: leader.New(run, full.Lease, full.Now),
		turn: make(chan struct{}, 1), total: Removed{ByTable: map[string]int64{}},
	}
	j.turn <- struct{}{}
	return j, nil
}

// Run sweeps immediately and then after each interval, until ctx ends; then it returns
// nil. It keeps the lease between sweeps and gives it up when ctx ends, which takes at
// most five seconds. Wait for its return before you close the pool. If the pool is closed
// first, Run ends without a warning, and the lease ends by itself.
//
// Run logs a failed sweep and tries again after the next interval. It goes on if the
// database restarts or tables are missing. It returns an error only if Run of this
// janitor is already running.
func (j *Janitor) Run(ctx context.Context) error {
	if !j.setRunning(true) {
		return errors.New("pglimit: janitor: Run is already running: call it once, or create another janitor")
	}
	defer j.end(ctx)
	for ctx.Err() == nil {
		removed, err := j.Sweep(ctx)
		switch {
		case ctx.Err() != nil: // its error is ctx's
		case err != nil:
			j.config.Logger.ErrorContext(ctx, "pglimit: the janitor's sweep failed; it is tried again after the next interval",
				"error", err, "removed", removed.Total())
		default:
			j.config.Logger.DebugContext(ctx, "pglimit: the janitor swept",
				"removed", removed.Total(), "by_table", removed.ByTable, "kept", removed.Kept, "reservations_expired", removed.ReservationsExpired, "held_elsewhere", removed.HeldElsewhere)
		}
		wait := time.NewTimer(jitter(j.config.Interval))
		select {
		case <-ctx.Done():
			wait.Stop()
		case <-wait.C:
		}
	}
	return nil
}

// end gives up the lease after ctx has ended.
func (j *Janitor) end(ctx context.Context) {
	<-j.turn // wait for another caller's sweep
	defer func() { j.turn <- struct{}{} }()
	j.setRunning(false)
	switch err := j.lease.Release(ctx); {
	case err != nil && (errors.Is(err, puddle.ErrClosedPool) || strings.HasSuffix(err.Error(), "sql: database is closed")): // the program ends
		j.config.Logger.DebugContext(ctx, "pglimit: the pool was closed before the janitor could give up its lease; others wait until it ends",
			"lease", j.config.Lease)
	case err != nil:
		j.config.Logger.WarnContext(ctx, "pglimit: the janitor could not give up its lease; others wait until it ends",
			"error", err, "lease", j.config.Lease)
	}
}

// Sweep checks once all rows that were due when it began. It deletes the empty ones and
// returns the units of expired reservations. Rows that a transaction has locked stay
// for the next sweep.
//
// Sweep takes the lease and, unless [Janitor.Run] is running, gives it up at the end.
// If another process has the lease, Sweep does nothing and sets
// [Removed.HeldElsewhere].
//
// Removed is valid even if the error is not nil. If one table fails, Sweep continues
// with the others, unless the connection is lost or ctx has ended. If the tables do not
// exist, the error says how to create them.
func (j *Janitor) Sweep(ctx context.Context) (Removed, error) {
	removed, err := j.takeTurn(ctx)
	if j.config.OnSweep != nil {
		j.config.OnSweep(removed)
	}
	return removed, err
}

// takeTurn waits for this janitor's running sweep, if any, and sweeps.
func (j *Janitor) takeTurn(ctx context.Context) (Removed, error) {
	select {
	case <-j.turn:
		defer func() { j.turn <- struct{}{} }()
	case <-ctx.Done():
		return Removed{}, fmt.Errorf("pglimit: sweep: %w", ctx.Err())
	}
	removed := Removed{ByTable: map[string]int64{}}
	one := sweep.Sweep{
		Lease: j.lease, BatchSize: j.config.BatchSize, KeepDenials: j.config.KeepDenials, Logger: j.config.Logger,
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

// Removed returns the totals of all sweeps since New, including a running one.
// HeldElsewhere is false. The caller may change the map.
func (j *Janitor) Removed() Removed {
	j.mu.Lock()
	defer j.mu.Unlock()
	total := j.total
	total.ByTable = maps.Clone(total.ByTable)
	return total
}

// setRunning sets running and reports whether it changed.
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

// jitter returns d varied by up to a tenth, to spread processes that started together.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
