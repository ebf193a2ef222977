package limiter

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/dispatch"
	"github.com/pglimit/pglimit/internal/store/keybound"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/internal/store/postgres"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Limiter decides requests against policies. Make one with New, NewSQL or NewMemory. It
// is safe for concurrent use. One is enough for a program: callers that share it share
// statements. An idle Limiter has no goroutines.
type Limiter struct {
	*engine
	inTx func(tx db.DBTX) store.Store // the store of the caller's transaction
}

// New returns a Limiter that keeps its state in the database of pool. migrations.Up
// creates its tables. A nil config means the defaults. The caller closes the pool. New
// sends nothing to the database. It returns ErrInvalid for a nil pool or a field of
// config that is not valid.
func New(pool *pgxpool.Pool, config *Config) (*Limiter, error) {
	if pool == nil {
		return nil, store.Invalid("pool", "nil", "open one with pgxpool.New")
	}
	return newPooled(exec.PGX(pool, config.idle()), int(pool.Stat().MaxConns()), obeys(pool), config)
}

// obeys reports whether acquiring a connection ends with its context.
func obeys(pool *pgxpool.Pool) bool {
	c := pool.Config()
	//lint:ignore SA1019 deprecated, but an application may still set it
	return c.BeforeAcquire == nil && c.PrepareConn == nil
}

// NewSQL is New for database/sql, directly or through GORM, ent or bun, with any
// PostgreSQL driver. pgx's stdlib and lib/pq are tested. migrations.UpSQL creates the
// tables. The caller closes db. NewSQL sends nothing to the database. It returns
// ErrInvalid for a nil db or a field of config that is not valid.
//
//   - Call db.SetMaxOpenConns first: NewSQL reads it. At most a quarter as many statements,
//     four if it is unlimited, wait for rows that other transactions have locked.
//   - Raise db.SetMaxIdleConns: database/sql closes all but 2 connections after each use.
//   - Config.Timeout holds even if the driver waits for longer. Its connection and a
//     goroutine stay in use until the driver returns.
//   - A statement whose answer was lost is not sent again. A connection that was idle for
//     a second is pinged before use.
//   - lib/pq prepares a statement for each use, which costs a second round trip and
//     planning. Its binary_parameters=yes saves the round trip, and is needed behind a
//     pooler in transaction mode. pgx's stdlib prepares a statement once per connection.
func NewSQL(db *sql.DB, config *Config) (*Limiter, error) {
	if db == nil {
		return nil, store.Invalid("db", "nil", "open one with sql.Open")
	}
	most := db.Stats().MaxOpenConnections
	if most == 0 {
		most = unlimitedConns
	}
	return newPooled(exec.SQL(db, config.idle()), most, false, config)
}

// idle returns how long a session may be idle in a transaction of the limiter.
func (c *Config) idle() time.Duration {
	if d := c.withDefaults(); d.Sharding != ShardingRouter {
		return exec.Idle(d.Timeout)
	}
	return exec.NoIdle
}

// unlimitedConns is the assumed size of a pool without a limit, since the server has one.
const unlimitedConns = 16

// newPooled returns a Limiter over a pool. most is the largest number of its connections. obeys reports
// whether the driver ends a statement with its context.
func newPooled(connections exec.Connections, most int, obeys bool, config *Config) (*Limiter, error) {
	c := config.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	breakAfter := int64(c.BreakAfter)
	if c.DisableBreaker {
		breakAfter = math.MaxInt64
	}
	database := postgres.New(connections, store.Sharding(c.Sharding), breakAfter, c.BreakFor, c.clock(), exec.Warn(c.Logger))
	e := newEngine(&c, SourceDatabase)
	shards := 0
	if c.Sharding == ShardingRouter {
		shards = most
	}
	e.dispatcher = dispatch.New(database, dispatch.Options{
		Waiting: c.MaxWaiting, Timeout: c.Timeout, Connections: most,
		Share: !c.DisableBatching, Rows: c.BatchRows, Statements: c.BatchStatements, Shards: shards, Now: e.now, Obeys: obeys,
	})
	reaping := dispatch.NewReaper(e.dispatcher, c.Timeout, e.freed)
	bounding := keybound.New(reaping, keybound.Clock(c.leaseClock()))
	e.store, e.unbounded = bounding, reaping
	l := &Limiter{engine: e, inTx: func(tx db.DBTX) store.Store {
		return bounding.InTx(reaping.InTx(store.Bound(database.InTx(tx), 0)))
	}}
	var err error
	if e.local, err = newLocal(&c, localKeys(config)); err != nil {
		return nil, err
	}
	if !c.DisableDenyCache {
		if e.denied, err = newDenials(c.DenyCacheKeys, c.DenyCacheTTL, c.clock()); err != nil {
			return nil, err
		}
	}
	if !c.DisableLeases {
		if err := e.lease(leaseOptions(c.LeaseKeys, c.leaseClock()), e.inBackground); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// NewMemory returns a Limiter that keeps its state in this process: for programs of one
// process, and for tests, with Config.Now or the fake clock of testing/synctest as their
// clock. Methods, results and errors are the same, but it has no transactions: the methods
// of a Tx return ErrUnsupported. Package pglimittest starts a PostgreSQL to test those. Idle
// keys are forgotten, and Config.MaxKeys bounds the others. If a field of config is not
// valid, every method that takes a policy or a reservation returns that ErrInvalid and
// counts nothing.
func NewMemory(config *Config) *Limiter {
	c := config.withDefaults()
	return newInMemory(memory.NewBounded(max(1, c.MaxKeys)), &c)
}

func newInMemory(m *memory.Store, config *Config) *Limiter {
	c := config.withDefaults()
	e := newEngine(&c, SourceMemory)
	if err := c.validate(); err != nil {
		e.store = store.Refuse(err)
	} else {
		e.store = dispatch.NewReaper(store.Bound(m, c.Timeout), c.Timeout, e.freed)
	}
	e.unbounded = e.store
	refusal := fmt.Errorf("%w: NewMemory has no transactions: test those with package pglimittest", store.ErrUnsupported)
	return &Limiter{engine: e, inTx: func(db.DBTX) store.Store { return store.Refuse(refusal) }}
}

// DoWait is Do for LeakyBucketQueue and sleeps until the request's turn, Result.Delay.
// Units leave the queue in the order of their requests, across all processes. Other
// algorithms and requests with an IdempotencyKey return ErrUnsupported.
//
// If the queue is full, the key is blocked or the turn would come after ctx's deadline,
// DoWait returns a denial immediately and consumes nothing. A denial starts a block if
// Policy.BlockFor is set.
//
// If ctx ends first, DoWait returns ctx's error. Its units go back if no later request is
// in the queue: before DoWait returns, within Config.Timeout, or after the statement that
// is still deciding. The sleep is real time even if Config.Now is set.
//
// If later requests are in the queue, they keep their turns, and the queue stays as full.
// The unused turn goes to the next DoWait or WaitAll of the same Limiter that the full
// queue would deny and that fits into it. That one overtakes others. A Limiter keeps at
// most 16,384 such turns, and forgets those of a key at a Reset. A denial that starts a
// block stays a denial.
func (l *Limiter) DoWait(ctx context.Context, request Request) (Result, error) {
	all, err := l.waitAll(ctx, verbWait, []Request{request})
	if err != nil {
		return failure(err), err
	}
	return all.PerRequest[0], nil
}

// Wait is DoWait for cost units. It returns nil when it is their turn, and a *DeniedError
// for a denial.
func (l *Limiter) Wait(ctx context.Context, p Policy, key string, cost float64) error {
	r, err := l.DoWait(ctx, p.Request(key, cost))
	if err != nil {
		return err
	}
	return r.Err()
}

// WaitAll is AllowAll and sleeps until the turn of all requests: the longest Delay. It
// combines a LeakyBucketQueue with other limits.
//
// A request whose turn would come after ctx's deadline denies the whole immediately. If
// ctx ends first, WaitAll returns ctx's error and gives back when DoWait does: the units in
// queues without a later request, and for other requests what Undo would. Turns that stay
// unused go to later requests as with DoWait. Config.Timeout bounds that for each request.
func (l *Limiter) WaitAll(ctx context.Context, requests ...Request) (Results, error) {
	return l.waitAll(ctx, verbWaitAll, requests)
}

// Close makes later calls return ErrClosed. It waits until earlier requests have their
// answers, and cancelled Waits and leases have given their units back. It does not wait for
// callers that sleep in a Wait: cancel them first, and wait for their return. What FailLocal granted
// is charged, for 5s at most. It returns nil and may be called again. A
// Limiter that is never closed leaks nothing.
func (l *Limiter) Close() error {
	if !l.closed.Swap(true) && l.local != nil {
		close(l.local.closing)
	}
	if l.leases != nil {
		l.leases.End()
	}
	for {
		l.withdrawals.awaitZero()
		if l.dispatcher == nil || l.dispatcher.Close(l.withdrawals.zero) {
			return nil
		}
		l.dispatcher.AwaitIdle()
	}
}

// Waiting returns the number of callers that wait for the database now, at most
// Config.MaxWaiting: a gauge for metrics. It is 0 for NewMemory.
func (l *Limiter) Waiting() int { return l.waiting() }

// BreakerOpen reports whether the circuit breaker refuses requests now: see
// Config.BreakAfter. It is false while a probe is due, and for NewMemory.
func (l *Limiter) BreakerOpen() bool { return l.dispatcher != nil && l.dispatcher.Refuses() != nil }

// InTx returns a Tx, which has the same methods except Wait, DoWait, WaitAll and Close.
// What they do commits or rolls back with tx. RunTx also begins, commits and runs again
// after a conflict.
func (l *Limiter) InTx(tx pgx.Tx) *Tx { return l.newTx(tx) }

// InSQLTx is InTx for a transaction of database/sql. tx may be from any *sql.DB on the
// limiter's database, whether New or NewSQL made the limiter.
func (l *Limiter) InSQLTx(tx *sql.Tx) *Tx { return l.newTx(exec.SQLTx(tx)) }

func (l *Limiter) newTx(tx db.DBTX) *Tx {
	s := l.inTx(tx)
	return &Tx{&engine{shared: l.shared, store: s, unbounded: keybound.Inner(s), tx: true}}
}

// Tx decides requests inside one transaction of the caller. Make it with Limiter.InTx or
// Limiter.InSQLTx. Like the transaction, it is for one goroutine at a time and until the
// transaction ends.
//
// What a Tx does is rolled back with the transaction, including a block that a denial
// started. A decision locks the key's row until the transaction ends. So take limits
// last, and several of them by one AllowAll or in the same order everywhere. Transactions
// that lock rows in different orders can deadlock.
//
// A method sends one statement on the transaction's connection. Some send a few:
// AllowAll, requests with an IdempotencyKey, and denials that look for expired
// reservations. Compared with a Limiter:
//
//   - Nothing is batched or answered from remembered denials.
//   - Policies fail closed, whatever their OnError.
//   - Config.Timeout does not apply. The transaction's lock_timeout or the context's
//     deadline bounds the wait for a lock.
//   - synchronous_commit and timeouts stay as the transaction has them.
//   - Check and Usage lock nothing: another transaction can use what they found free.
//     They do not give expired reservations back.
//   - Settle and Cancel lock the reservation and then the key's row. Settle before taking
//     other limits.
//   - Reset locks the key's open reservations and then its row.
//   - AllowAll uses no savepoint. Its rows stay locked until the transaction ends, after
//     a denial too.
//
// The state of the transaction after a result or error:
//
//   - A denial: intact, with the key's row locked. Continue or roll back.
//   - ErrInvalid, ErrUnsupported, ErrClosed, ErrNoReservation or ErrReservationEnded:
//     intact, and nothing was changed. The exception is a key that the database's
//     encoding cannot hold: the database returns that ErrInvalid, and the transaction has
//     failed.
//   - Any other error: failed. PostgreSQL refuses further statements, and a commit rolls
//     back. After ErrRetryTx, run the whole transaction again.
//   - The context ended during a statement: failed. pgx closes the connection, under
//     database/sql too. lib/pq cancels the statement, waits for its end and does not use
//     the connection again. If the context of BeginTx ends, database/sql rolls back.
//
// After a conflict run the whole transaction again, including its own statements. RunTx
// and RunSQLTx do. A conflict in one of those statements or in the commit returns the
// driver's error with the same SQLSTATEs, not ErrRetryTx; RunTx knows these too.
type Tx struct {
	*engine
}
