package limiter

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
)

// MemoryDB begins transactions on a Limiter of NewMemory, for tests without a database. It
// takes the place of the pool that code under test gets for RunTx, pgx.BeginFunc or
// pgx.BeginTxFunc. Limiter.InTx accepts its transactions. Set Limiter, and Statements if
// the code sends statements too. A MemoryDB is safe for concurrent use; do not change it
// while it is in use.
//
// The transactions are like those of PostgreSQL at read committed, whatever the options:
//
//   - A rollback undoes all that the limiter did in the transaction. A commit makes it
//     visible to others.
//   - A key stays locked from its first change to the end. Others that change it wait: a
//     transaction until its context ends, a Limiter until Config.Timeout too, and then gets
//     ErrLocked. Reads wait for nothing, and see what was committed.
//   - A deadlock returns ErrRetryTx to the transaction that closes the circle, at once.
//   - After an error of a lock the transaction has failed, as PostgreSQL's would have.
//   - The transaction's Begin sets a savepoint.
//   - After the end, methods return an ErrUnavailable that wraps pgx.ErrTxClosed.
//
// A transaction knows only the Limiter of its MemoryDB. The Txs of all others return
// ErrUnsupported.
type MemoryDB struct {
	// Limiter is one that NewMemory made.
	Limiter *Limiter
	// Statements begins a transaction for each of MemoryDB's, which handles the statements
	// of the code under test, such as a mock. It commits first and rolls back as
	// MemoryDB's does. Default: nil, statements return ErrUnsupported.
	Statements TxBeginner
}

// Begin is BeginTx without options, for pgx.BeginFunc.
func (d *MemoryDB) Begin(ctx context.Context) (pgx.Tx, error) { return d.BeginTx(ctx, pgx.TxOptions{}) }

// BeginTx begins a transaction. The options are those of Statements. The error is
// ErrInvalid without a Limiter, ErrUnsupported if NewMemory has not made it, and ctx's if
// that has ended.
func (d *MemoryDB) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	switch {
	case d.Limiter == nil:
		return nil, store.Invalid("MemoryDB.Limiter", "nil", "make one with NewMemory")
	case d.Limiter.memory == nil:
		return nil, fmt.Errorf("%w: MemoryDB on a limiter over a database: begin a transaction of that", store.ErrUnsupported)
	case ctx.Err() != nil:
		return nil, store.EndedContext(ctx)
	}
	tx := &memoryTx{in: d.Limiter.memory, txn: d.Limiter.memory.BeginTx(pgx.ErrTxClosed)}
	if d.Statements != nil {
		inner, err := d.Statements.BeginTx(ctx, options)
		if err != nil {
			return nil, err
		}
		tx.inner = inner
	}
	return tx, nil
}

// storeOfMemoryTx returns the store of a transaction that a MemoryDB of this store began.
func storeOfMemoryTx(m *memory.Store, tx db.DBTX) store.Store {
	switch t, ok := tx.(*memoryTx); {
	case !ok:
		return store.Refuse(fmt.Errorf("%w: a memory limiter takes part only in transactions of a MemoryDB", store.ErrUnsupported))
	case t.in != m:
		return store.Refuse(fmt.Errorf("%w: the transaction is of the MemoryDB of another limiter", store.ErrUnsupported))
	default:
		return t.txn
	}
}

// memoryTx is a transaction of a MemoryDB, or a savepoint in one.
type memoryTx struct {
	in    *memory.Store
	txn   *memory.Txn
	inner pgx.Tx // nil: there are no statements
}

// errNoStatements is the error of a statement without MemoryDB.Statements.
var errNoStatements = fmt.Errorf("%w: a statement in a transaction of a MemoryDB, which has no database: set MemoryDB.Statements", store.ErrUnsupported)

// notSent is the error of a commit that was not sent, as pgx reports it.
type notSent struct{ error }

func (notSent) SafeToRetry() bool { return true }
func (n notSent) Unwrap() error   { return n.error }

// Begin sets a savepoint.
func (t *memoryTx) Begin(ctx context.Context) (pgx.Tx, error) {
	txn, err := t.txn.Begin()
	if err != nil {
		return nil, err
	}
	point := &memoryTx{in: t.in, txn: txn}
	if t.inner != nil {
		if point.inner, err = t.inner.Begin(ctx); err != nil {
			return nil, errors.Join(err, txn.Rollback())
		}
	}
	return point, nil
}

// Commit commits the statements and then the limits. If that of the statements fails, the
// limits are rolled back.
func (t *memoryTx) Commit(ctx context.Context) error {
	if t.txn.Over() {
		return pgx.ErrTxClosed
	}
	if t.txn.Failed() || ctx.Err() != nil {
		_ = t.Rollback(context.WithoutCancel(ctx))
		if ctx.Err() != nil {
			return notSent{store.EndedContext(ctx)}
		}
		return pgx.ErrTxCommitRollback
	}
	if t.inner != nil {
		if err := t.inner.Commit(ctx); err != nil {
			_ = t.txn.Rollback()
			return err
		}
	}
	return t.txn.Commit()
}

// Rollback undoes the limits and the statements. After the end it returns
// pgx.ErrTxClosed.
func (t *memoryTx) Rollback(ctx context.Context) error {
	err := t.txn.Rollback()
	if err == nil && t.inner != nil {
		err = t.inner.Rollback(ctx)
	}
	return err
}

// statements returns the transaction that handles statements.
func (t *memoryTx) statements() (pgx.Tx, error) {
	switch {
	case t.txn.Over():
		return nil, pgx.ErrTxClosed
	case t.inner == nil:
		return nil, errNoStatements
	}
	return t.inner, nil
}

func (t *memoryTx) Exec(ctx context.Context, sql string, arguments ...any) (tag pgconn.CommandTag, _ error) {
	inner, err := t.statements()
	if err != nil {
		return tag, err
	}
	return inner.Exec(ctx, sql, arguments...)
}

func (t *memoryTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	inner, err := t.statements()
	if err != nil {
		return noRows{err: err}, err // pgx returns rows with an error too
	}
	return inner.Query(ctx, sql, args...)
}

func (t *memoryTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	inner, err := t.statements()
	if err != nil {
		return noRows{err: err}
	}
	return inner.QueryRow(ctx, sql, args...)
}

func (t *memoryTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	inner, err := t.statements()
	if err != nil {
		return 0, err
	}
	return inner.CopyFrom(ctx, table, columns, source)
}

func (t *memoryTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	inner, err := t.statements()
	if err != nil {
		return noResults{err: err}
	}
	return inner.SendBatch(ctx, b)
}

func (t *memoryTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	inner, err := t.statements()
	if err != nil {
		return nil, err
	}
	return inner.Prepare(ctx, name, sql)
}

// LargeObjects returns those of the statements' transaction. Without one they cannot be
// used.
func (t *memoryTx) LargeObjects() pgx.LargeObjects {
	if t.inner == nil {
		return pgx.LargeObjects{}
	}
	return t.inner.LargeObjects()
}

// Conn returns the connection of the statements' transaction, or nil.
func (t *memoryTx) Conn() *pgx.Conn {
	if t.inner == nil {
		return nil
	}
	return t.inner.Conn()
}

// noRows are the rows of a statement that was not sent.
type noRows struct {
	pgx.Rows // for the methods that only rows without an error need
	err      error
}

func (noRows) Close()                            {}
func (r noRows) Err() error                      { return r.err }
func (noRows) Next() bool                        { return false }
func (r noRows) Scan(...any) error               { return r.err }
func (r noRows) Values() ([]any, error)          { return nil, r.err }
func (noRows) CommandTag() (_ pgconn.CommandTag) { return }

// noResults are the results of a batch that was not sent.
type noResults struct {
	pgx.BatchResults // for the methods that only results without an error need
	err              error
}

func (r noResults) Exec() (tag pgconn.CommandTag, _ error) { return tag, r.err }
func (r noResults) Query() (pgx.Rows, error)               { return noRows{err: r.err}, r.err }
func (r noResults) QueryRow() pgx.Row                      { return noRows{err: r.err} }
func (noResults) Tx() pgx.Tx                               { return nil }
func (r noResults) Close() error                           { return r.err }
