package crash

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// TestOutageTimeoutHolds: while a transaction has locked the row, requests return within
// Config.Timeout, with an error: that is no outage. The caller's own deadline keeps its own
// error. That holds with drivers that wait for the server's answer.
func TestOutageTimeoutHolds(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	p := limiter.Policy{Name: "held", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: time.Hour}
	testworld.Must(t)(testworld.NewLimiter(t, pool, nil).InTx(testworld.Begin(t, pool, pgx.TxOptions{})).Allow(t.Context(), p, "k")) // to the end of the test
	for name, open := range testworld.Drivers(t, address) {
		t.Run(name, func(t *testing.T) {
			for verb, call := range map[string]func(*limiter.Limiter) error{
				"Allow":  func(l *limiter.Limiter) error { _, err := l.Allow(t.Context(), p, "k"); return err },
				"Charge": func(l *limiter.Limiter) error { _, err := l.Charge(t.Context(), p, "k", 1); return err },
			} {
				timeout, err := 50*time.Millisecond, limiter.ErrOverloaded
				for ; errors.Is(err, limiter.ErrOverloaded) && timeout < time.Minute; timeout *= 4 { // a busy machine is slow to connect
					err = call(open(&limiter.Config{Timeout: timeout, Logger: slog.New(slog.DiscardHandler), DisableBreaker: true}))
				}
				if !errors.Is(err, limiter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), fmt.Sprint("Timeout is ", timeout/4)) {
					t.Errorf("%s: got %v", verb, err)
				}
			}
			err := testworld.UntilLocked(func(timeout time.Duration) error {
				p := p
				p.OnError = limiter.FailOpen
				r, err := open(&limiter.Config{Timeout: timeout}).Allow(t.Context(), p, "k")
				if r.Allowed { // as it does if the server does not answer in time
					err = fmt.Errorf("a locked row passed FailOpen: %+v, %w", r, context.DeadlineExceeded)
				}
				return err
			})
			if !errors.Is(err, limiter.ErrLocked) {
				t.Error(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := open(&limiter.Config{DisableTimeout: true}).Charge(ctx, p, "k", 1); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("the caller's deadline: got %v", err)
			}
		})
	}
}

// TestKeyThatTheDatabaseCannotHold: a key that the database's encoding cannot represent is
// invalid, and does not pass through FailOpen. AllowAll names it.
func TestKeyThatTheDatabaseCannotHold(t *testing.T) {
	t.Parallel()
	l := testworld.NewLimiter(t, testworld.Connect(t, testworld.Latin1(t)), nil)
	for _, p := range testworld.Variants(1, time.Hour) {
		p.OnError = limiter.FailOpen
		if r, err := l.Allow(t.Context(), p, "漢字"); !errors.Is(err, limiter.ErrInvalid) || r.Allowed {
			t.Errorf("%s: %+v, %v", testworld.Variant(p), r, err)
		}
		if r := testworld.Must(t)(l.Allow(t.Context(), p, "é")); !r.Allowed {
			t.Errorf("%s: %+v", testworld.Variant(p), r)
		}
		if all, err := l.AllowAll(t.Context(), p.Request("a", 1), p.Request("漢字", 1)); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "requests[1]") || all.Allowed {
			t.Errorf("%s: AllowAll gave %+v, %v", testworld.Variant(p), all, err)
		}
	}
}
