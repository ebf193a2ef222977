package janitor

import (
	"context"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
)

// gate delays every deletion from a table until it is opened.
type gate struct {
	conn *pgxpool.Conn // keeps it shut; nil: open
}

const gateLock = 4711

func newGate(t *testing.T, pool *pgxpool.Pool, table string) *gate {
	t.Helper()
	testworld.Exec(t, pool, `CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN OLD; END $$`)
	testworld.Exec(t, pool, `CREATE TRIGGER gate BEFORE DELETE ON `+table+` FOR EACH ROW EXECUTE FUNCTION pass_gate()`)
	conn := must.OK(pool.Acquire(t.Context()))(t)
	must.OK(conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, gateLock))(t)
	g := &gate{conn}
	t.Cleanup(func() {
		if g.conn != nil {
			g.conn.Hijack().Close(context.Background())
		}
	})
	return g
}

func (g *gate) open(t *testing.T) {
	t.Helper()
	must.OK(g.conn.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, gateLock))(t)
	g.conn.Release()
	g.conn = nil
}

// result is what Sweep returned.
type result struct {
	removed janitor.Removed
	err     error
}

func sweepAside(t *testing.T, j *janitor.Janitor) <-chan result {
	t.Helper()
	ended := make(chan result, 1)
	go func() {
		removed, err := j.Sweep(t.Context())
		ended <- result{removed, err}
	}()
	return ended
}

// renew takes a token on an expired row, within tx if that is not nil.
func renew(t *testing.T, tx pgx.Tx, pool *pgxpool.Pool, key string) {
	t.Helper()
	var err error
	if tx != nil {
		_, err = take(t.Context(), tx, "p", key, nil)
	} else {
		_, err = take(t.Context(), pool, "p", key, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkLevels expects exactly the given keys of policy p with their levels.
func checkLevels(t *testing.T, pool *pgxpool.Pool, want string) {
	t.Helper()
	got := testworld.Value[string](t, pool, `SELECT coalesce(string_agg(key || ':' || level, ' ' ORDER BY key), '') FROM pglimit_token_bucket`)
	if got != want {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// TestJanitorLeavesWhatWasRenewedSinceItLooked: the statement has seen three expired rows
// and is deleting the first when the third is renewed and committed.
func TestJanitorLeavesWhatWasRenewedSinceItLooked(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			address := testworld.NewDatabase(t)
			pool := testworld.Connect(t, address)
			testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 3, 0)
			// Rows are found, locked and deleted one after the other in this plan.
			sweeper := testworld.Connect(t, address, testworld.Setting("default_transaction_isolation", isolation),
				testworld.Setting("enable_hashjoin", "off"), testworld.Setting("enable_mergejoin", "off"), testworld.Setting("enable_seqscan", "off"), testworld.Setting("enable_material", "off"))
			gate := newGate(t, pool, "pglimit_token_bucket")
			ended := sweepAside(t, testworld.NewJanitor(t, sweeper, nil))
			testworld.AwaitBlocked(t, pool)
			renew(t, nil, testworld.Connect(t, address, testworld.Setting("lock_timeout", "30s")), "k3") // fails if the plan differs
			gate.open(t)
			if r := testworld.Receive(t, ended, "the sweep's end"); r.err != nil || r.removed.Total() != 2 {
				t.Errorf("the sweep removed %v, error %v; want 2 rows", r.removed.ByTable, r.err)
			}
			checkLevels(t, pool, "k3:1")
		})
	}
}

// TestJanitorPassesOverWhatIsHeld: a row that a transaction has locked is neither deleted
// nor waited for.
func TestJanitorPassesOverWhatIsHeld(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 3, 0)
		tx := must.OK(pool.Begin(t.Context()))(t)
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		renew(t, tx, nil, "k1")

		j := testworld.NewJanitor(t, over, &janitor.Config{BatchSize: 1, Logger: slog.New(slog.DiscardHandler)})
		ended := sweepAside(t, j)
		testworld.Eventually(t, "the sweep has ended", func(ctx context.Context) (bool, error) {
			select {
			case r := <-ended:
				if r.err != nil || r.removed.Total() != 2 {
					t.Errorf("the sweep removed %v, error %v; want 2 rows", r.removed.ByTable, r.err)
				}
				return true, nil
			default:
			}
			if n, err := testworld.Blocked(ctx, pool); n > 0 || err != nil {
				t.Fatalf("the sweep waits for the row that the transaction holds (%v)", err)
			}
			return false, nil
		})
		must.Succeed(t, tx.Rollback(t.Context()))
		checkLevels(t, pool, "k1:0")
		sweep(t, j, map[string]int64{"pglimit_token_bucket": 1})
	})
}
