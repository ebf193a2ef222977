package janitor

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/janitor/internal/leader"
	"github.com/pglimit/pglimit/janitor/internal/tables"
)

// StateBound is the number up to which [ReadState] counts rows: a count of StateBound
// means StateBound or more.
const StateBound = 100_000

// State is what [ReadState] returns. All times are by the database's clock, except that
// those of a janitor with Config.Now are by that clock.
type State struct {
	// At is when the database read its clock for this State.
	At time.Time `json:"at"`

	// Holder is the random name of the janitor that has the lease. It is empty if no
	// janitor has it. A janitor of which neither Run nor Sweep is running has none.
	Holder string `json:"holder"`
	// LeaseEndsAt is when that lease ends unless the janitor renews it. It is zero if
	// Holder is empty.
	LeaseEndsAt time.Time `json:"lease_ends_at,omitzero"`

	// SweptAt is the end of the last complete sweep, of any process. It is zero if
	// there was none. A sweep in which a table failed, or that lost its lease, is not
	// complete.
	SweptAt time.Time `json:"swept_at,omitzero"`
	// SweptBy is the name of the janitor that made that sweep.
	SweptBy string `json:"swept_by"`
	// Took is that sweep's duration.
	Took time.Duration `json:"took_ns"`
	// Removed, Kept and ReservationsExpired are that sweep's results: see [Removed].
	Removed             int64 `json:"removed"`
	Kept                int64 `json:"kept"`
	ReservationsExpired int64 `json:"reservations_expired"`

	// DueRows is the number of rows that wait for the next sweep, up to [StateBound]:
	// rows of all algorithms that are due, and reservations whose retention is over, but
	// not counts of denials. A due row may be in use: see the package's documentation.
	DueRows int64 `json:"due_rows"`
	// ExpiredReservations is the number of open reservations that have expired and whose
	// units the next sweep returns, up to StateBound. A request that is denied returns
	// those of its key at once.
	ExpiredReservations int64 `json:"expired_reservations"`
	// OpenReservations is the number of reservations that are neither settled nor
	// cancelled, up to StateBound. It includes ExpiredReservations.
	OpenReservations int64 `json:"open_reservations"`
	// Lag is for how long the oldest of DueRows and ExpiredReservations has waited; 0 if
	// there is none. While a janitor runs, it is below the interval plus the time of a
	// sweep, except for rows that a transaction keeps locked.
	Lag time.Duration `json:"lag_ns"`

	// Bounded are the policies with MaxKeys that have had a key, by name and algorithm.
	Bounded []Bounded `json:"bounded,omitempty"`
}

// Bounded is how many keys of a policy have a row, of those that may.
type Bounded struct {
	Policy    string `json:"policy"`
	Algorithm string `json:"algorithm"`
	// Keys is the number of rows, and of permits for more that processes hold: the janitor
	// corrects it if one ends with some.
	Keys int64 `json:"keys"`
	// MaxKeys is the policy's, as of the last new key.
	MaxKeys int64 `json:"max_keys"`
}

// Share returns the part of MaxKeys that is in use.
func (b Bounded) Share() float64 { return float64(b.Keys) / float64(b.MaxKeys) }

// statusPlan makes every count read an index from its oldest entry on, whatever the
// tables' statistics say.
const statusPlan = `SELECT pg_catalog.set_config('enable_seqscan'::text, 'off'::text, true), pg_catalog.set_config('enable_bitmapscan'::text, 'off'::text, true)`

// ReadState reads who sweeps the tables in the search_path of pool's connections, when
// that was done last, and what waits. It only reads, takes no row lock, and reads at most
// [StateBound] index entries of each table. It works through any connection pooler. If
// the tables do not exist, the error says how to create them.
func ReadState(ctx context.Context, pool *pgxpool.Pool) (State, error) {
	if pool == nil {
		return State{}, errNoPool
	}
	return readState(ctx, exec.PGX(pool, exec.Idle(0)))
}

// ReadStateSQL is [ReadState] for database/sql, with any PostgreSQL driver.
func ReadStateSQL(ctx context.Context, db *sql.DB) (State, error) {
	if db == nil {
		return State{}, errNoDB
	}
	return readState(ctx, exec.SQL(db, exec.Idle(0)))
}

func readState(ctx context.Context, connections exec.Connections) (State, error) {
	var row db.SweepStatusRow
	var waiting db.SweepWaitingRow
	var bounded []db.KeysStateRow
	run := exec.NewPool(connections, exec.NewCache(func(error) {}))
	err := run.Run(ctx, exec.Transaction, func(tx db.DBTX) (err error) {
		if _, err := tx.Exec(ctx, statusPlan); err != nil {
			return err
		}
		if row, err = db.New().SweepStatus(ctx, tx, leader.Name); err == nil {
			waiting, err = tables.Waiting(ctx, tx, db.SweepWaitingParams{NowUs: row.NowUs, MaxRows: StateBound})
		}
		if err == nil {
			bounded, err = db.New().KeysState(ctx, tx)
		}
		return err
	})
	switch {
	case exec.SQLState(err) == leader.UndefinedTable:
		return State{}, fmt.Errorf("pglimit: read the janitor's state: %w: run `pglimit migrate up`, or check search_path", err)
	case err != nil:
		return State{}, fmt.Errorf("pglimit: read the janitor's state: %w", err)
	}
	s := stateOf(row, waiting)
	for _, b := range bounded {
		s.Bounded = append(s.Bounded, Bounded(b))
	}
	return s, nil
}

// stateOf converts a row. A lease that has ended, or that no janitor can have, is none.
func stateOf(row db.SweepStatusRow, waiting db.SweepWaitingRow) State {
	s := State{
		At:      time.UnixMicro(row.NowUs),
		SweptBy: row.SweptBy, Took: microseconds(row.TookUs),
		Removed: row.Removed, Kept: row.Kept, ReservationsExpired: row.ReservationsExpired,
		DueRows: waiting.DueRows, ExpiredReservations: waiting.ExpiredReservations, OpenReservations: waiting.OpenReservations,
		Lag: microseconds(row.NowUs - waiting.OldestUs),
	}
	if row.SweptAtUs != 0 {
		s.SweptAt = time.UnixMicro(row.SweptAtUs)
	}
	if row.LeaseEndsUs > row.NowUs && row.LeaseEndsUs <= row.NowUs+leader.Longest.Microseconds() {
		s.Holder, s.LeaseEndsAt = row.Holder, time.UnixMicro(row.LeaseEndsUs)
	}
	return s
}

// microseconds converts us, which may be more than a Duration holds.
func microseconds(us int64) time.Duration {
	const most = int64(1<<63-1) / 1000
	return time.Duration(min(us, most)) * time.Microsecond
}
