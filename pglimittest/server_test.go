package pglimittest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shared is the server of all tests except those that end a server.
var shared *Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (status int) {
	logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	os.Unsetenv(SharedURL) // the tests are about the other backends
	begin := time.Now()
	var err error
	if shared, err = Start(context.Background(), logf); err != nil {
		logf("%v", err)
		return 1
	}
	logf("started in %v", time.Since(begin).Round(time.Millisecond))
	defer func() {
		if err := errors.Join(shared.Close(), common.close()); err != nil {
			logf("%v", err)
			status = 1
		}
	}()
	return m.Run()
}

// query returns a statement's single value as text.
func query(t *testing.T, address, sql string) (value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func prepareT(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, "create table t as select 7 as n")
	return err
}

func TestEachTestGetsACopyOfTheTemplate(t *testing.T) {
	t.Parallel()
	template, err := shared.Template(t.Context(), "copies", prepareT)
	if err != nil {
		t.Fatal(err)
	}
	const tests = 8
	var mu sync.Mutex
	seen := map[string]bool{}
	t.Run("tests", func(t *testing.T) {
		for i := range tests {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				begin := time.Now()
				address := template.New(t)
				t.Logf("created in %v", time.Since(begin).Round(time.Millisecond))
				if got := query(t, address, "insert into t values (8) returning (select count(*) from t)::text"); got != "1" {
					t.Errorf("t holds %s rows before ours, want the template's 1", got)
				}
				// An open connection must not prevent dropping the database.
				left, err := pgx.Connect(context.Background(), address)
				if err != nil {
					t.Fatal(err)
				}
				_ = left
				mu.Lock()
				defer mu.Unlock()
				seen[query(t, address, "select current_database()")] = true
			})
		}
	})
	if len(seen) != tests {
		t.Errorf("%d tests shared %d databases", tests, len(seen))
	}
	for name := range seen {
		if got := query(t, shared.URL(), "select count(*)::text from pg_database where datname = '"+name+"'"); got != "0" {
			t.Errorf("database %s outlived its test", name)
		}
	}
}

// databases returns the number of a server's databases of this run with a label.
func databases(t *testing.T, s *Server, label string) string {
	t.Helper()
	return query(t, s.URL(), fmt.Sprintf(
		"select count(*)::text from pg_database where starts_with(datname, 'pglimit_%s_%s_')", label, s.run))
}

func TestTemplateFailureIsReportedAndCleanedUp(t *testing.T) {
	t.Parallel()
	_, err := shared.Template(t.Context(), "failing", func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := pool.Exec(ctx, "select 1/0")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "division by zero") {
		t.Errorf("error %v, want the cause", err)
	}
	if got := databases(t, shared, "failing"); got != "0" {
		t.Errorf("%s databases are left", got)
	}
	if _, err := shared.Template(t.Context(), "No; such", prepareT); err == nil {
		t.Error("an invalid name was accepted")
	}
}

// TestOwnServerSurvivesItsEnds ends a server in all ways and checks that committed data are
// still there.
func TestOwnServerSurvivesItsEnds(t *testing.T) {
	t.Parallel()
	s, err := StartOwn(t.Context(), t.Logf, Setting("max_connections", "23"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		begin := time.Now()
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		t.Logf("Close took %v", time.Since(begin).Round(time.Millisecond))
	})
	for name, want := range map[string]string{"max_connections": "23", "fsync": "off", "full_page_writes": "off"} {
		if got := query(t, s.URL(), "show "+name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	template, err := s.Template(t.Context(), "ends", prepareT)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		name string
		call func(context.Context) error
	}{
		{"Kill", s.Kill},
		{"Stop", s.Stop},
		{"nothing", func(context.Context) error { return nil }},
	} {
		begin := time.Now()
		if err := end.call(t.Context()); err != nil {
			t.Fatalf("%s: %v", end.name, err)
		}
		ended := time.Now()
		if end.name != "nothing" {
			if conn, err := pgx.Connect(t.Context(), s.URL()); err == nil {
				conn.Close(t.Context())
				t.Fatalf("after %s the server still answers", end.name)
			}
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatalf("Restart after %s: %v", end.name, err)
		}
		t.Logf("%s took %v, Restart %v", end.name, ended.Sub(begin).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
		if got := query(t, template.New(t), "select n::text from t"); got != "7" {
			t.Errorf("after %s and Restart t holds %q, want 7", end.name, got)
		}
	}
}

// recorder is the TB of a failed test.
type recorder struct {
	failed   bool
	cleanups []func()
	log      []string
}

func (r *recorder) Helper()                      {}
func (r *recorder) Cleanup(f func())             { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool                 { return r.failed }
func (r *recorder) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
func (r *recorder) Logf(f string, args ...any)   { r.log = append(r.log, fmt.Sprintf(f, args...)) }

// TestUsersOwnServer uses the shared server as if the user had named it.
func TestUsersOwnServer(t *testing.T) {
	config, err := pgx.ParseConfig(shared.URL())
	if err != nil {
		t.Fatal(err)
	}
	theirs := shared.URL()
	if config.Password == "" { // a local server has none, and ignores ours
		config.Password = "hunter2"
		theirs += "&password=" + config.Password
	}
	t.Setenv(envURL, theirs)
	t.Setenv(envBackend, "")
	s, err := Start(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if s.Backend() != "url" || s.URL() != theirs {
		t.Errorf("took %s, want the server of %s", s, envURL)
	}
	if strings.Contains(s.String(), config.Password) {
		t.Errorf("%q shows the password", s)
	}
	for name, call := range map[string]func(context.Context) error{"Stop": s.Stop, "Kill": s.Kill, "Restart": s.Restart} {
		if err := call(t.Context()); err == nil || !strings.Contains(err.Error(), "StartOwn") {
			t.Errorf("%s of the user's server: %v, want an error that names StartOwn", name, err)
		}
	}

	template, err := s.Template(t.Context(), "theirs", prepareT)
	if err != nil {
		t.Fatal(err)
	}
	count := func() string { return databases(t, s, "theirs") }
	for _, r := range []*recorder{{failed: false}, {failed: true}} {
		address := template.New(r)
		for _, f := range r.cleanups {
			f()
		}
		if r.failed {
			name := query(t, address, "select current_database()")
			if !strings.Contains(strings.Join(r.log, "\n"), name) {
				t.Errorf("the log %q does not name the kept database %s", r.log, name)
			}
			t.Cleanup(func() {
				if err := shared.drop(context.Background(), name); err != nil {
					t.Error(err)
				}
			})
		}
		if want := map[bool]string{false: "1", true: "2"}[r.failed]; count() != want {
			t.Errorf("a failed test: %v; %s databases with the template, want %s", r.failed, count(), want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if count() != "1" {
		t.Errorf("%s databases after Close, want the failed test's only", count())
	}
}

// TestSharedServer: a server that another process started is used, whatever else is set,
// and no template is left on it.
func TestSharedServer(t *testing.T) {
	t.Setenv(SharedURL, shared.URL())
	t.Setenv(envURL, "postgres://nobody@127.0.0.1:1/none")
	s, err := Start(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if s.Backend() != "shared" || s.URL() != shared.URL() {
		t.Errorf("took %s, want the server of %s", s, SharedURL)
	}
	if err := s.Kill(t.Context()); err == nil || !strings.Contains(err.Error(), "StartOwn") {
		t.Errorf("Kill: %v, want an error that names StartOwn", err)
	}
	template, err := s.Template(t.Context(), "lent", prepareT)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{failed: true}
	template.New(r)
	for _, f := range r.cleanups {
		f()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := databases(t, s, "lent"); n != "0" {
		t.Errorf("%s databases after Close, want none", n)
	}
}

func TestUnknownBackendIsRefused(t *testing.T) {
	t.Setenv(envBackend, "podman")
	s, err := Start(t.Context(), t.Logf)
	if err == nil {
		s.Close()
		t.Fatal("an unknown backend was accepted")
	}
	if !strings.Contains(err.Error(), `PGLIMIT_TEST_BACKEND is "podman": set it to docker, local or citus`) {
		t.Errorf("error %v, want the possible values", err)
	}
}

func TestDatabaseURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:p@h:1/a?sslmode=disable": "postgres://u:p@h:1/b?sslmode=disable",
		"postgresql://h?dbname=a":              "postgresql://h/b",
		"postgres://u:p@h:1,i:2/a":             "postgres://u:p@h:1,i:2/b",
		"host=h dbname=a":                      "host=h dbname=a dbname=b",
	} {
		if got, err := databaseURL(address, "b"); got != want || err != nil {
			t.Errorf("databaseURL(%q) = %q, %v; want %q", address, got, err, want)
		}
	}
	config, err := pgx.ParseConfig("host=h dbname=a dbname=b")
	if err != nil || config.Database != "b" {
		t.Errorf("the last of two dbname should apply: %v, %v", config, err)
	}
	_, err = databaseURL("postgres://u:secret@h:%zz/a", "b")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("no URL: %v; want an error without the password", err)
	}
}

// TestCitusNeedsACoordinator: a server that is no coordinator is not used as one, and none is
// started where Citus is hidden.
func TestCitusNeedsACoordinator(t *testing.T) {
	t.Setenv(envBackend, kindCitus)
	t.Setenv(envURL, shared.URL())
	s, err := Start(t.Context(), t.Logf)
	if err == nil {
		s.Close()
		t.Fatal("a single server was accepted")
	}
	if !strings.Contains(err.Error(), "PGLIMIT_TEST_BACKEND is citus, but this is not the coordinator") {
		t.Errorf("error %v, want one that names the variable", err)
	}
	if _, err := StartOwn(t.Context(), t.Logf, OverTCP); err == nil || !strings.Contains(err.Error(), "OverTCP") {
		t.Errorf("over TCP: error %v", err)
	}
	t.Setenv(envWithout, kindCitus)
	if _, err := StartOwn(t.Context(), t.Logf); err == nil || !strings.Contains(err.Error(), "PGLIMIT_TEST_WITHOUT has citus") {
		t.Errorf("hidden: error %v", err)
	}
}

func TestNodeURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"postgres://u:p@h:1/a?sslmode=disable": "postgres://u:p@/a?host=w&port=7&sslmode=disable",
		"postgres://u@/a?host=h&port=1":        "postgres://u@/a?host=w&port=7",
		"host=h port=1 dbname=a":               "host=h port=1 dbname=a host='w' port=7",
	} {
		if got, err := nodeURL(address, node{"w", 7}); got != want || err != nil {
			t.Errorf("nodeURL(%q) = %q, %v; want %q", address, got, err, want)
		}
	}
}
