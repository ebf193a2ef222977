// Command databasesql places orders against an account's budget: the order and
// its spend are in one transaction of database/sql, over lib/pq.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	_ "github.com/lib/pq"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// budget is 100.00 per account and 30 days, in cents.
var budget = limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_00, Period: 30 * 24 * time.Hour}

type shop struct {
	db     *sql.DB
	limits *limiter.Limiter
}

// order places an order if the account's budget has room. Otherwise nothing is written,
// and the error is a *limiter.DeniedError.
func (s *shop) order(ctx context.Context, account string, cents int64) (left float64, err error) {
	// Under Serializable any two orders of one account may conflict. Then RunSQLTx runs all
	// of it again.
	options := &limiter.SQLTxOptions{TxOptions: sql.TxOptions{Isolation: sql.LevelSerializable}}
	err = limiter.RunSQLTx(ctx, s.limits, s.db, options, func(tx *sql.Tx, limits *limiter.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (account, cents) VALUES ($1, $2)", account, cents); err != nil {
			return err
		}
		// The limit comes last: the budget's row stays locked until the transaction ends.
		r, err := limits.AllowN(ctx, budget, account, float64(cents))
		if err != nil {
			return err
		}
		left = r.Remaining
		return r.Err()
	})
	return left, err
}

func run(ctx context.Context, url string, out io.Writer) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := migrations.UpSQL(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (id bigserial PRIMARY KEY, account text NOT NULL, cents bigint NOT NULL)"); err != nil {
		return err
	}
	limits, err := limiter.NewSQL(db, nil)
	if err != nil {
		return err
	}
	defer limits.Close()
	s := &shop{db, limits}

	account := limiter.JoinKey("account", time.Now().Format(time.RFC3339Nano)) // new accounts for each run
	for _, cents := range []int64{60_00, 30_00, 20_00, 10_00} {
		left, err := s.order(ctx, account, cents)
		var denied *limiter.DeniedError
		switch {
		case errors.As(err, &denied):
			fmt.Fprintf(out, "%5.2f: over budget, %.2f are left\n", float64(cents)/100, denied.Result.Remaining/100)
		case err != nil:
			return err
		default:
			fmt.Fprintf(out, "%5.2f: ordered, %.2f are left\n", float64(cents)/100, left/100)
		}
	}
	var count, cents int64
	if err := db.QueryRowContext(ctx, "SELECT count(*), sum(cents) FROM orders WHERE account = $1", account).Scan(&count, &cents); err != nil {
		return err
	}
	r, err := limits.Check(ctx, budget, account, 0)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d orders of %.2f, and %.2f spent\n", count, float64(cents)/100, r.Level/100)
	return nil
}

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}
