package exec

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/sqldb"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// PGX returns the connections of a pgx pool. idle bounds how long their own transactions may be
// idle: see Idle.
func PGX(pool *pgxpool.Pool, idle time.Duration) Connections {
	return &pgxConnections{Pool: pool, limit: newIdleLimit(idle), leaves: sendsBinary(pool.Config().ConnConfig)}
}

type pgxConnections struct {
	*pgxpool.Pool
	limit  *idleLimit
	leaves bool // a caller can leave its statement

	lent     atomic.Int64 // to the limiter
	answered atomic.Bool  // the server answered the limiter's last statement

	renewing sync.Mutex
	renewed  time.Time // the last time that Renew reset the pool
}

// Acquire implements Connections.
func (p *pgxConnections) Acquire(ctx context.Context) (db.DBTX, func(error) error, error) {
	conn, release, err := p.acquire(ctx)
	if err == nil && sending.IsOwn(ctx) {
		return ownConn{conn}, release, nil
	}
	return conn, release, err
}

// Leaves implements Connections.
func (p *pgxConnections) Leaves() bool { return p.leaves }

func (p *pgxConnections) acquire(ctx context.Context) (*pgxpool.Conn, func(error) error, error) {
	conn, err := p.Pool.Acquire(ctx)
	switch {
	case err != nil && ctx.Err() != nil && p.full():
		return nil, nil, &noConnection{err, p.Exhausted()}
	case err != nil:
		if ctx.Err() == nil || store.EndedByTimeout(ctx) {
			p.answered.Store(false)
		}
		return nil, nil, err
	case !sending.Sends(ctx):
		conn.Release()
		return nil, nil, &noConnection{context.DeadlineExceeded, true}
	}
	if err := checkConn(conn.Conn()); err != nil {
		conn.Release()
		return nil, nil, err
	}
	p.lent.Add(1)
	return conn, func(err error) error {
		if err != store.ErrElsewhere {
			p.answered.Store(answered(err))
		}
		inner := conn.Conn().PgConn()
		if sqlState(err) == shardMoved { // after some errors of other statements Citus delegates no function in a session
			_ = conn.Conn().Close(ctx)
		}
		kept := !inner.IsClosed() && !inner.IsBusy() && inner.TxStatus() == 'I' // it is another's after its Release
		conn.Release()
		if kept {
			p.lent.Add(-1)
			return err
		}
		go func() { // the pool counts a broken connection as in use until it is closed
			<-inner.CleanupDone()
			p.lent.Add(-1)
		}()
		return err
	}, nil
}

// full reports whether all connections are in use; those being dialled are not.
func (p *pgxConnections) full() bool {
	s := p.Stat()
	return s.AcquiredConns() == s.MaxConns()
}

// Exhausted implements Connections. After a statement without an answer the database may be
// away, and the pool full of connections that hang.
func (p *pgxConnections) Exhausted() bool {
	return p.lent.Load() == 0 && p.answered.Load() && p.full()
}

// Pipelines implements Connections.
func (p *pgxConnections) Pipelines() bool { return true }

// poolTx is a transaction on a connection of the pool. Its BEGIN is sent with the first
// statements, if they are pipelined.
type poolTx struct {
	*pgxpool.Conn
	limit *idleLimit
}

// Once commits if f returns nil. If not, it rolls back, unless f has already done so.
func (p *pgxConnections) Once(ctx context.Context, f func(db.DBTX) error) (err error) {
	if sending.IsOwn(ctx) {
		return store.ErrElsewhere
	}
	conn, release, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = release(err) }() // closes it if it is still in a transaction
	tx := poolTx{conn, p.limit}
	if question := p.limit.Question(); question != "" {
		var found pgconn.CommandTag
		if found, err = conn.Exec(ctx, question); err != nil {
			return err
		}
		p.limit.Answer(found.RowsAffected() > 0)
	}
	err = f(tx)
	switch {
	case tx.idle():
		return err
	case err != nil:
		_, _ = conn.Exec(ctx, "rollback") // the first error is the one to report
		return err
	}
	tag, err := conn.Exec(ctx, "commit")
	if err == nil && tag.String() != "COMMIT" {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// idle reports whether the transaction has not begun or has ended.
func (t poolTx) idle() bool { return t.Conn.Conn().PgConn().TxStatus() == 'I' }

func (t poolTx) begin(ctx context.Context) error {
	if !t.idle() {
		return nil
	}
	_, err := t.Conn.Exec(ctx, t.limit.Text()) // without parameters it may be several statements
	return err
}

func (t poolTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.begin(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.Conn.Exec(ctx, sql, args...)
}

func (t poolTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.Conn.Query(ctx, sql, args...)
}

func (t poolTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.begin(ctx); err != nil {
		return noRow{err}
	}
	return t.Conn.QueryRow(ctx, sql, args...)
}

func (t poolTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if !t.idle() {
		return t.Conn.SendBatch(ctx, b)
	}
	var whole pgx.Batch
	whole.Queue(beginning)
	if set := t.limit.setting(); set != "" {
		whole.Queue(set)
	}
	own := whole.Len()
	for _, q := range b.QueuedQueries {
		whole.Queue(q.SQL, q.Arguments...)
	}
	results := t.Conn.SendBatch(ctx, &whole)
	for range own {
		_, _ = results.Exec() // the other results have its error too
	}
	return results
}

// OneByOne returns a Runner whose connections send each statement alone, and wait for its
// answer: a router of shards reads where it goes.
func OneByOne(inner Runner) Runner { return single{inner} }

type single struct{ Runner }

// Run is Runner's.
func (s single) Run(ctx context.Context, m Mode, f func(db.DBTX) error) error {
	return s.Runner.Run(ctx, m, func(tx db.DBTX) error { return f(struct{ db.DBTX }{tx}) })
}

// Unwinder is a transaction that can send other statements with its end.
type Unwinder interface {
	// Unwind rolls back, makes the writes in another transaction and then the reads, all
	// in one round trip. Then it returns ErrRolledBack.
	Unwind(ctx context.Context, writes, reads []Call) error
}

func (t poolTx) Unwind(ctx context.Context, writes, reads []Call) error {
	calls := []Call{command(ctx, "rollback")}
	if len(writes) > 0 {
		calls = append(append(append(calls, command(ctx, beginning)), writes...), command(ctx, "commit"))
	}
	calls = append(calls, reads...)
	if err := Together(ctx, t.Conn, calls); err != nil {
		return err
	}
	return ErrRolledBack
}

// Uncacheable implements Connections.
func (p *pgxConnections) Uncacheable(error) bool { return true }

// renewEvery is the least time between two resets of a pool.
const renewEvery = time.Second

// Renew implements Connections. Connections in use are closed after their use.
func (p *pgxConnections) Renew() bool {
	p.renewing.Lock() // a caller that comes meanwhile waits, to get a new connection
	defer p.renewing.Unlock()
	if now := time.Now(); p.renewed.IsZero() || now.Sub(p.renewed) >= renewEvery {
		p.Reset()
		p.renewed = now
		return true
	}
	return false
}

// Uncacheable implements Connections. pgx takes a mode over database/sql too; other
// drivers do not. A driver is known by its errors, because it may be wrapped.
func (c sqlConnections) Uncacheable(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer)
}

// SQL returns the connections of a *sql.DB. Their own transactions may be idle for so long:
// see Idle.
func SQL(db *sql.DB, idle time.Duration) Connections {
	return sqlConnections{sqldb.NewPool(db, newIdleLimit(idle))}
}

// SQLTx returns a transaction of database/sql as a db.DBTX.
func SQLTx(tx *sql.Tx) db.DBTX { return sqldb.Tx(tx) }

type sqlConnections struct{ *sqldb.Pool }

// Acquire implements Connections.
func (c sqlConnections) Acquire(context.Context) (db.DBTX, func(error) error, error) {
	return c.Pool, exhausted, nil
}

// Pipelines implements Connections.
func (c sqlConnections) Pipelines() bool { return false }

// Leaves implements Connections.
func (c sqlConnections) Leaves() bool { return false }

// Exhausted implements Connections.
func (c sqlConnections) Exhausted() bool { return c.Pool.Exhausted() }

func (c sqlConnections) Once(ctx context.Context, f func(db.DBTX) error) error {
	return exhausted(c.InTx(ctx, f))
}

// exhausted marks an ErrBusy of database/sql as a wait for a connection.
func exhausted(err error) error {
	if errors.Is(err, sqldb.ErrBusy) {
		return &noConnection{err, true}
	}
	return err
}
