package policies

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Connector returns a function that opens a connection as a pool does, besides those of the
// pool.
func (d *Database) Connector(pool *pgxpool.Pool) func(ctx context.Context) (Conn, error) {
	config := pool.Config()
	return func(ctx context.Context) (Conn, error) {
		c := config.ConnConfig.Copy()
		c.OnNotification = nil // so that WaitForNotification gets them
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
		return &listening{conn, d}, nil
	}
}

// listening is a Conn.
type listening struct {
	*pgx.Conn
	database *Database
}

// Listen implements Conn.
func (l *listening) Listen(ctx context.Context) error {
	_, err := l.Exec(ctx, `LISTEN pglimit_policies`)
	return err
}

// Version implements Conn.
func (l *listening) Version(ctx context.Context) (int64, error) {
	version, err := l.database.statements.PolicyVersion(ctx, l.Conn)
	return version, explain(err)
}

// Wait implements Conn.
func (l *listening) Wait(ctx context.Context) (payload string, err error) {
	n, err := l.WaitForNotification(ctx)
	if err != nil {
		return "", err
	}
	return n.Payload, nil
}
