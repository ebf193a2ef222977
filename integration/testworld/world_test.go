package testworld

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { Main(m, 2) }

// TestWorld: tests connect as their world says, so that no row of scripts/test-matrix
// tests the usual one under another name.
func TestWorld(t *testing.T) {
	t.Parallel()
	address := NewDatabase(t)
	pool := Connect(t, address)
	l := NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
	if r := Must(t)(l.Allow(t.Context(), p, "k")); !r.Allowed {
		t.Errorf("the first request: %+v", r)
	}
	got := map[string]bool{
		worldRole: !Value[bool](t, pool, `SELECT pg_has_role(relowner, 'MEMBER') FROM pg_class WHERE oid = 'pglimit_token_bucket'::regclass`),
		worldSchema: Value[bool](t, pool, `SELECT to_regclass('public.pglimit_token_bucket') IS NULL
			AND NOT EXISTS (SELECT FROM pg_class WHERE relname LIKE 'pglimit%' AND relnamespace <> current_schema()::regnamespace)`),
		worldSerializable: Value[string](t, pool, `SHOW default_transaction_isolation`) == "serializable",
		worldBouncer:      pool.Config().ConnConfig.User == BouncerUser && Value[string](t, pool, `SELECT session_user::text`) != BouncerUser,
	}
	name, mode, err := world()
	if err != nil {
		t.Fatal(err)
	}
	for each, is := range got {
		if is != (each == name) {
			t.Errorf("world %q, mode %q: as in world %q: %v", name, mode, each, is)
		}
	}
	distributed := `to_regclass('pg_catalog.citus_shards') IS NOT NULL`
	if workers := len(server.Workers()); workers > 0 {
		distributed = `(SELECT count(DISTINCT nodename) = ` + fmt.Sprint(workers) + ` FROM citus_shards WHERE table_name = 'pglimit_token_bucket'::regclass)`
	}
	if is := Value[bool](t, pool, "SELECT "+distributed); is != (os.Getenv("PGLIMIT_TEST_BACKEND") == "citus") {
		t.Errorf("PGLIMIT_TEST_BACKEND is %q; distributed over workers: %v", os.Getenv("PGLIMIT_TEST_BACKEND"), is)
	}
	for driver := range map[string]bool{"pgx": true, "postgres": true} {
		if r := Must(t)(NewSQL(t, ConnectSQL(t, driver, address), nil).Allow(t.Context(), p, "k")); r.Allowed {
			t.Errorf("the second request, over %s: %+v", driver, r)
		}
	}
}
