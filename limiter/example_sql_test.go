package limiter_test

import (
	"database/sql"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// An order and its spending over database/sql. RunSQLTx does the same and runs the
// transaction again after a conflict.
func ExampleLimiter_InSQLTx() {
	budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 1000_00, Period: 30 * 24 * time.Hour}
	placeOrder := func(db *sql.DB, l *limiter.Limiter, account string, cents float64) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after the commit
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (account, cents) VALUES ($1, $2)", account, cents); err != nil {
			return err
		}
		r, err := l.InSQLTx(tx).AllowN(ctx, budget, account, cents)
		if err != nil {
			return err
		}
		if !r.Allowed {
			return &limiter.DeniedError{Result: r} // rolls the order back
		}
		return tx.Commit()
	}
	_ = placeOrder
}

// An order and its spending over database/sql, run again after a conflict.
func ExampleRunSQLTx() {
	budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 1000_00, Period: 30 * 24 * time.Hour}
	placeOrder := func(db *sql.DB, l *limiter.Limiter, account string, cents float64) error {
		options := &limiter.SQLTxOptions{TxOptions: sql.TxOptions{Isolation: sql.LevelSerializable}}
		return limiter.RunSQLTx(ctx, l, db, options, func(tx *sql.Tx, limits *limiter.Tx) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO orders (account, cents) VALUES ($1, $2)", account, cents); err != nil {
				return err
			}
			r, err := limits.AllowN(ctx, budget, account, cents)
			if err == nil && !r.Allowed {
				err = &limiter.DeniedError{Result: r} // rolls the order back
			}
			return err
		})
	}
	_ = placeOrder
}
