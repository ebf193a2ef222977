package limiter_test

import (
	"database/sql"
	"errors"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// An order and its spending over database/sql, run again after a conflict. The program
// examples/databasesql does the same.
func ExampleLimiter_InSQLTx() {
	budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 1000_00, Period: 30 * 24 * time.Hour}
	once := func(db *sql.DB, l *limiter.Limiter, account string, cents float64) error {
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
	placeOrder := func(db *sql.DB, l *limiter.Limiter, account string, cents float64) (err error) {
		for range 5 {
			if err = once(db, l, account, cents); !errors.Is(err, limiter.ErrRetryTx) {
				break
			}
		}
		return err
	}
	_ = placeOrder
}
