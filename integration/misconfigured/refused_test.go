package misconfigured

import (
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/pglimittest"
)

// overEach runs a test with a limiter over pgx, over database/sql with pgx and with lib/pq.
func overEach(t *testing.T, address string, config limiter.Config, f func(t *testing.T, l *limiter.Limiter)) {
	t.Helper()
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	t.Run("pool", func(t *testing.T) { f(t, testworld.NewLimiter(t, testworld.Connect(t, address), &config)) })
	for _, driver := range testworld.SQLDrivers {
		t.Run(driver, func(t *testing.T) { f(t, testworld.NewSQL(t, testworld.ConnectSQL(t, driver, address), &config)) })
	}
}

// changed returns address with its URL changed.
func changed(t *testing.T, address string, change func(*url.URL)) string {
	t.Helper()
	u := must.OK(url.Parse(address))(t)
	change(u)
	return u.String()
}

// TestRefusedByServer: what the server or the driver refuses, because of rights, a password,
// a database, a role, a setting or missing tables, is an ErrMisconfigured with the next step. FailOpen does not
// apply to it, unless the limiter is configured so.
func TestRefusedByServer(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	withoutGrants := testworld.RuntimeRole(t, address)
	preloads := testworld.RuntimeRole(t, address)
	testworld.Exec(t, testworld.Connect(t, address), "ALTER ROLE "+testworld.RoleOf(t, preloads)+" SET session_preload_libraries = 'pglimit_none'")
	with := func(name, value string) string { return testworld.WithQuery(t, address, name, value).String() }
	simple := testworld.WithQuery(t, address, "default_query_exec_mode", "simple_protocol").String()
	const correct = "correct what it names"
	checking := changed(t, testworld.OwnServer(t, pglimittest.OverTCP).URL(), func(u *url.URL) {
		q := u.Query()
		q.Del("require_auth") // lib/pq does not know it
		u.RawQuery = q.Encode()
	})
	for _, c := range []struct {
		name, address string
		says          []string
	}{
		{"no grant", withoutGrants, []string{"42501", "SELECT, INSERT, UPDATE and DELETE on pglimit_token_bucket", "pglimit migrate grants"}},
		{"wrong password", changed(t, checking, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "wrong") }), []string{"28P01", "password"}},
		{"no such role", changed(t, checking, func(u *url.URL) { u.User = url.UserPassword("pglimit_nobody", "wrong") }), []string{"user"}},
		{"no such database", changed(t, address, func(u *url.URL) { u.Path += "_none" }), []string{"3D000", "database"}},
		{"read-only", changed(t, address, func(u *url.URL) {
			q := u.Query()
			q.Set("default_transaction_read_only", "on")
			u.RawQuery = q.Encode()
		}), []string{"25006", "target_session_attrs=read-write"}},
		{"not migrated", testworld.EmptyDatabase(t), []string{"42P01", "pglimit migrate up"}},
		{"simple protocol, strings with escapes", testworld.WithQuery(t, simple, "standard_conforming_strings", "off").String(), []string{correct}},
		{"simple protocol, LATIN1", testworld.WithQuery(t, simple, "client_encoding", "LATIN1").String(), []string{"client_encoding"}},
		{"LATIN1", with("client_encoding", "LATIN1"), []string{"client_encoding"}},
		{"a library is missing", preloads, []string{"58P01", correct}},
		{"a parameter that cannot be changed", with("max_connections", "5"), []string{"55P02", correct}},
		{"a dropped role", with("role", "pglimit_nobody"), []string{"22023", correct}},
		{"a bad setting", with("work_mem", "much"), []string{"22023", correct}},
		{"an unknown setting", with("pglimit_none", "1"), []string{"42704", correct}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, opens := range []bool{false, true} {
				overEach(t, c.address, limiter.Config{MisconfiguredFailsOpen: opens}, func(t *testing.T, l *limiter.Limiter) {
					for range 15 { // more than open the circuit breaker
						r, err := l.Allow(t.Context(), failsOpen, "k")
						if opens {
							if err != nil || r.Source != limiter.SourceDegraded {
								t.Fatalf("%+v, %v", r, err)
							}
							continue
						}
						if !errors.Is(err, limiter.ErrMisconfigured) || errors.Is(err, limiter.ErrUnavailable) || r.Allowed {
							t.Fatalf("%+v, %v", r, err)
						}
						for _, word := range c.says {
							if !strings.Contains(err.Error(), word) {
								t.Fatalf("without %q: %v", word, err)
							}
						}
						if errors.Is(err, limiter.ErrNotMigrated) != (c.name == "not migrated") {
							t.Fatal(err)
						}
					}
				})
			}
		})
	}
}

// TestRefusedForWantOfConnections: a role that may connect takes all connections that the
// server has for it. That is an overload, which passes no FailOpen, also once the circuit
// breaker is open.
func TestRefusedForWantOfConnections(t *testing.T) {
	t.Parallel()
	owner := testworld.NewDatabase(t)
	address := testworld.RuntimeRole(t, owner)
	u := must.OK(url.Parse(address))(t)
	testworld.Exec(t, testworld.Connect(t, owner), "ALTER ROLE "+pgx.Identifier{u.User.Username()}.Sanitize()+" CONNECTION LIMIT 1")
	testworld.ConnectOnce(t, address)
	overEach(t, address, limiter.Config{MisconfiguredFailsOpen: true}, func(t *testing.T, l *limiter.Limiter) {
		for range 200 {
			r, err := l.Allow(t.Context(), failsOpen, "k")
			if !errors.Is(err, limiter.ErrOverloaded) || r.Allowed || r.Reason != limiter.ReasonOverload {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	})
}

// TestRefusedInTx: in a read-only transaction of the caller the error says how to begin it.
func TestRefusedInTx(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{MisconfiguredFailsOpen: true, Logger: slog.New(slog.DiscardHandler)})
	tx := testworld.Begin(t, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if r, err := l.InTx(tx).Allow(t.Context(), failsOpen, "k"); !errors.Is(err, limiter.ErrMisconfigured) || r.Allowed || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestEncodings: a key has one row, whatever the encoding of the connection. Where it would have
// another, nothing is decided. The command finds it by any connection string.
func TestEncodings(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 2, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
	quiet := &limiter.Config{Logger: slog.New(slog.DiscardHandler), DisableDenyCache: true}
	utf8, latin1 := testworld.WithQuery(t, testworld.NewDatabase(t), "client_encoding", "UTF8").String(), testworld.Latin1(t)
	for _, c := range []struct {
		database, client string
		granted          int // after the first of a limit of 2
	}{{utf8, "LATIN1", 0}, {utf8, "SQL_ASCII", 1}, {latin1, "SQL_ASCII", 0}, {latin1, "LATIN1", 0}} {
		address := testworld.WithQuery(t, c.database, "client_encoding", c.client).String()
		own, pool := testworld.Connect(t, c.database), testworld.Connect(t, c.database, testworld.OneConnection)
		l, over, overSQL := testworld.NewLimiter(t, own, quiet), testworld.NewLimiter(t, pool, quiet), testworld.NewSQL(t, testworld.ConnectSQL(t, "pgx", address), quiet)
		testworld.Must(t)(over.Allow(t.Context(), p, "k"))
		testworld.Exec(t, pool, "SET client_encoding = '"+c.client+"'")
		for name, allow := range map[string]func() (limiter.Result, error){
			"pool":         func() (limiter.Result, error) { return over.Allow(t.Context(), p, "Zoë") },
			"database/sql": func() (limiter.Result, error) { return overSQL.Allow(t.Context(), p, "Zoë") },
			"a transaction of another pool": func() (limiter.Result, error) {
				tx := testworld.Begin(t, pool, pgx.TxOptions{})
				defer testworld.Commit(t, tx)
				return l.InTx(tx).Allow(t.Context(), p, "Zoë")
			},
		} {
			testworld.Exec(t, own, "DELETE FROM pglimit_token_bucket")
			granted := 0
			for range 5 {
				testworld.Must(t)(l.Allow(t.Context(), p, "Zoë"))
				r, err := allow()
				if (c.granted == 0) != (errors.Is(err, limiter.ErrMisconfigured) && strings.Contains(err.Error(), "client_encoding")) {
					t.Errorf("%s over %s: %+v, %v", name, address, r, err)
				}
				granted += int(r.Granted)
			}
			if rows := testworld.Value[int](t, own, "SELECT count(*) FROM pglimit_token_bucket"); rows != 1 || granted != c.granted {
				t.Errorf("%s over %s: granted %d, want %d; %d rows", name, address, granted, c.granted, rows)
			}
		}
		if code, out, err := testworld.Pglimit(t, address, "find", "Zoë"); code != 0 || !strings.Contains(out, "2/2") {
			t.Errorf("find over %s: %d, %s%s", address, code, out, err)
		}
	}
}
