package connect_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestNewLimiterWithTimeout: a command waits ten seconds, unless it says otherwise.
func TestNewLimiterWithTimeout(t *testing.T) {
	t.Parallel()
	pool := must.OK(pgxpool.New(t.Context(), "postgres://app@127.0.0.1:1/shop"))(t) // connects on use
	t.Cleanup(pool.Close)
	for _, c := range []struct {
		config limiter.Config
		want   time.Duration
	}{
		{limiter.Config{}, 10 * time.Second},
		{limiter.Config{Timeout: time.Second}, time.Second},
		{limiter.Config{DisableTimeout: true}, 0},
	} {
		l := must.OK(connect.NewLimiterWith(&cobra.Command{}, pool, &c.config))(t)
		if c.config.Timeout != c.want {
			t.Errorf("Timeout %v, want %v", c.config.Timeout, c.want)
		}
		must.Succeed(t, l.Close())
	}
}
