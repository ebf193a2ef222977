package integration

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// way is one way to have limits in a transaction: whose transaction it is, and
// by which limiter.
type way struct {
	name  string
	l     *limiter.Limiter
	begin func(context.Context) (*transaction, error)
	pq    bool // the errors are lib/pq's
}

// transaction is one of pgx or of database/sql.
type transaction struct {
	*limiter.Tx
	exec  func(ctx context.Context, sql string) error
	read  func(ctx context.Context, sql string, into any) error
	close func(ctx context.Context, commit bool) error
}

// ways are all of them; of those with one connection, the pool has no more.
func ways(t testing.TB, address string, one bool) []way {
	t.Helper()
	pool := connect(t, address, func(c *pgxpool.Config) {
		if one {
			c.MaxConns = 1
		}
	})
	l := newLimiter(t, pool, nil)
	dbs := map[string]*sql.DB{}
	for _, driver := range sqlDrivers {
		dbs[driver] = connectSQL(t, driver, address)
		if one {
			dbs[driver].SetMaxOpenConns(1)
		}
	}
	overPgx, overPq := newSQL(t, dbs["pgx"], nil), newSQL(t, dbs["postgres"], nil)
	all := []way{
		{"New, InTx", l, pgxWay(pool, l), false},
		{"NewSQL, InSQLTx of pgx", overPgx, sqlWay(dbs["pgx"], overPgx), false},
		{"NewSQL, InSQLTx of pq", overPq, sqlWay(dbs["postgres"], overPq), true},
	}
	if !one {
		all = append(all,
			way{"New, InSQLTx of pq", l, sqlWay(dbs["postgres"], l), true},
			way{"NewSQL, InTx", overPq, pgxWay(pool, overPq), false})
	}
	return all
}

func pgxWay(pool *pgxpool.Pool, l *limiter.Limiter) func(context.Context) (*transaction, error) {
	return func(ctx context.Context) (*transaction, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		return &transaction{
			Tx:   l.InTx(tx),
			exec: func(ctx context.Context, sql string) error { _, err := tx.Exec(ctx, sql); return err },
			read: func(ctx context.Context, sql string, into any) error { return tx.QueryRow(ctx, sql).Scan(into) },
			close: func(ctx context.Context, commit bool) error {
				if commit {
					return tx.Commit(ctx)
				}
				return tx.Rollback(ctx)
			},
		}, nil
	}
}

func sqlWay(db *sql.DB, l *limiter.Limiter) func(context.Context) (*transaction, error) {
	return func(ctx context.Context) (*transaction, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		return &transaction{
			Tx:   l.InSQLTx(tx),
			exec: func(ctx context.Context, sql string) error { _, err := tx.ExecContext(ctx, sql); return err },
			read: func(ctx context.Context, sql string, into any) error {
				return tx.QueryRowContext(ctx, sql).Scan(into)
			},
			close: func(_ context.Context, commit bool) error {
				if commit {
					return tx.Commit()
				}
				return tx.Rollback()
			},
		}, nil
	}
}

// start begins a transaction and runs what comes first in it.
func (w way) start(t testing.TB, first ...string) *transaction {
	t.Helper()
	tx, err := w.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.close(context.Background(), false) })
	for _, sql := range first {
		if err := tx.exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return tx
}

func (tx *transaction) end(t testing.TB, commit bool) {
	t.Helper()
	if err := tx.close(t.Context(), commit); err != nil {
		t.Fatal(err)
	}
}

// inEachWay runs a test in each way, with a policy of its own.
func inEachWay(t *testing.T, one bool, f func(t *testing.T, w way, p limiter.Policy)) {
	t.Helper()
	t.Parallel()
	address := newDatabase(t)
	for i, w := range ways(t, address, one) {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range variants(10, 1000*time.Hour) {
				p.Name += string(rune('a' + i))
				f(t, w, p)
			}
		})
	}
}

type wayAlone struct {
	way
	pool *pgxpool.Pool // to look at its database
}

// sqlWaysAlone are all ways, each with a database of its own.
func sqlWaysAlone(t *testing.T) (all []wayAlone) {
	t.Helper()
	for i := range ways(t, newDatabase(t), false) {
		address := newDatabase(t)
		all = append(all, wayAlone{ways(t, address, false)[i], connect(t, address)})
	}
	return all
}
