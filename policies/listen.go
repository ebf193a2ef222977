package policies

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// connector returns a function that opens a connection as a pool does, besides those of the
// pool.
func (d *database) connector(pool *pgxpool.Pool) func(ctx context.Context, notified func(payload string)) (conn, error) {
	config := pool.Config()
	return func(ctx context.Context, notified func(string)) (conn, error) {
		c := config.ConnConfig.Copy()
		c.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { // pgx would keep them
			if n.Channel == "pglimit_event" {
				d.hear()
				return
			}
			notified(n.Payload)
		}
		if c.DefaultQueryExecMode != pgx.QueryExecModeSimpleProtocol {
			c.DefaultQueryExecMode = pgx.QueryExecModeExec // works behind poolers
		}
		if config.BeforeConnect != nil {
			if err := config.BeforeConnect(ctx, c); err != nil {
				return nil, err
			}
		}
		conn, err := pgx.ConnectConfig(ctx, c)
		if err == nil && config.AfterConnect != nil {
			if err = config.AfterConnect(ctx, conn); err != nil {
				_ = conn.Close(ctx)
			}
		}
		if err != nil {
			return nil, err
		}
		l := &listening{Conn: conn}
		l.database = &database{run: l, statements: d.statements}
		return l, nil
	}
}

// listening is a conn.
type listening struct {
	*pgx.Conn
	*database // reads by the connection
}

// Listen implements conn.
func (l *listening) Listen(ctx context.Context) error {
	_, err := l.Exec(ctx, `LISTEN pglimit_policies`)
	if err == nil {
		_, err = l.Exec(ctx, `LISTEN pglimit_event`)
	}
	return err
}

// hear wakes one that waits for events.
func (d *database) hear() {
	select {
	case d.heard <- struct{}{}:
	default:
	}
}

// Wait implements conn.
func (l *listening) Wait(ctx context.Context) error { return l.PgConn().WaitForNotification(ctx) }

// Run implements exec.Runner.
func (l *listening) Run(ctx context.Context, m exec.Mode, f func(db.DBTX) error) error {
	if m == exec.Transaction {
		return pgx.BeginFunc(ctx, l.Conn, func(tx pgx.Tx) error { return f(tx) })
	}
	return f(l.Conn)
}
