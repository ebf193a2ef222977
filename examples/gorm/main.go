// Command gorm places orders against an account's budget: the order and its
// spend are in one transaction of GORM.
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

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// Order is a row of the table orders.
type Order struct {
	ID      int64
	Account string
	Cents   int64
}

// budget is 100.00 per account and 30 days, in cents.
var budget = limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_00, Period: 30 * 24 * time.Hour}

type shop struct {
	db     *gorm.DB
	limits *limiter.Limiter
}

// order places an order if the account's budget has room. Otherwise nothing is written,
// and the error is a *limiter.DeniedError.
func (s *shop) order(ctx context.Context, o *Order) (left float64, err error) {
	work := func(tx *gorm.DB) error {
		if err := tx.Create(o).Error; err != nil {
			return err
		}
		// The limit comes last: the budget's row stays locked until the transaction ends.
		r, err := s.limits.InSQLTx(sqlTx(tx)).AllowN(ctx, budget, o.Account, float64(o.Cents))
		if err != nil {
			return err
		}
		left = r.Remaining
		return r.Err() // after a denial GORM rolls back
	}
	for range 5 { // run all of it again after a conflict, such as a deadlock
		o.ID = 0
		err = s.db.WithContext(ctx).Transaction(work)
		if !errors.Is(err, limiter.ErrRetryTx) {
			break
		}
	}
	return left, err
}

// sqlTx returns GORM's current transaction.
func sqlTx(tx *gorm.DB) *sql.Tx {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok { // with gorm.Config.PrepareStmt
		pool = prepared.Tx
	}
	return pool.(*sql.Tx)
}

func run(ctx context.Context, url string, config *gorm.Config, out io.Writer) error {
	config.Logger = logger.Discard
	db, err := gorm.Open(postgres.Open(url), config)
	if err != nil {
		return err
	}
	sqlDB, err := db.DB()
	if err != nil {
		return err
	}
	defer sqlDB.Close()
	if err := migrations.UpSQL(ctx, sqlDB); err != nil {
		return err
	}
	if err := db.AutoMigrate(&Order{}); err != nil {
		return err
	}
	limits, err := limiter.NewSQL(sqlDB, nil)
	if err != nil {
		return err
	}
	defer limits.Close()
	s := &shop{db, limits}

	account := limiter.JoinKey("account", time.Now().Format(time.RFC3339Nano)) // new accounts for each run
	for _, cents := range []int64{60_00, 30_00, 20_00, 10_00} {
		left, err := s.order(ctx, &Order{Account: account, Cents: cents})
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
	var orders []Order
	if err := db.Order("id").Find(&orders, "account = ?", account).Error; err != nil {
		return err
	}
	for _, o := range orders {
		fmt.Fprintf(out, "in the table: %.2f\n", float64(o.Cents)/100)
	}
	r, err := limits.Check(ctx, budget, account, 0)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%.2f spent\n", r.Level/100)
	return nil
}

func main() {
	if err := run(context.Background(), os.Getenv("DATABASE_URL"), &gorm.Config{}, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
