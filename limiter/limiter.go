package limiter

import (
	"database/sql"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/coalesce"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/internal/store/postgres"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/reap"
)

// Limiter decides. It is safe for concurrent use, has no goroutine while nobody
// asks, and one is enough for a program: callers that share it share statements.
// Make one with New, NewSQL or NewMemory.
type Limiter struct {
	*engine
	coalesced *coalesce.Store              // nil: no request shares a statement
	inTx      func(tx db.DBTX) store.Store // the store of the caller's transaction
}

// New returns a Limiter that keeps its state in the database of pool, whose
// tables migrations.Up makes. A nil config is the documented defaults. The pool
// stays the caller's to close. A nil pool, or a number in config that has no
// meaning, is an ErrInvalid; nothing is asked of the database yet.
func New(pgPool *pgxpool.Pool, config *Config) (*Limiter, error) {
	if pgPool == nil {
		return nil, store.Invalid("pool", "nil", "open one with pgxpool.New")
	}
	return newPooled(exec.PGX(pgPool), int(pgPool.Stat().MaxConns()), config)
}

// NewSQL is New for users of database/sql, be it themselves or through GORM, ent
// or bun: the same Limiter over any PostgreSQL driver. pgx's stdlib and lib/pq
// are tested. migrations.UpSQL makes the tables. db stays the caller's to close.
// A nil db, or a number in config that has no meaning, is an ErrInvalid; nothing
// is asked of the database yet.
//
// db.SetMaxOpenConns comes before NewSQL, which reads it: a quarter of that many
// may wait for keys whose rows other transactions hold, and four if it is
// unlimited. Config.Timeout holds even where the driver waits for longer; until
// the driver is done, its connection and a goroutine are not. A statement
// whose answer was lost is not sent again. After a second without an answer a
// connection is pinged before it is used.
//
// lib/pq prepares each statement anew, which is a second round trip and the
// server's time for planning; its binary_parameters=yes saves the round trip.
// pgx's stdlib prepares a statement once for each connection. Either way
// db.SetMaxIdleConns is worth raising: it is 2, and what is above is closed
// after each use.
func NewSQL(db *sql.DB, config *Config) (*Limiter, error) {
	if db == nil {
		return nil, store.Invalid("db", "nil", "open one with sql.Open")
	}
	most := db.Stats().MaxOpenConnections
	if most == 0 {
		most = unlimitedConns
	}
	return newPooled(exec.SQL(db), most, config)
}

// unlimitedConns is how many connections a pool without a limit counts for: the
// server has a limit.
const unlimitedConns = 16

// newPooled returns a Limiter over a pool with that many connections.
func newPooled(connections exec.Connections, most int, config *Config) (*Limiter, error) {
	c := config.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	breakAfter := int64(c.BreakAfter)
	if c.DisableBreaker {
		breakAfter = math.MaxInt64
	}
	database := postgres.New(connections, breakAfter, c.BreakFor, c.clock())
	inner := store.Bound(database, c.Timeout)
	e := newEngine(&c, SourceDatabase)
	l := &Limiter{engine: e}
	if !c.DisableBatching {
		l.coalesced = coalesce.New(inner, database, coalesce.Options{
			Rows: c.BatchRows, Statements: c.BatchStatements, Waiting: c.BatchWaiting,
			Timeout: c.Timeout, Patient: most / 4, Now: e.now,
		})
		inner = l.coalesced
	}
	reaping := reap.New(inner, reap.NewWatch(), c.Timeout, e.freed)
	e.store = reaping
	l.inTx = func(tx db.DBTX) store.Store { return reaping.InTx(store.Bound(database.InTx(tx), 0)) }
	if !c.DisableDenyCache {
		var err error
		if e.denied, err = newDenials(c.DenyCacheKeys, c.DenyCacheTTL, c.clock()); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// newEngine returns an engine without a store.
func newEngine(c *Config, source Source) *engine {
	return &engine{shared: &shared{
		source: source, timeout: c.Timeout, remember: c.IdempotencyTTL, keySecret: c.KeySecret,
		clock: c.Now, observe: c.Observe, logger: c.Logger,
	}}
}

// NewMemory returns a Limiter that keeps its state in this process and forgets
// it with it: for programs of one process, and for tests, with Config.Now as
// their clock. Verbs, results and errors are the same but for InTx and InSQLTx,
// whose verbs give ErrUnsupported. Idle keys are forgotten.
func NewMemory(config *Config) *Limiter { return newInMemory(memory.New(), config) }

func newInMemory(m *memory.Store, config *Config) *Limiter {
	c := config.withDefaults()
	e := newEngine(&c, SourceMemory)
	e.store = reap.New(store.Bound(m, c.Timeout), reap.NewWatch(), c.Timeout, e.freed)
	refusal := fmt.Errorf("%w: a transaction on a memory limiter: what it counts could not be rolled back", store.ErrUnsupported)
	return &Limiter{engine: e, inTx: func(db.DBTX) store.Store { return store.Refuse(refusal) }}
}

// Close makes every later call return ErrClosed and waits until the decisions
// that were asked for before have their answers, and the places of cancelled
// Waits have gone back. It does not wait for those that sleep: cancel them first.
// It returns nil, may be called again, and leaks nothing when it is not called.
func (l *Limiter) Close() error {
	l.closed.Store(true)
	if l.coalesced != nil {
		l.coalesced.Close()
	}
	l.leaving.Lock()
	defer l.leaving.Unlock()
	return nil
}

// Waiting is how many callers wait for a statement with others at this moment,
// of Config.BatchWaiting at most: a gauge for metrics. It is 0 without batching.
func (l *Limiter) Waiting() int {
	if l.coalesced == nil {
		return 0
	}
	return l.coalesced.Waiting()
}

// InTx returns the same verbs, but for Wait, DoWait, WaitAll and Close, inside the caller's
// transaction: what they do commits or rolls back with it. See Tx.
func (l *Limiter) InTx(tx pgx.Tx) *Tx { return l.newTx(tx) }

// InSQLTx is InTx for a transaction of database/sql. It takes the transactions
// of any *sql.DB on the limiter's database, and so it does for a Limiter that
// New made; one that NewSQL made has InTx too.
func (l *Limiter) InSQLTx(tx *sql.Tx) *Tx { return l.newTx(exec.SQLTx(tx)) }

func (l *Limiter) newTx(tx db.DBTX) *Tx {
	return &Tx{&engine{shared: l.shared, store: l.inTx(tx), tx: true}}
}

// Tx decides inside one transaction of the caller. Make it with Limiter.InTx
// or, over database/sql, Limiter.InSQLTx; use it as the transaction itself is
// used: by one goroutine at a time, until the transaction ends.
//
// What a Tx does is rolled back with the transaction, a block that a denial
// started too. The key's row stays locked until the transaction ends: take
// limits last, and several of them by one AllowAll, or in one order everywhere, else
// transactions deadlock each other.
//
// Each verb is one statement on the transaction's own connection, or a few: for
// AllowAll, for an ask with an IdempotencyKey, and after a denial now and then, to
// look for holds that have expired. It changes
// neither synchronous_commit nor any time-out, and is neither batched nor
// answered from what was remembered. Policies fail closed here, whatever their
// OnError, and Config.Timeout does not apply: how long a lock may be waited for
// is the transaction's lock_timeout or the context's deadline.
//
// What is left of the transaction:
//
//   - After a denial, all of it, with the key's row locked: go on, or roll back.
//   - After an ErrInvalid, ErrUnsupported, ErrClosed, ErrNoReservation or ErrReservationEnded,
//     all of it: nothing was changed. The exception is a key that the database's
//     encoding cannot hold, of which the database says so.
//   - After any other error, nothing but the duty to roll back: PostgreSQL
//     refuses further statements, and a commit rolls back. ErrRetryTx says that
//     running the whole transaction again may help, as below.
//   - After the context ended while a statement was under way, nothing as well.
//     pgx closes the connection, and so it does under database/sql; lib/pq asks
//     the server to end the statement, returns when it has, and does not use the
//     connection again. When the context that BeginTx was given ends,
//     database/sql rolls back by itself.
//
// A transaction that meets a conflict is run again as a whole, its own
// statements included; what these and the commit say, of the same SQLSTATEs, is
// the driver's error and not an ErrRetryTx:
//
//	for range 5 {
//		err = inTransaction(work) // begin, work, and commit or roll back
//		if !errors.Is(err, limiter.ErrRetryTx) {
//			break
//		}
//	}
type Tx struct {
	*engine
}
