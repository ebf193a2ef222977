// Command goose is an application with its own goose migrations, among which
// pglimit's run: one folder, one sequence of numbers, one version table.
//
//	pglimit migrate export migrations   once, and after each update of pglimit
//	go run .                            run the migrations that have not been run, then take orders
//	go run . down                       undo them all
package main

import (
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"path"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/pglimit/pglimit/limiter"
)

// files are the application's migrations, and pglimit's once they are exported.
//
//go:embed migrations/*.sql
var files embed.FS

// perCustomer is the number of orders that a customer may place.
var perCustomer = limiter.Policy{Name: "orders", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}

func main() {
	log.SetFlags(0)
	folder, err := fs.Sub(files, "migrations")
	if err == nil {
		err = run(context.Background(), os.Stdout, os.Getenv("DATABASE_URL"), folder, os.Args[1:])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, out io.Writer, url string, folder fs.FS, args []string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	switch {
	case len(args) == 0:
		if err := migrate(ctx, out, pool, folder, false); err != nil {
			return err
		}
		return takeOrders(ctx, out, pool)
	case len(args) == 1 && args[0] == "down":
		return migrate(ctx, out, pool, folder, true)
	}
	return fmt.Errorf("unknown arguments %q: say nothing, or down", args)
}

// migrate runs the missing migrations, or undoes all, and prints each.
func migrate(ctx context.Context, out io.Writer, pool *pgxpool.Pool, folder fs.FS, down bool) error {
	// Several processes may start at once: one migrates, and the others check each second
	// until it is done, for at most five minutes.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, stdlib.OpenDBFromPool(pool), folder, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	defer provider.Close() // of the *sql.DB; the pool stays open
	var results []*goose.MigrationResult
	if down {
		results, err = provider.DownTo(ctx, 0)
	} else {
		results, err = provider.Up(ctx)
	}
	for _, r := range results {
		fmt.Fprintln(out, r.Direction, path.Base(r.Source.Path))
	}
	return err
}

// takeOrders places up to four orders for alice, as the limit allows.
func takeOrders(ctx context.Context, out io.Writer, pool *pgxpool.Pool) error {
	l, err := limiter.New(pool, nil)
	if err != nil {
		return err
	}
	for range 4 {
		r, err := order(ctx, pool, l, "alice")
		switch {
		case err != nil:
			return err
		case r.Allowed:
			fmt.Fprintf(out, "order placed, %g left this hour\n", r.Remaining)
		default:
			fmt.Fprintln(out, "order denied")
		}
	}
	return nil
}

// order places an order and counts it, in one transaction.
func order(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter, customer string) (r limiter.Result, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return r, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // no effect after Commit
	const insert = `INSERT INTO orders (customer) SELECT id FROM customers WHERE name = $1`
	if _, err := tx.Exec(ctx, insert, customer); err != nil {
		return r, err
	}
	if r, err = l.InTx(tx).Allow(ctx, perCustomer, customer); err != nil || !r.Allowed {
		return r, err
	}
	return r, tx.Commit(ctx)
}
