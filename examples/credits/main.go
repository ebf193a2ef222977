// Command credits sells prepaid units. An order takes a customer's weekly limit, then credits, then
// the card. A payment and its credits are in one transaction, and so are an order and what pays it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// The pools of a customer, in cents.
var (
	weekly  = limiter.Policy{Name: "weekly", Algorithm: limiter.FixedWindow, Limit: 20_00, Period: 7 * 24 * time.Hour}
	credits = limiter.Policy{Name: "credits", Algorithm: limiter.Balance}
	card    = limiter.Policy{Name: "card", Algorithm: limiter.FixedWindow, Limit: 50_00, Period: 30 * 24 * time.Hour}
)

const tables = `
CREATE TABLE IF NOT EXISTS payments (customer text, number text, cents bigint NOT NULL, PRIMARY KEY (customer, number));
CREATE TABLE IF NOT EXISTS orders (customer text, number text, cents bigint NOT NULL, paid_by text NOT NULL, PRIMARY KEY (customer, number))`

type shop struct {
	pool   *pgxpool.Pool
	limits *limiter.Limiter
}

// paid records a payment and grants its credits, or neither. A provider may report a payment several
// times: the number makes it count once.
func (s *shop) paid(ctx context.Context, customer, number string, cents int64) error {
	return limiter.RunTx(ctx, s.limits, s.pool, nil, func(tx pgx.Tx, limits *limiter.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", customer, number, cents); err != nil {
			return err
		}
		lot := limiter.GrantOptions{Expires: time.Now().AddDate(1, 0, 0), Source: "invoice " + number, IdempotencyKey: number}
		_, err := limits.Grant(ctx, credits, customer, float64(cents), lot)
		return err
	})
}

// order places an order, paid by the first pool that has all of its cents, once for each number. If
// none has, nothing is written, and the error is a *limiter.DeniedError.
func (s *shop) order(ctx context.Context, customer, number string, cents int64) (paidBy string, err error) {
	cost := float64(cents)
	err = limiter.RunTx(ctx, s.limits, s.pool, nil, func(tx pgx.Tx, limits *limiter.Tx) error {
		r, err := limits.AllowAny(ctx, weekly.Request(customer, cost), credits.Request(customer, cost), card.Request(customer, cost))
		if err = cmp.Or(err, r.Err()); err != nil {
			return err
		}
		paidBy = r.PerRequest[r.GrantedBy].Policy.Name
		// If the number is there already, the error rolls the spend back too.
		_, err = tx.Exec(ctx, "INSERT INTO orders VALUES ($1, $2, $3, $4)", customer, number, cents, paidBy)
		return err
	})
	return paidBy, err
}

func (s *shop) demo(ctx context.Context, out io.Writer) error {
	if _, err := s.pool.Exec(ctx, tables); err != nil {
		return err
	}
	customer := limiter.JoinKey("customer", time.Now().Format(time.RFC3339Nano))                       // a new one for each run
	gift := limiter.GrantOptions{Expires: time.Now().AddDate(0, 1, 0), Priority: -1, Source: "a gift"} // spent first
	if _, err := s.limits.Grant(ctx, credits, customer, 5_00, gift); err != nil {
		return err
	}
	for range 2 { // the provider reports it again
		if err := s.paid(ctx, customer, "1042", 50_00); err != nil {
			return err
		}
	}
	for n, cents := range []int64{20_00, 30_00, 40_00, 20_00, 20_00} {
		paidBy, err := s.order(ctx, customer, fmt.Sprint(n), cents)
		if denied := (*limiter.DeniedError)(nil); errors.As(err, &denied) {
			paidBy = "nothing: not placed"
		} else if err != nil {
			return err
		}
		fmt.Fprintf(out, "order %d of %d.00: paid by %s\n", n, cents/100, paidBy)
	}
	u, err := s.limits.Usage(ctx, credits, customer)
	fmt.Fprintf(out, "credits: %.2f granted, %.2f spent, %.2f left\n", u.Granted/100, u.Spent/100, u.Result.Remaining/100)
	for _, lot := range u.Lots {
		fmt.Fprintf(out, "lot %d, %s: %.2f\n", lot.Number, lot.Source, lot.Units/100)
	}
	return err
}

func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	limits, err := limiter.New(pool, nil)
	if err != nil {
		return err
	}
	defer limits.Close()
	return (&shop{pool, limits}).demo(ctx, out)
}

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}
