// Package dashboard tests the dashboard's source over a real PostgreSQL server.
package dashboard

import (
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/internal/dashboard/source"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }

var secret = []byte("sixteen bytes at least")

// open returns a source over pool.
func open(t *testing.T, pool *pgxpool.Pool, secret []byte) *source.Source {
	t.Helper()
	s, err := source.New(t.Context(), pool, secret, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ten returns a policy of 10 units whose period is longer than a test.
func ten(name string, a limiter.Algorithm) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: a, Limit: 10, Period: 1000 * time.Hour}
}

// denied writes denials of a key, some slots ago.
func denied(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string, ago int, n int64) {
	t.Helper()
	bed.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
SELECT $1::bigint, 1, $1::bigint * 2, c.slot, c.slot, $2, $3, $4
FROM (SELECT (extract(epoch FROM clock_timestamp())::bigint / 600 - $5::bigint) * 600000000 AS slot) AS c`, n, p.Name, key, string(p.Algorithm), ago)
}

func as(key string) dashboard.Ref       { return dashboard.Ref{Key: key} }
func asStored(key string) dashboard.Ref { return dashboard.Ref{Key: key, Stored: true} }

func on(ref dashboard.Ref, p limiter.Policy) dashboard.Target {
	return dashboard.Target{Ref: ref, Policy: p.Name, Algorithm: p.Algorithm}
}
