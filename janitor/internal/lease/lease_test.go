package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestLeaseStatement checks that a statement that collides with others is sent again, a
// limited number of times, and that any other error is returned immediately, with the
// next step if it is known.
func TestLeaseStatement(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection lost")
	for _, c := range []struct {
		err  error
		sent int
		want string
	}{
		{nil, 1, ""},
		{&pgconn.PgError{Code: serializationFailure}, attempts, ""},
		{&pgconn.PgError{Code: deadlockDetected}, attempts, ""},
		{&pgconn.PgError{Code: LockNotAvailable}, attempts, ""},
		{&pgconn.PgError{Code: UndefinedTable}, 1, "run `pglimit migrate up`"},
		{&pgconn.PgError{Code: "53300"}, 1, ""},
		{broken, 1, ""},
	} {
		sent := 0
		err := New(nil, time.Minute, nil).Statement(t.Context(), func(context.Context) error { sent++; return c.err })
		if !errors.Is(err, c.err) || sent != c.sent || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: sent %d times, %v; want %d times, %q", c.err, sent, err, c.sent, c.want)
		}
	}
	err := New(nil, time.Millisecond, nil).Statement(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "longer than the lease, 1ms") {
		t.Errorf("a slow statement: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := New(nil, time.Minute, nil).Statement(ctx, func(ctx context.Context) error { return ctx.Err() }); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}
