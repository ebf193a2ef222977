package misconfigured

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestLostStatementsCountOnce: every verb, also one whose statements are pipelined in a
// transaction, counts once if the server loses the connection's prepared statements
// between two calls.
func TestLostStatementsCountOnce(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour, BlockFor: time.Hour, OnError: limiter.FailOpen}
	for name, c := range map[string]struct {
		call func(ctx context.Context, l *limiter.Limiter, key string) error
		want float64 // units after three calls
	}{
		"Allow": {func(ctx context.Context, l *limiter.Limiter, key string) error {
			_, err := l.AllowN(ctx, p, key, 7)
			return err
		}, 21},
		"AllowAll": {func(ctx context.Context, l *limiter.Limiter, key string) error {
			_, err := l.AllowAll(ctx, p.Request(key, 7), p.Request("x"+key, 1))
			return err
		}, 21},
		"AllowAll, denied": {func(ctx context.Context, l *limiter.Limiter, key string) error {
			if _, err := l.AllowN(ctx, p, key, 7); err != nil {
				return err
			}
			denied := limiter.Policy{Name: "denied", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour, BlockFor: time.Hour}
			_, err := l.AllowAll(ctx, p.Request(key, 5), denied.Request(key, 1), denied.Request(key, 1))
			return err
		}, 21},
		"Reserve and Settle": {func(ctx context.Context, l *limiter.Limiter, key string) error {
			r, err := l.Reserve(ctx, p.Request(key, 20), time.Hour)
			if err == nil {
				_, err = l.Settle(ctx, r.ID, 7)
			}
			return err
		}, 21},
		"Charge and Refund": {func(ctx context.Context, l *limiter.Limiter, key string) error {
			_, err := l.Charge(ctx, p, key, 10)
			if err == nil {
				_, err = l.Refund(ctx, p, key, 3)
			}
			return err
		}, 21},
		"Reset": {func(ctx context.Context, l *limiter.Limiter, key string) error {
			if err := l.Reset(ctx, p, key); err != nil {
				return err
			}
			_, err := l.AllowN(ctx, p, key, 7)
			return err
		}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged testworld.Buffer
			pool := testworld.Connect(t, address, testworld.OneConnection)
			l := testworld.NewLimiter(t, pool, &limiter.Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
			for range 3 {
				must.Succeed(t, c.call(t.Context(), l, name))
				testworld.Exec(t, pool, "DEALLOCATE ALL")
			}
			r := testworld.Must(t)(l.Check(t.Context(), p, name, 0))
			if !testworld.Near(r.Level, c.want) || logged.Count("default_query_exec_mode=exec") != 1 || logged.Count("fails open") != 0 {
				t.Errorf("%v units of %v; logged %s", r.Level, c.want, logged.String())
			}
		})
	}
}
