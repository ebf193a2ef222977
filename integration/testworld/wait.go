package testworld

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// AwaitBlocked returns once a statement in pool's database waits for a lock.
func AwaitBlocked(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	Eventually(t, "a statement waits for a lock", func(ctx context.Context) (bool, error) {
		n, err := Blocked(ctx, pool)
		return n > 0, err
	})
}

// Receive waits for a value from c.
func Receive[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	var v T
	select {
	case v = <-c:
	case <-time.After(time.Minute): // prevents a hang
		t.Fatalf("it did not come: %s", what)
	}
	return v
}

// Eventually polls the database until is returns true. Use it for what the server does not
// announce, such as a statement that waits for a lock.
func Eventually(t testing.TB, what string, is func(context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // prevents a hang
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := is(ctx)
		if ok {
			return
		}
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = fmt.Errorf("it did not happen: %w", ctx.Err())
			}
		}
		t.Fatalf("wait until %s: %v", what, err)
	}
}

// Blocked counts the statements in pool's database that wait for a lock.
func Blocked(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	err = pool.QueryRow(ctx, onNodes(`SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'active' AND wait_event_type = 'Lock'`)).Scan(&n)
	return n, err
}

// UntilLocked calls f with a Config.Timeout and, while the client's own deadline ends the
// call, with longer ones. The server ends a wait for a locked row an eighth of the timeout
// before the client does: on a busy machine that answer may come too late.
func UntilLocked(f func(timeout time.Duration) error) (err error) {
	for timeout := time.Second; timeout <= time.Minute; timeout *= 3 {
		if err = f(timeout); errors.Is(err, limiter.ErrLocked) || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return err
}

// AwaitLongWait waits until one statement has waited for a row for 100 ms, or is returns true.
// The first waits of a limiter are shorter, and this one goes on for 60 ms at least.
func AwaitLongWait(t testing.TB, pool *pgxpool.Pool, is func() bool) {
	t.Helper()
	Eventually(t, "a statement waits for the row", func(context.Context) (bool, error) {
		return is() || Value[int](t, pool, onNodes(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > '100 ms'`)) == 1, nil
	})
}
