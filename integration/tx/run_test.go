package tx

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// overRunners runs a test with RunTx and RunSQLTx over each driver, on one database, each
// with a separate policy.
func overRunners(t *testing.T, f func(t *testing.T, w testworld.Way, pool *pgxpool.Pool, p limiter.Policy)) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	for i, w := range testworld.Ways(t, address, false) {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			f(t, w, pool, limiter.Policy{Name: fmt.Sprint("p", i), Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour})
		})
	}
}

// spent expects the units in use of a key.
func spent(t *testing.T, w testworld.Way, p limiter.Policy, key string, want float64) {
	t.Helper()
	if got := testworld.Level(t, w.L, p, key); got != want {
		t.Errorf("%v units of %s are in use, want %v", got, key, want)
	}
}

// TestRunTxSerializes: a change by others since the snapshot fails a limit, a statement of
// the caller or the commit, and the next run succeeds.
func TestRunTxSerializes(t *testing.T) {
	overRunners(t, func(t *testing.T, w testworld.Way, pool *pgxpool.Pool, p limiter.Policy) {
		ctx := t.Context()
		table := "counts_" + p.Name
		testworld.Exec(t, pool, "CREATE TABLE "+table+" (id int PRIMARY KEY, n int); INSERT INTO "+table+" VALUES (1, 0), (2, 0)")
		for name, c := range map[string]struct {
			others func() error // meanwhile, by another transaction
			own    string
		}{
			"a limit":     {func() error { _, err := w.L.Allow(ctx, p, "a limit"); return err }, "SELECT 1"},
			"a statement": {func() error { _, err := pool.Exec(ctx, "UPDATE "+table+" SET n = n + 1 WHERE id = 1"); return err }, "UPDATE " + table + " SET n = n + 10 WHERE id = 1"},
			"the commit": {func() error { // both read what the other writes
				return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
					var sum int
					if err := tx.QueryRow(ctx, "SELECT sum(n) FROM "+table).Scan(&sum); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "UPDATE "+table+" SET n = n + 1 WHERE id = 2")
					return err
				})
			}, "UPDATE " + table + " SET n = n + 10 WHERE id = 1"},
		} {
			runs := 0
			err := w.Run(ctx, true, func(tx *testworld.Transaction) error {
				var sum int
				if err := tx.Read(ctx, "SELECT sum(n) FROM "+table, &sum); err != nil { // takes the snapshot
					return err
				}
				early := name != "the commit"
				if runs++; runs == 1 && early {
					must.Succeed(t, c.others())
				}
				if err := tx.Exec(ctx, c.own); err != nil {
					return err
				}
				if _, err := tx.AllowN(ctx, p, name, 2); err != nil {
					return err
				}
				if runs == 1 && !early {
					return c.others()
				}
				return nil
			})
			want := 2.0
			if name == "a limit" {
				want = 3
			}
			if err != nil || runs != 2 {
				t.Errorf("%s: %v after %d runs, want 2", name, err, runs)
			}
			spent(t, w, p, name, want)
		}
	})
}

// TestRunTxDeadlock: two that take the same limits in opposite orders both commit.
func TestRunTxDeadlock(t *testing.T) {
	overRunners(t, func(t *testing.T, w testworld.Way, _ *pgxpool.Pool, p limiter.Policy) {
		ctx := t.Context()
		var mu sync.Mutex
		runs, first := 0, make(chan struct{})
		var both sync.WaitGroup
		both.Add(2)
		go func() { both.Wait(); close(first) }()
		run := func(keys ...string) error {
			mine := 0
			return w.Run(ctx, false, func(tx *testworld.Transaction) error {
				mu.Lock()
				runs++
				mu.Unlock()
				if _, err := tx.Allow(ctx, p, keys[0]); err != nil {
					return err
				}
				if mine++; mine == 1 {
					both.Done()
					<-first // each has its first row
				}
				_, err := tx.Allow(ctx, p, keys[1])
				return err
			})
		}
		errs := make(chan error, 1)
		go func() { errs <- run("a", "b") }()
		if err := errors.Join(run("b", "a"), <-errs); err != nil {
			t.Error(err)
		}
		if runs < 3 { // the second may lock its row again before the other is awake
			t.Errorf("%d runs, want 3 or more", runs)
		}
		spent(t, w, p, "a", 2)
		spent(t, w, p, "b", 2)
	})
}

// TestRunTxCommitFails: a commit that fails for good is not repeated, nor is one without
// an answer, which is an ErrCommitUnknown.
func TestRunTxCommitFails(t *testing.T) {
	overRunners(t, func(t *testing.T, w testworld.Way, pool *pgxpool.Pool, p limiter.Policy) {
		ctx := t.Context()
		parent, child := "parents_"+p.Name, "children_"+p.Name
		testworld.Exec(t, pool, fmt.Sprintf(`
			CREATE TABLE %s (id int PRIMARY KEY);
			CREATE TABLE %s (id int REFERENCES %s DEFERRABLE INITIALLY DEFERRED);
			CREATE TABLE ends_%s (id int);
			CREATE FUNCTION end_%[4]s() RETURNS trigger LANGUAGE plpgsql AS
				'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
			CREATE CONSTRAINT TRIGGER t AFTER INSERT ON ends_%[4]s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION end_%[4]s()`,
			parent, child, parent, p.Name))
		for name, c := range map[string]struct {
			insert  string
			unknown bool
		}{
			"a deferred constraint": {"INSERT INTO " + child + " VALUES (1)", false},
			"the connection ends":   {"INSERT INTO ends_" + p.Name + " VALUES (1)", true},
		} {
			runs := 0
			err := w.Run(ctx, false, func(tx *testworld.Transaction) error {
				runs++
				if err := tx.Exec(ctx, c.insert); err != nil {
					t.Error(err)
				}
				_, err := tx.Allow(ctx, p, "k")
				return err
			})
			if err == nil || runs != 1 || errors.Is(err, limiter.ErrCommitUnknown) != c.unknown || errors.Is(err, limiter.ErrRetryTx) {
				t.Errorf("%s: %v after %d runs", name, err, runs)
			}
		}
		spent(t, w, p, "k", 0)
		// An error that work ignored rolls back.
		err := w.Run(ctx, false, func(tx *testworld.Transaction) error {
			_, err := tx.Allow(ctx, p, "k")
			_ = tx.Exec(ctx, "SELECT 1/0")
			return err
		})
		if err == nil || !w.PQ && !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("an ignored error: %v", err)
		}
		spent(t, w, p, "k", 0)
	})
}

// TestRunTxRollsBack: on an error, a denial and a panic nothing stays, and the connection
// can be used again.
func TestRunTxRollsBack(t *testing.T) {
	overRunners(t, func(t *testing.T, w testworld.Way, pool *pgxpool.Pool, p limiter.Policy) {
		ctx := t.Context()
		testworld.Exec(t, pool, "CREATE TABLE orders_"+p.Name+" (n int)")
		order := func(units float64, after func() error) error {
			return w.Run(ctx, false, func(tx *testworld.Transaction) error {
				if err := tx.Exec(ctx, "INSERT INTO orders_"+p.Name+" VALUES (1)"); err != nil {
					return err
				}
				res, err := tx.AllowN(ctx, p, "k", units)
				if err == nil {
					err = res.Err()
				}
				if err != nil {
					return err
				}
				return after()
			})
		}
		done := func() error { return nil }
		var denied *limiter.DeniedError
		if err := order(11, done); !errors.As(err, &denied) {
			t.Errorf("a denial: %v", err)
		}
		other := errors.New("other")
		if err := order(3, func() error { return other }); err != other {
			t.Errorf("an error: %v", err)
		}
		func() {
			defer func() {
				if recover() != "made up" {
					t.Error("the panic did not go on")
				}
			}()
			_ = order(3, func() error { panic("made up") })
		}()
		spent(t, w, p, "k", 0)
		if err := order(2, done); err != nil {
			t.Error(err)
		}
		spent(t, w, p, "k", 2)
		if n := testworld.Value[int](t, pool, "SELECT count(*) FROM orders_"+p.Name); n != 1 {
			t.Errorf("%d orders, want 1", n)
		}
	})
}
