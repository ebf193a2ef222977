package allowall

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
)

// TestAllowAllVanishes: a client vanishes in an AllowAll, after its rows were locked, and its
// connection stays open. The server ends its transaction long before another client's
// Timeout, and nothing of it counts.
func TestAllowAllVanishes(t *testing.T) {
	t.Parallel()
	short := &limiter.Config{Timeout: 300 * time.Millisecond}
	address := testworld.NewDatabase(t)
	const unprepared = "pgx without prepared statements"
	for _, name := range append(slices.Collect(maps.Keys(testworld.Drivers(t, address))), unprepared) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			network := testworld.NewWire(t, address)
			network.VanishAt("commit\x00")
			open := testworld.Drivers(t, network.URL)[name]
			if name == unprepared {
				open = testworld.Drivers(t, testworld.WithQuery(t, network.URL, "default_query_exec_mode", "exec").String())["pgx"]
			}
			l, other := open(short), testworld.NewLimiter(t, testworld.Connect(t, address), nil)
			p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
			requests := []limiter.Request{p.Request("a of "+name, 7), p.Request("b of "+name, 7)}
			gone := make(chan error, 1)
			go func() {
				for { // on a busy machine one may end before its commit
					_, err := l.AllowAll(t.Context(), requests...)
					if err == nil || network.HasVanished() {
						gone <- err
						return
					}
				}
			}()
			testworld.Receive(t, network.Vanished, "the commit")
			r := testworld.MustAll(t)(other.AllowAll(t.Context(), requests...))
			if !r.Allowed || !testworld.Near(r.PerRequest[0].Level, 7) {
				t.Errorf("the other client's %+v", r)
			}
			if err := testworld.Receive(t, gone, "the end of the client's own wait"); !errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("the vanished client's error: %v", err)
			}
			network.End()
		})
	}
}

// TestOwnTransactionsMayNotIdle: our own transactions limit how long they may be idle, but
// not beyond the limit of the session, and leave none in the session.
func TestOwnTransactionsMayNotIdle(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	ctx := t.Context()
	for _, c := range []struct{ session, want string }{
		{"0", "30s"}, {"1d", "30s"}, {"30001ms", "30s"}, {"90min", "30s"}, {"29999ms", "29999ms"}, {"20s", "20s"},
	} {
		pool := testworld.Connect(t, address, testworld.OneConnection, testworld.Setting("idle_in_transaction_session_timeout", c.session))
		db1 := testworld.ConnectSQL(t, "pgx", address)
		db1.SetMaxOpenConns(1)
		db2 := testworld.ConnectSQL(t, "postgres", address)
		db2.SetMaxOpenConns(1)
		const show = "select current_setting('idle_in_transaction_session_timeout')"
		for name, connections := range map[string]exec.Connections{
			"pgx":                 exec.PGX(pool, 30*time.Second),
			"database/sql of pgx": exec.SQL(db1, 30*time.Second),
			"database/sql of pq":  exec.SQL(db2, 30*time.Second),
		} {
			var session, own, pipelined, after string
			read := func(into *string) exec.Call {
				return func(tx db.DBTX) error { return tx.QueryRow(ctx, show).Scan(into) }
			}
			runner := exec.NewPool(connections, exec.NewCache(nil))
			set := func(tx db.DBTX) error {
				_, err := tx.Exec(ctx, "select set_config('idle_in_transaction_session_timeout', $1::text, false)", c.session)
				return err
			}
			err := errors.Join(runner.Run(ctx, exec.Statement, set), runner.Run(ctx, exec.Statement, read(&session)), runner.Run(ctx, exec.Transaction, read(&own)),
				runner.Run(ctx, exec.Transaction, func(tx db.DBTX) error { return exec.Together(ctx, tx, []exec.Call{read(&pipelined)}) }),
				runner.Run(ctx, exec.Statement, read(&after)))
			if err != nil || own != c.want || pipelined != c.want || after != session {
				t.Errorf("%s: %v; of the session %s, of a transaction %s and %s, want %s; after it %s", name, err, session, own, pipelined, c.want, after)
			}
		}
	}
}

// TestOwnTransactionIdledTooLong: a client that was too slow for the server to wait for its
// commit runs its transaction again, and all of it counts once. lib/pq hides what the server
// said: there the transaction fails, and nothing of it counts. The pool works on.
func TestOwnTransactionIdledTooLong(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	address = testworld.NewWire(t, address).URL // over TCP the last words of a connection are read
	testworld.Exec(t, pool, "CREATE TABLE notes (note text)")
	for name, connections := range map[string]exec.Connections{
		"pgx":                 exec.PGX(testworld.Connect(t, address), time.Second),
		"database/sql of pgx": exec.SQL(testworld.ConnectSQL(t, "pgx", address), time.Second),
		"database/sql of pq":  exec.SQL(testworld.ConnectSQL(t, "postgres", address), time.Second),
	} {
		times := 0
		runner := exec.NewPool(connections, exec.NewCache(nil))
		note := func(tx db.DBTX) error {
			var pid int64
			err := tx.QueryRow(t.Context(), "INSERT INTO notes VALUES ($1::text) RETURNING pg_backend_pid()::bigint", name).Scan(&pid)
			if times++; err == nil && times == 1 {
				testworld.Eventually(t, "the server ends the session", func(context.Context) (bool, error) {
					return testworld.Value[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0, nil
				})
			}
			return err
		}
		err := runner.Run(t.Context(), exec.Transaction, note)
		if err != nil && name == "database/sql of pq" {
			if n := testworld.Value[int](t, pool, "SELECT count(*) FROM notes WHERE note = $1", name); n != 0 {
				t.Errorf("%s: %d rows after %v", name, n, err)
			}
			err = runner.Run(t.Context(), exec.Transaction, note)
		}
		if n := testworld.Value[int](t, pool, "SELECT count(*) FROM notes WHERE note = $1", name); err != nil || times < 2 || n != 1 {
			t.Errorf("%s: run %d times, %v, %d rows", name, times, err, n)
		}
	}
}
