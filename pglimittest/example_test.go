package pglimittest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

var logins = limiter.PerHour("logins", 1)

// TestLogin is a test of an application over PostgreSQL. Each such test has a separate
// database, so they can run in parallel. Its package has this TestMain:
//
//	func TestMain(m *testing.M) { pglimittest.Main(m) }
func TestLogin(t *testing.T) {
	t.Parallel()
	l, err := limiter.New(pglimittest.Pool(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if r, err := l.Allow(t.Context(), logins, "alice"); err != nil || r.Allowed != want {
			t.Errorf("allowed %v, %v, want %v", r.Allowed, err, want)
		}
	}
}

func ExamplePool() {
	testLogin := func(t *testing.T) {
		l, err := limiter.New(pglimittest.Pool(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := l.Allow(t.Context(), logins, "alice"); err != nil || !r.Allowed {
			t.Errorf("the first login: %+v, %v", r, err)
		}
	}
	_ = testLogin
}

// A program that needs a server for a while. Tests call Pool instead.
func ExampleStart() {
	err := func() error {
		ctx := context.Background()
		server, err := pglimittest.Start(ctx, nil)
		if err != nil {
			return err
		}
		defer server.Close()
		address, drop, err := server.CreateDatabase(ctx, "example")
		if err != nil {
			return err
		}
		defer drop(ctx)
		pool, err := pgxpool.New(ctx, address)
		if err != nil {
			return err
		}
		defer pool.Close()
		if err := migrations.Up(ctx, pool); err != nil {
			return err
		}
		l, err := limiter.New(pool, nil)
		if err != nil {
			return err
		}
		r, err := l.Allow(ctx, logins, "alice")
		fmt.Println("allowed", r.Allowed)
		return err
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output: allowed true
}
