package decide

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideRetryAfterIsExact denies in many states of every variant: a microsecond before
// RetryAfter the request is still denied, at RetryAfter it is allowed.
func TestDecideRetryAfterIsExact(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	for _, p := range bed.Variants(7, 10*time.Second) {
		t.Run(bed.Variant(p), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			l := bed.NewLimiter(t, pool, &limiter.Config{Now: clock.Now})
			denials := 0
			for seed := range int64(60) {
				key := fmt.Sprint("key", seed)
				at := seed * 1_234_567
				for range 6 {
					at += seed * 101
					for range 3 {
						clock.Set(at)
						cost := 1 + float64((seed*7+at)%5)
						r := bed.Must(t)(l.AllowN(ctx, p, key, cost))
						if r.Allowed {
							continue
						}
						denials++
						clock.Set(at + r.RetryAfter.Microseconds() - 1)
						if early := bed.Must(t)(l.Check(ctx, p, key, cost)); early.Allowed {
							t.Fatalf("cost %v, denied at %d for %v, allowed a microsecond before: %+v", cost, at, r.RetryAfter, early)
						}
						clock.Set(at + r.RetryAfter.Microseconds())
						if then := bed.Must(t)(l.AllowN(ctx, p, key, cost)); !then.Allowed {
							t.Fatalf("cost %v, denied at %d for %v, still denied then: %+v", cost, at, r.RetryAfter, then)
						}
						at += r.RetryAfter.Microseconds()
					}
				}
			}
			if denials < 50 {
				t.Errorf("only %d denials", denials)
			}
		})
	}
}

// TestDecideHeldKeyDoesNotOverAdmit locks a key in a transaction for a second. Other
// requests wait, and then count what the transaction left.
func TestDecideHeldKeyDoesNotOverAdmit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	for _, p := range bed.Variants(10, 1000*time.Hour) {
		t.Run(bed.Variant(p), func(t *testing.T) {
			t.Parallel()
			tx, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(ctx)
			bed.Must(t)(l.InTx(tx).AllowN(ctx, p, "held", 8))

			results := make(chan limiter.Result, 5)
			for range cap(results) {
				go func() {
					r, err := l.Allow(ctx, p, "held")
					if err != nil {
						t.Error(err)
					}
					results <- r
				}()
			}
			// Keep it locked for a second of the database's time, then continue.
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(1)"); err != nil {
				t.Fatal(err)
			}
			if len(results) > 0 {
				t.Error("a request did not wait for the row")
			}
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			allowed := 0
			for range cap(results) {
				if r := <-results; r.Allowed {
					allowed++
				}
			}
			if allowed != 2 {
				t.Errorf("%d of 5 allowed, want the 2 units left of 10", allowed)
			}
		})
	}
}

// TestDecideLongTransactionDoesNotFreezeTheClock: inside one transaction the bucket
// continues to leak.
func TestDecideLongTransactionDoesNotFreezeTheClock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "fast", Algorithm: limiter.TokenBucket, Limit: 10, Period: 100 * time.Millisecond, Burst: 1}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	bed.Must(t)(l.InTx(tx).Allow(ctx, p, "k"))
	if _, err := tx.Exec(ctx, "SELECT pg_sleep(0.05)"); err != nil {
		t.Fatal(err)
	}
	if r := bed.Must(t)(l.InTx(tx).Allow(ctx, p, "k")); !r.Allowed {
		t.Errorf("after five times the refill, in the same transaction: %+v", r)
	}
}

// TestDecideStricterDefaultIsolation: a database whose default isolation is repeatable
// read or serializable still decides.
func TestDecideStricterDefaultIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			url := bed.NewDatabase(t)
			conn, err := pgx.Connect(context.Background(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(context.Background(), `DO $$ BEGIN EXECUTE format(
				'ALTER DATABASE %I SET default_transaction_isolation = %L', current_database(), '`+level+`'); END $$`); err != nil {
				t.Fatal(err)
			}
			limiters := limitersOnPools(t, url)
			for _, p := range bed.Variants(bed.CapUnit, 1000*time.Hour) {
				if got := bed.Storm(t, limiters.all, p, "k"); got != bed.CapUnit {
					t.Errorf("%s: admitted %v of %v", bed.Variant(p), got, bed.CapUnit)
				}
			}
		})
	}
}
