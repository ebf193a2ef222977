package leader

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// TestLeaseStatement checks that errors come with the next step if it is known.
func TestLeaseStatement(t *testing.T) {
	t.Parallel()
	statement := func(ctx context.Context, lasts time.Duration, send func(context.Context) error) error {
		return New(exec.InTx(nil), lasts, nil).Statement(ctx, func(ctx context.Context, _ db.DBTX) error { return send(ctx) })
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{&pgconn.PgError{Code: UndefinedTable}, "run `pglimit migrate up`"},
		{&pgconn.PgError{Code: "53300"}, ""},
		{errors.New("connection lost"), ""},
	} {
		err := statement(t.Context(), time.Minute, func(context.Context) error { return c.err })
		if !errors.Is(err, c.err) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v; want %q", c.err, err, c.want)
		}
	}
	waits := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	err := statement(t.Context(), time.Millisecond, waits)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "longer than the lease, 1ms") {
		t.Errorf("a slow statement: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := statement(ctx, time.Minute, waits); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}
