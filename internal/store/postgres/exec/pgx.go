package exec

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/detached"
)

// PGX returns the connections of a pgx pool. Their own transactions may be idle for so
// long: see Idle.
func PGX(pool *pgxpool.Pool, idle time.Duration) Connections {
	c := pool.Config()
	return &pgxConnections{Pool: pool, limit: newIdleLimit(idle), leaves: sendsBinary(c.ConnConfig) && c.PrepareConn == nil && c.BeforeAcquire == nil}
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
	if err == nil && detached.IsOwn(ctx) {
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
		return nil, nil, &noConnection{err, p.Crowded()}
	case err != nil:
		if ctx.Err() == nil || store.EndedByTimeout(ctx) {
			p.answered.Store(false)
		}
		return nil, nil, err
	case !detached.Sends(ctx):
		conn.Release()
		return nil, nil, &noConnection{context.DeadlineExceeded, true}
	}
	p.lent.Add(1)
	return conn, func(err error) error {
		if err != store.ErrElsewhere {
			p.answered.Store(answered(err))
		}
		inner := conn.Conn().PgConn()
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

// Crowded implements Connections. After a statement without an answer the database may be
// away, and the pool full of connections that hang.
func (p *pgxConnections) Crowded() bool {
	return p.lent.Load() == 0 && p.answered.Load() && p.full()
}

// Pipelines implements Connections.
func (p *pgxConnections) Pipelines() bool { return true }

// beginning begins a transaction at read committed, whatever the database's default.
const beginning = "begin isolation level read committed"

// poolTx is a transaction on a connection of the pool. Its BEGIN is sent with the first
// statements, if they are pipelined.
type poolTx struct {
	*pgxpool.Conn
	limit *idleLimit
}

// Once commits if f returns nil. If not, it rolls back, unless f has already done so.
func (p *pgxConnections) Once(ctx context.Context, f func(db.DBTX) error) (err error) {
	if detached.IsOwn(ctx) {
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

// Call sends one statement and reads its answer.
type Call func(db.DBTX) error

// batcher is a DBTX that sends many statements at once.
type batcher interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}

// Together makes the calls in order, up to the first that fails. If tx can pipeline, they
// take one round trip: each call runs twice, first to record its statement and then to
// read its answer. So a call must do nothing else before it has its answer.
func Together(ctx context.Context, tx db.DBTX, calls []Call) error {
	many, ok := tx.(batcher)
	if !ok {
		for _, c := range calls {
			if err := c(tx); err != nil {
				return err
			}
		}
		return nil
	}
	var batch pgx.Batch
	for _, c := range calls {
		if err := c(recorder{&batch}); err != errRecorded {
			return err
		}
	}
	results := many.SendBatch(ctx, &batch)
	for _, c := range calls {
		if err := c(player{results}); err != nil {
			_ = results.Close() // the first error is the one to report
			return err
		}
	}
	return results.Close()
}

// errRecorded is the answer to a call while it is recorded.
var errRecorded = errors.New("pglimit: recorded")

// recorder is a DBTX that only records statements.
type recorder struct{ *pgx.Batch }

func (r recorder) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r.Queue(sql, args...)
	return pgconn.CommandTag{}, errRecorded
}

func (r recorder) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	r.Queue(sql, args...)
	return nil, errRecorded
}

func (r recorder) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	r.Queue(sql, args...)
	return noRow{errRecorded}
}

// Text returns the text of the statement that f sends. It sends nothing.
func Text(f func(db.DBTX)) string {
	var sent pgx.Batch
	f(recorder{&sent})
	return sent.QueuedQueries[0].SQL
}

// noRow is a row whose Scan returns the error.
type noRow struct{ error }

func (n noRow) Scan(...any) error { return n.error }

// player is a DBTX that returns the answers to recorded statements, in their order.
type player struct{ pgx.BatchResults }

func (p player) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return p.BatchResults.Exec()
}

func (p player) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return p.BatchResults.Query()
}

func (p player) QueryRow(context.Context, string, ...any) pgx.Row {
	return p.BatchResults.QueryRow()
}

// command returns the call of a statement without parameters or answer.
func command(ctx context.Context, sql string) Call {
	return func(tx db.DBTX) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}
}
