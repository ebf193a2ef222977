// Command orders places orders against monthly budgets, of an account and of the company
// that pays. An order and its spend are in one transaction. Copy from order.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"
	_ "time/tzdata" // for machines without a time zone database

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// The budgets are in cents, for each month of Vienna's calendar.
var (
	accountBudget = limiter.Policy{
		Name: "account-budget", Algorithm: limiter.FixedWindow, Limit: 100_00,
		Calendar: limiter.Month, TimeZone: "Europe/Vienna",
	}
	companyBudget = limiter.Policy{
		Name: "company-budget", Algorithm: limiter.FixedWindow, Limit: 150_00,
		Calendar: limiter.Month, TimeZone: "Europe/Vienna",
	}
)

type shop struct {
	pool   *pgxpool.Pool
	limits *limiter.Limiter
}

// migrate creates pglimit's tables and the application's.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (
		account text, number text, company text NOT NULL, cents bigint NOT NULL, PRIMARY KEY (account, number))`)
	return err
}

// run creates the tables and has three accounts place orders. A nil config means the
// defaults.
func run(ctx context.Context, url string, config *limiter.Config, out io.Writer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return err
	}
	limits, err := limiter.New(pool, config)
	if err != nil {
		return err
	}
	defer limits.Close()
	s := &shop{pool, limits}

	stamp := time.Now().Format(time.RFC3339Nano) // new accounts for each run
	name := func(who string) string { return limiter.JoinKey(who, stamp) }
	for _, o := range []struct {
		who, number, company string
		cents                int64
	}{
		{"alice", "1", "", 60_00},
		{"alice", "1", "", 60_00}, // sent again, as after a lost answer
		{"alice", "2", "", 50_00},
		{"alice", "3", "", 40_00},
		{"bob", "1", "initech", 90_00},
		{"bob", "1", "initech", 90_00},
		{"carol", "1", "initech", 70_00},
		{"carol", "2", "initech", 60_00},
	} {
		order := Order{Account: name(o.who), Number: o.number, Cents: o.cents}
		if o.company != "" {
			order.Company = name(o.company)
		}
		err := s.place(ctx, order)
		var over *OverBudgetError
		switch {
		case errors.As(err, &over):
			fmt.Fprintf(out, "%-5s  order %s  %6.2f  denied: the %s has %.2f left\n", o.who, o.number, euros(o.cents), over.Budget, euros(over.Left))
		case err != nil:
			return err
		default:
			fmt.Fprintf(out, "%-5s  order %s  %6.2f  ordered\n", o.who, o.number, euros(o.cents))
		}
	}
	for _, line := range []struct {
		who    string
		budget limiter.Policy
	}{{"alice", accountBudget}, {"bob", accountBudget}, {"carol", accountBudget}, {"initech", companyBudget}} {
		st, err := limits.Usage(ctx, line.budget, name(line.who))
		if err != nil {
			return err
		}
		var ordered int64
		const sum = `SELECT coalesce(sum(cents), 0)::bigint FROM orders WHERE $1 IN (account, company)`
		if err := pool.QueryRow(ctx, sum, name(line.who)).Scan(&ordered); err != nil {
			return err
		}
		fmt.Fprintf(out, "%-7s  %6.2f ordered, %6.2f spent, %5.2f left\n", line.who, euros(ordered), euros(st.Spent), euros(st.Result.Remaining))
	}
	return nil
}

func euros[T int64 | float64](cents T) float64 { return float64(cents) / 100 }

func main() {
	log.SetFlags(0)
	if err := run(context.Background(), os.Getenv("DATABASE_URL"), nil, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
