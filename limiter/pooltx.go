package limiter

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
)

// beginning begins a transaction whatever the database's default isolation is.
const beginning = "begin isolation level read committed"

// poolTx is a transaction on a connection of the pool. Its BEGIN travels with
// the first statements, if they are sent together.
type poolTx struct {
	*pgxpool.Conn
}

// once commits if f returns nil and rolls back if not, unless f has rolled back
// itself.
func (p pgxConnections) once(ctx context.Context, f func(db.DBTX) error) error {
	conn, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes it if it is still in a transaction
	tx := poolTx{conn}
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

// idle tells that the transaction has not begun, or has ended.
func (t poolTx) idle() bool { return t.Conn.Conn().PgConn().TxStatus() == 'I' }

func (t poolTx) begin(ctx context.Context) error {
	if !t.idle() {
		return nil
	}
	_, err := t.Conn.Exec(ctx, beginning)
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
	for _, q := range b.QueuedQueries {
		whole.Queue(q.SQL, q.Arguments...)
	}
	results := t.Conn.SendBatch(ctx, &whole)
	_, _ = results.Exec() // its error is also that of all others
	return results
}

// errRolledBack is how a transaction of the limiter's own ends that has its
// answer and must leave nothing.
var errRolledBack = errors.New("pglimit: rolled back")

// unwinder is a transaction whose end can travel with other statements.
type unwinder interface {
	// unwind rolls back, makes the writes in a transaction of their own and then
	// the reads, all in one round trip. Then it returns errRolledBack.
	unwind(ctx context.Context, writes, reads []call) error
}

func (t poolTx) unwind(ctx context.Context, writes, reads []call) error {
	calls := []call{command(ctx, "rollback")}
	if len(writes) > 0 {
		calls = append(append(append(calls, command(ctx, beginning)), writes...), command(ctx, "commit"))
	}
	calls = append(calls, reads...)
	if err := together(ctx, t.Conn, calls); err != nil {
		return err
	}
	return errRolledBack
}
