package limiter_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// An order and its spending over database/sql. RunSQLTx does the same and runs the
// transaction again after a conflict.
func ExampleLimiter_InSQLTx() {
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
		if err := r.Err(); err != nil {
			return err // rolls the order back
		}
		return tx.Commit()
	}
	_ = placeOrder
}

// An order and its spending over database/sql, run again after a conflict.
func ExampleRunSQLTx() {
	placeOrder := func(db *sql.DB, l *limiter.Limiter, account string, cents float64) error {
		options := &limiter.SQLTxOptions{TxOptions: sql.TxOptions{Isolation: sql.LevelSerializable}}
		return limiter.RunSQLTx(ctx, l, db, options, func(tx *sql.Tx, limits *limiter.Tx) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO orders (account, cents) VALUES ($1, $2)", account, cents); err != nil {
				return err
			}
			r, err := limits.AllowN(ctx, budget, account, cents)
			if err != nil {
				return err
			}
			return r.Err() // a denial rolls the order back
		})
	}
	_ = placeOrder
}

var budget = limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_00, Period: 30 * 24 * time.Hour}

// An order and its spending in one transaction, run again after a conflict.
func ExampleRunTx() {
	placeOrder := func(pool *pgxpool.Pool, l *limiter.Limiter, account string, cents float64) error {
		return limiter.RunTx(ctx, l, pool, nil, func(tx pgx.Tx, limits *limiter.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (account, cents) VALUES ($1, $2)", account, cents); err != nil {
				return err
			}
			r, err := limits.AllowN(ctx, budget, account, cents)
			if err != nil {
				return err
			}
			return r.Err() // a denial rolls the order back
		})
	}
	_ = placeOrder
}

// TestWithFakeTime shows how to test limits with testing/synctest: in its bubble NewMemory
// reads the fake clock, and Wait sleeps in fake time. So the test takes no time, and
// durations are exact. Make the limiter inside the bubble, and do not set Config.Now.
func TestWithFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.NewMemory(nil)
		logins := limiter.PerMinute("logins", 1)
		if r, err := l.Allow(t.Context(), logins, "alice"); err != nil || !r.Allowed {
			t.Fatalf("the first login: %+v, %v", r, err)
		}
		r, err := l.Allow(t.Context(), logins, "alice")
		if err != nil || r.Allowed || r.RetryAfter != time.Minute {
			t.Fatalf("the second login: %+v, %v", r, err)
		}
		time.Sleep(r.RetryAfter)
		if r, err := l.Allow(t.Context(), logins, "alice"); err != nil || !r.Allowed {
			t.Fatalf("a minute later: %+v, %v", r, err)
		}

		mails := limiter.Policy{Name: "mails", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: time.Second, Burst: 10}
		start := time.Now()
		for range 4 {
			if err := l.Wait(t.Context(), mails, "smtp", 1); err != nil {
				t.Fatal(err)
			}
		}
		if waited := time.Since(start); waited != 3*time.Second {
			t.Errorf("four mails took %v, want 3s", waited)
		}

		// A Wait that would end after the deadline is denied at once.
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		var denied *limiter.DeniedError
		if err := l.Wait(ctx, mails, "smtp", 1); !errors.As(err, &denied) || time.Since(start) != 3*time.Second {
			t.Errorf("with a short deadline: %v after %v", err, time.Since(start))
		}

		// A reservation expires in fake time too.
		if _, err := l.Reserve(t.Context(), budget.Request("account-1", 100_00), time.Hour); err != nil {
			t.Fatal(err)
		}
		if r, err := l.AllowN(t.Context(), budget, "account-1", 1); err != nil || r.Allowed {
			t.Errorf("while all is reserved: %+v, %v", r, err)
		}
		time.Sleep(time.Hour)
		if r, err := l.AllowN(t.Context(), budget, "account-1", 1); err != nil || !r.Allowed {
			t.Errorf("after the reservation has expired: %+v, %v", r, err)
		}
	})
}

// TestWithFakeTimeCancelled: a Wait whose context ends gives its place back, and leaves no
// goroutine, which would stop synctest.
func TestWithFakeTimeCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter.NewMemory(nil)
		mails := limiter.Policy{Name: "mails", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 10}
		if err := l.Wait(t.Context(), mails, "smtp", 1); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Wait(ctx, mails, "smtp", 1) }()
		synctest.Wait() // it sleeps
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		u, err := l.Usage(t.Context(), mails, "smtp")
		if err != nil || u.Spent != 1 {
			t.Errorf("%+v, %v: the place did not go back", u, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}
