package exec

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// MaxTries is the number of times that one decision is tried after conflicts.
const MaxTries = 5

// Runner runs statements on connections of a pool or in the caller's transaction.
type Runner interface {
	// Run runs f in a mode. On a connection of a pool it runs f again after a conflict. In the
	// caller's transaction it only runs f.
	Run(ctx context.Context, m Mode, f func(db.DBTX) error) error
}

// Mode is how a Runner runs a function.
type Mode bool

// The modes.
const (
	// Statement is for one statement or one Pipeline.
	Statement Mode = false
	// Transaction is for several statements, which it commits if the function returns nil,
	// and else rolls back.
	Transaction Mode = true
)

// Connections are a pool of pgx or of database/sql.
type Connections interface {
	// Exhausted reports whether all connections are in use by others than the limiter.
	Exhausted() bool
	// Acquire returns a connection for one statement. release takes and returns its error.
	Acquire(ctx context.Context) (tx db.DBTX, release func(error) error, err error)
	// Once runs f in a transaction at read committed.
	Once(ctx context.Context, f func(db.DBTX) error) error
	// Pipelines reports whether a connection can send many statements at once.
	Pipelines() bool
	// Leaves reports whether a caller can leave a statement that it sends on its own
	// goroutine.
	Leaves() bool
	// Uncacheable reports whether the driver that returned err can send statements
	// without preparing them, if pgx.QueryExecModeExec precedes their parameters.
	Uncacheable(err error) bool
	// Renew gives up the connections after one was found to be read-only. It reports
	// whether another try may get another connection. If the server stays read-only, that
	// is only now and then, to spare the application's pool.
	Renew() bool
}

// Pool is a Runner on connections of a pool. It tries again, in another way, after errors
// that mean that the server has executed nothing:
//
//   - A prepared statement was missing or stale: without the driver's cache of statements.
//     If a pooler was the cause, the cache is not used again.
//   - The server is read-only: on a new connection, which may lead to the new primary
//     after a failover.
//
// A statement that fails so was not executed, and a transaction in which one fails is
// rolled back. So nothing is counted twice. It is safe for concurrent use.
type Pool struct {
	Connections
	cache *Cache
	// explicit is set after a serialization failure or a strictIsolation: the database's default
	// isolation is stricter than read committed. Under load a statement fails there on each retry. So
	// from then on each runs in a transaction at read committed, for two more round
	// trips.
	explicit atomic.Bool

	breaker *Breaker // nil: none
	owners  *Owners  // nil: they are not read
	bare    *Pool    // reads the owners: that is no answer to a statement
}

// NewPool returns a Pool over connections.
func NewPool(c Connections, cache *Cache) *Pool { return &Pool{Connections: c, cache: cache} }

// Guard returns a Pool over the connections of p that sends nothing while b or o refuse.
func (p *Pool) Guard(b *Breaker, o *Owners) *Pool {
	return &Pool{Connections: p.Connections, cache: p.cache, breaker: b, owners: o, bare: p}
}

// Leaves reports whether a caller can leave a Statement at present.
func (p *Pool) Leaves() bool {
	return p.Connections.Leaves() && p.cache.InUse() && !p.explicit.Load()
}

// Run is Runner's.
func (p *Pool) Run(ctx context.Context, m Mode, f func(db.DBTX) error) (err error) {
	d := sending.Of(ctx)
	begun := keptBy(d) // by a caller that has left
	if p.breaker != nil && p.breaker.open() && sending.IsOwn(ctx) {
		return store.ErrElsewhere // a probe must not end before it has its answer
	}
	if p.breaker != nil && begun == nil {
		if err := p.breaker.admit(); err != nil {
			return err
		}
	}
	var release func(error) error // also after a panic of the application's hooks
	defer func() {
		if release != nil {
			_ = release(err)
		}
		if p.breaker != nil {
			p.breaker.note(ctx, err)
		}
	}()
	if p.owners != nil && begun == nil {
		if err := p.owners.look(ctx, p.bare); err != nil {
			return err
		}
	}
	cached := p.cache.InUse()
	began := f // goes on with what was begun
	if !cached {
		f = withoutCache(f)
	}
	var first error // after which f is tried without the cache
	for tries, elsewhere := MaxTries, true; ; {
		var tx db.DBTX
		if begun != nil {
			d.Rest, release = nil, begun.release
			err = began(begun)
			err, release, begun = release(err), nil, nil
		} else if m == Transaction || p.explicit.Load() {
			err = p.Once(ctx, f)
		} else if tx, release, err = p.Acquire(ctx); err == nil {
			err = f(tx)
			if a := keptBy(d); a != nil {
				a.release, release = release, nil
				return err
			}
			err, release = release(err), nil
		}
		if err == store.ErrElsewhere {
			if first != nil && pooler.Lost(first) { // which the other goroutine would not see again
				p.cache.turnOff(first)
			}
			return err
		}
		if code := sqlState(err); m == Statement && (code == serializationFailure || code == strictIsolation) {
			p.explicit.Store(true)
		}
		if tries--; again(err) && tries > 0 {
			if sqlState(err) == shardMoved && p.owners.forget() {
				err = p.owners.look(ctx, p.bare)
			}
			if err == nil || again(err) {
				continue
			}
		}
		switch {
		case first != nil && (!answered(err) || pooler.Lost(err)):
			return fmt.Errorf("%w; once more without prepared statements: %w", first, err)
		case first != nil && pooler.Lost(first):
			p.cache.turnOff(first)
			return err
		case err == nil || first != nil || ctx.Err() != nil:
			return err
		case cached && (pooler.Lost(err) || stale(err)) && p.Uncacheable(err):
			first, f = err, withoutCache(f)
		case sqlState(err) == readOnlyTransaction && elsewhere: // each such failure has found a connection that was read-only
			elsewhere = p.Renew()
		default:
			return err
		}
		tries = MaxTries
	}
}

// InTx returns a Runner that runs everything in the caller's transaction.
func InTx(tx db.DBTX) Runner { return inTx{tx} }

type inTx struct{ db.DBTX }

func (t inTx) Run(_ context.Context, _ Mode, f func(db.DBTX) error) error { return f(t.DBTX) }

// Cache is what is known of a driver's cache of prepared statements. It is safe for
// concurrent use.
type Cache struct {
	off  atomic.Bool
	warn func(error)
}

// NewCache returns a Cache in use. When it is turned off, warn is called once, with the
// cause and the next step.
func NewCache(warn func(error)) *Cache { return &Cache{warn: warn} }

// Warn returns a function for NewCache that logs the cause.
func Warn(logger *slog.Logger) func(error) {
	return func(cause error) {
		logger.Warn("pglimit: prepared statements are not used from now on, which costs time: they get lost on the way to the server", "error", cause)
	}
}

// InUse reports whether statements are prepared.
func (c *Cache) InUse() bool { return !c.off.Load() }

func (c *Cache) turnOff(cause error) {
	if c.off.CompareAndSwap(false, true) {
		c.warn(pooler.Explain(cause))
	}
}

// InTx is InTx, but without prepared statements if the cache is off and tx is of pgx. If a
// statement of tx is lost, tx has failed, and the cache is off for later transactions.
func (c *Cache) InTx(tx db.DBTX) Runner {
	of, ok := tx.(pgx.Tx)
	if !ok {
		return InTx(tx)
	}
	if c.off.Load() {
		tx = uncached{tx}
	}
	return cacheTx{InTx(tx), c, of}
}

// cacheTx is the Runner of a caller's transaction of pgx.
type cacheTx struct {
	Runner
	cache *Cache
	tx    pgx.Tx
}

// Run is Runner's.
func (t cacheTx) Run(ctx context.Context, m Mode, f func(db.DBTX) error) error {
	if err := checkConn(t.tx.Conn()); err != nil {
		return err
	}
	err := t.Runner.Run(ctx, m, f)
	if err != nil && pooler.Lost(err) {
		t.cache.turnOff(err)
	}
	return err
}

// withoutCache returns f with statements that are not prepared.
func withoutCache(f func(db.DBTX) error) func(db.DBTX) error {
	return func(tx db.DBTX) error { return f(uncached{tx}) }
}

// uncached sends each statement with its parameters in one message group and leaves none
// prepared. It has no pipeline: pgx has no such mode for one.
type uncached struct{ db.DBTX }

func (u uncached) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return u.DBTX.Exec(ctx, sql, inExecMode(args)...)
}

func (u uncached) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return u.DBTX.Query(ctx, sql, inExecMode(args)...)
}

func (u uncached) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return u.DBTX.QueryRow(ctx, sql, inExecMode(args)...)
}

// inExecMode returns args after the mode, as pgx takes them.
func inExecMode(args []any) []any { return append([]any{pgx.QueryExecModeExec}, args...) }
