package testworld

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// Way is one way to use limits in a transaction: a driver's transaction, and the limiter.
type Way struct {
	Name  string
	L     *limiter.Limiter
	Begin func(context.Context) (*Transaction, error)
	Run   func(ctx context.Context, serializable bool, work func(*Transaction) error) error // RunTx or RunSQLTx
	PQ    bool                                                                              // the errors are lib/pq's
}

// Start begins a transaction and runs its first statements.
func (w Way) Start(t testing.TB, first ...string) *Transaction {
	t.Helper()
	tx, err := w.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Close(context.Background(), false) })
	for _, sql := range first {
		if err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return tx
}

// Transaction is one of pgx or of database/sql.
type Transaction struct {
	*limiter.Tx
	Exec  func(ctx context.Context, sql string) error
	Read  func(ctx context.Context, sql string, into any) error
	Close func(ctx context.Context, commit bool) error
}

// End commits or rolls back.
func (tx *Transaction) End(t testing.TB, commit bool) {
	t.Helper()
	if err := tx.Close(t.Context(), commit); err != nil {
		t.Fatal(err)
	}
}

// Ways returns all ways. If connections is one, each pool has only that one.
func Ways(t testing.TB, address string, one bool) []Way {
	t.Helper()
	var change []func(*pgxpool.Config)
	if one {
		change = append(change, OneConnection)
	}
	pool := Connect(t, address, change...)
	l := NewLimiter(t, pool, nil)
	dbs := map[string]*sql.DB{}
	for _, driver := range SQLDrivers {
		dbs[driver] = ConnectSQL(t, driver, address)
		if one {
			dbs[driver].SetMaxOpenConns(1)
		}
	}
	overPgx, overPq := NewSQL(t, dbs["pgx"], nil), NewSQL(t, dbs["postgres"], nil)
	return []Way{
		pgxWay("New, InTx", pool, l),
		sqlWay("NewSQL, InSQLTx of pgx", dbs["pgx"], overPgx, false),
		sqlWay("NewSQL, InSQLTx of pq", dbs["postgres"], overPq, true),
		sqlWay("New, InSQLTx of pq", dbs["postgres"], l, true),
		pgxWay("NewSQL, InTx", pool, overPq),
	}
}

func pgxWay(name string, pool *pgxpool.Pool, l *limiter.Limiter) Way {
	wrap := func(tx pgx.Tx, limits *limiter.Tx) *Transaction {
		return &Transaction{
			Tx:   limits,
			Exec: func(ctx context.Context, sql string) error { _, err := tx.Exec(ctx, sql); return err },
			Read: func(ctx context.Context, sql string, into any) error { return tx.QueryRow(ctx, sql).Scan(into) },
			Close: func(ctx context.Context, commit bool) error {
				if commit {
					return tx.Commit(ctx)
				}
				return tx.Rollback(ctx)
			},
		}
	}
	return Way{Name: name, L: l, Begin: func(ctx context.Context) (*Transaction, error) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return nil, err
		}
		return wrap(tx, l.InTx(tx)), nil
	}, Run: func(ctx context.Context, serializable bool, work func(*Transaction) error) error {
		var o limiter.TxOptions
		if serializable {
			o.IsoLevel = pgx.Serializable
		}
		return limiter.RunTx(ctx, l, pool, &o, func(tx pgx.Tx, limits *limiter.Tx) error { return work(wrap(tx, limits)) })
	}}
}

func sqlWay(name string, db *sql.DB, l *limiter.Limiter, pq bool) Way {
	wrap := func(tx *sql.Tx, limits *limiter.Tx) *Transaction {
		return &Transaction{
			Tx:   limits,
			Exec: func(ctx context.Context, sql string) error { _, err := tx.ExecContext(ctx, sql); return err },
			Read: func(ctx context.Context, sql string, into any) error {
				return tx.QueryRowContext(ctx, sql).Scan(into)
			},
			Close: func(_ context.Context, commit bool) error {
				if commit {
					return tx.Commit()
				}
				return tx.Rollback()
			},
		}
	}
	return Way{Name: name, L: l, PQ: pq, Begin: func(ctx context.Context) (*Transaction, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		return wrap(tx, l.InSQLTx(tx)), nil
	}, Run: func(ctx context.Context, serializable bool, work func(*Transaction) error) error {
		var o limiter.SQLTxOptions
		if serializable {
			o.Isolation = sql.LevelSerializable
		}
		return limiter.RunSQLTx(ctx, l, db, &o, func(tx *sql.Tx, limits *limiter.Tx) error { return work(wrap(tx, limits)) })
	}}
}

// InEachWay runs a test in each way, each with a separate policy.
func InEachWay(t *testing.T, one bool, f func(t *testing.T, w Way, p limiter.Policy)) {
	t.Helper()
	t.Parallel()
	address := NewDatabase(t)
	for i, w := range Ways(t, address, one) {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			for _, p := range Variants(10, 1000*time.Hour) {
				p.Name += string(rune('a' + i))
				f(t, w, p)
			}
		})
	}
}
