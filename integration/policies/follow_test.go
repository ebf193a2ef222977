package policies

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "github.com/lib/pq"              // the driver "postgres"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// listeners counts the sessions of a test's database that listen now.
func listeners(pool *pgxpool.Pool) (n int, err error) {
	err = pool.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'followed' AND query LIKE '%pglimit_policy_version%'`).Scan(&n)
	return n, err
}

// TestAway: while the database is away the policies stay as last known, one warning is
// logged, and a change made meanwhile arrives once it is back.
func TestAway(t *testing.T) {
	t.Parallel()
	for name, disable := range map[string]bool{"listening": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testworld.NewDatabase(t)
			dialer := testworld.NewDialer(func() string { return address })
			pool := testworld.Connect(t, address, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = dialer.Dial }, testworld.Setting("application_name", "followed"))
			direct := testworld.Connect(t, address)
			logger, logs := newLog()
			p := open(t, pool, policies.Config{PollEvery: 10 * time.Millisecond, DisableListen: disable, Logger: logger})
			version := apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: login}}})
			dialer.Down.Store(true)
			pool.Reset()
			testworld.Exec(t, direct, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'followed'`)
			testworld.Eventually(t, "a warning is logged", func(context.Context) (bool, error) { return logs.String() != "", nil })
			testworld.Exec(t, direct, `UPDATE pglimit_policy SET limit_units = 6`)
			tries := dialer.Dials.Load()
			testworld.Eventually(t, "it tries again", func(context.Context) (bool, error) { return dialer.Dials.Load() > tries+3, nil })
			if got, err := p.Get("login"); err != nil || got != login {
				t.Errorf("while it is away: %+v, %v", got, err)
			}
			if _, err := p.Apply(t.Context(), policies.Edit{Set: []policies.Stored{{Policy: login}}}); !errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("Set while it is away: %v", err)
			}
			dialer.Down.Store(false)
			p.await(t, version+1)
			if got, err := p.Get("login"); err != nil || got.Limit != 6 {
				t.Errorf("once it is back: %+v, %v", got, err)
			}
			expectLog(t, logs, "level=WARN", "those last known stay", "version=1")
		})
	}
}

// hole is a connection whose packets are lost once its silence begins.
type hole struct {
	net.Conn
	silent *atomic.Bool
}

func (h hole) Read(p []byte) (int, error) {
	for {
		if n, err := h.Conn.Read(p); err != nil || !h.silent.Load() {
			return n, err
		}
	}
}

func (h hole) Write(p []byte) (int, error) {
	if h.silent.Load() {
		return len(p), nil
	}
	return h.Conn.Write(p)
}

// TestSilence: all connections die without a word. A change is seen on a new one.
func TestSilence(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	direct, dialer := testworld.Connect(t, address), testworld.NewDialer(func() string { return address })
	var silent atomic.Pointer[atomic.Bool] // of the connections that are dialled next
	silent.Store(new(atomic.Bool))
	pool := testworld.Connect(t, address, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.Dial(ctx, network, address)
			return hole{conn, silent.Load()}, err
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // prevents a hang
	defer cancel()
	listener := must.OK(direct.Acquire(ctx))(t)
	defer listener.Release()
	must.OK(listener.Exec(ctx, `LISTEN pglimit_policies`))(t)
	p := open(t, pool, policies.Config{PollEvery: time.Hour})
	if _, err := listener.Conn().WaitForNotification(ctx); err != nil { // the probe: p has it before the next
		t.Fatal(err)
	}
	for v := range int64(2) {
		testworld.Exec(t, direct, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('p' || $1::int, 'gcra', 1, 1)`, v)
		p.await(t, v+1)
		dead := silent.Swap(new(atomic.Bool))
		dead.Store(true)
		defer dead.Store(false) // else closing takes a while
	}
}

// TestClose: after Close no session is left, nothing is followed, and Get and Apply work.
func TestClose(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address, testworld.Setting("application_name", "followed"), func(c *pgxpool.Config) { c.MaxConns = 1 })
	direct := testworld.Connect(t, address)
	p := open(t, pool, policies.Config{})
	version := apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: login}}})
	testworld.Eventually(t, "the session listens", func(context.Context) (bool, error) {
		n, err := listeners(direct)
		return n == 1, err
	})
	for range 2 {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	testworld.Eventually(t, "no connection of the pool is in use", func(context.Context) (bool, error) { return pool.Stat().AcquiredConns() == 0, nil })
	pool.Reset()
	testworld.Eventually(t, "the sessions end", func(context.Context) (bool, error) {
		return testworld.Value[int](t, direct, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'followed'`) == 0, nil
	})
	testworld.Exec(t, direct, `UPDATE pglimit_policy SET limit_units = 6`)
	if got, err := p.Get("login"); err != nil || got != login || p.Version() != version {
		t.Errorf("%+v, %v", got, err)
	}
	changed := login
	changed.Limit = 7
	must.OK(p.Apply(t.Context(), policies.Edit{Set: []policies.Stored{{Policy: changed}}}))(t)
	if got, err := p.Get("login"); err != nil || got != changed {
		t.Errorf("after Set: %+v, %v", got, err)
	}
}

// TestOpen: without the tables OpenPolicies returns an error, unless Background is set; then
// the policies arrive once there are tables.
func TestOpen(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t))
	if _, err := policies.Open(t.Context(), pool, nil); !errors.Is(err, limiter.ErrNotMigrated) {
		t.Errorf("without tables: %v", err)
	}
	logger, logs := newLog()
	p := open(t, pool, policies.Config{Background: true, PollEvery: 10 * time.Millisecond, Logger: logger})
	must.Succeed(t, p.Default(login))
	testworld.Eventually(t, "a warning is logged", func(context.Context) (bool, error) { return logs.String() != "", nil })
	must.Succeed(t, sets.Tables.Up(t.Context(), pool))
	if v := testworld.Receive(t, p.versions, "the first load"); v != 0 {
		t.Errorf("version %d", v)
	}
	if got, err := p.Get("login"); err != nil || got != login {
		t.Errorf("%+v, %v", got, err)
	}
	expectLog(t, logs, "level=WARN", "pglimit migrate up")

	for _, config := range []policies.Config{{PollEvery: time.Millisecond}, {PollEvery: -1}, {KeySecret: []byte("short")}, {PublishEvery: time.Millisecond}, {PublishEvery: 13 * time.Hour}, {Program: "a\x00"}} {
		if _, err := policies.Open(t.Context(), pool, &config); !errors.Is(err, limiter.ErrInvalid) || strings.Contains(err.Error(), "short;") {
			t.Errorf("%+v: %v", config, err)
		}
	}
	if _, err := policies.Open(t.Context(), nil, nil); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("without a pool: %v", err)
	}
	if _, err := policies.OpenSQL(t.Context(), nil, nil); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("without a db: %v", err)
	}
}

// TestSQL: all of it over database/sql.
func TestSQL(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		address := testworld.NewDatabase(t)
		pool, db := testworld.Connect(t, address), testworld.ConnectSQL(t, driver, address)
		p := must.OK(policies.OpenSQL(t.Context(), db, &policies.Config{PollEvery: 10 * time.Millisecond}))(t)
		defer p.Close()
		until := time.Date(2100, 1, 2, 3, 4, 5, 6000, time.UTC)
		version := apply(t, p, policies.Edit{
			Set: []policies.Stored{{Policy: login, Note: "é"}},
			SetOverrides: []policies.Override{
				{Policy: "login", Key: `a"{},\`, Limit: new(7.5), Shadow: new(false), Until: until}, {Policy: "login", Key: "b", Unlimited: true}},
		})
		if got, err := p.Get("login"); err != nil || got != login || p.List()[0].Note != "é" {
			t.Errorf("%+v, %v", got, err)
		}
		if all := overrides(t, p, "login"); len(all) != 2 || all[0].Key != `a"{},\` || *all[0].Limit != 7.5 || *all[0].Shadow || !all[0].Until.Equal(until) || !all[1].Unlimited {
			t.Errorf("%+v", all)
		}
		testworld.Exec(t, pool, `UPDATE pglimit_policy SET limit_units = 6`)
		testworld.Eventually(t, "the change arrives", func(context.Context) (bool, error) { return p.Version() == version+1, nil })
		if _, err := p.Apply(t.Context(), policies.Edit{IfVersion: version, Delete: []string{"login"}}); !errors.Is(err, policies.ErrChanged) {
			t.Errorf("%v", err)
		}
		apply(t, p, policies.Edit{Delete: []string{"login"}, DeleteOverrides: []policies.Override{{Policy: "login", Key: "b"}}, Note: "over"})
		h, err := p.History(t.Context(), "", 10)
		if err != nil || len(h) != 6 || h[0].Note != "over" {
			t.Errorf("%+v, %v", h, err)
		}
	})
}

// TestSchemas: the tables may be in any schema. A change in one is none in another.
func TestSchemas(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	testworld.Exec(t, testworld.Connect(t, address), `CREATE SCHEMA "Odd-One"; CREATE SCHEMA other`)
	var all []*opened
	for i, schema := range []string{`"Odd-One"`, "other"} {
		pool := testworld.Connect(t, testworld.WithSearchPath(t, address, schema))
		must.Succeed(t, sets.Tables.Up(t.Context(), pool))
		p := open(t, pool, policies.Config{PollEvery: time.Hour})
		policy := login
		policy.Limit = float64(i + 1)
		if v := apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: policy}}}); v != 1 {
			t.Errorf("schema %s: version %d", schema, v)
		}
		all = append(all, p)
	}
	// Without the schema in its search_path, a session changes the right one.
	testworld.Exec(t, testworld.Connect(t, address), `UPDATE "Odd-One".pglimit_policy SET limit_units = 9`)
	all[0].await(t, 2)
	for i, want := range []float64{9, 2} {
		if p, err := all[i].Get("login"); err != nil || p.Limit != want {
			t.Errorf("%+v, %v; want %v", p, err, want)
		}
	}
}

// TestOperator: the rights of an operator suffice.
func TestOperator(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	owner := testworld.Connect(t, address)
	operator := testworld.Connect(t, testworld.RuntimeRole(t, address))
	role := testworld.Value[string](t, operator, `SELECT current_user::text`)
	must.OK(grants.Apply(t.Context(), owner, grants.Roles{Operators: []string{role}}))(t)
	p := open(t, operator, policies.Config{PollEvery: time.Hour})
	version := apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: login}}, SetOverrides: []policies.Override{{Policy: "login", Key: "k", Unlimited: true}}})
	apply(t, p.Policies, policies.Edit{IfVersion: version, Delete: []string{"login"}, DeleteOverrides: []policies.Override{{Policy: "login", Key: "k"}}})
	h, err := p.History(t.Context(), "", 10)
	if err != nil || len(h) != 4 || h[0].ChangedBy != role {
		t.Errorf("%+v, %v", h, err)
	}
	testworld.Exec(t, owner, fmt.Sprintf(`INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('login', 'gcra', 1, 1); REVOKE UPDATE ON pglimit_policy_version FROM %s`, role))
	p.await(t, version+2)
	if _, err := p.Apply(t.Context(), policies.Edit{Delete: []string{"login"}}); !errors.Is(err, limiter.ErrMisconfigured) || !strings.Contains(err.Error(), "pglimit_policy_version") {
		t.Errorf("without a right: %v", err)
	}
}

// counted counts the statements called name. Before the first it runs do, if that is set.
type counted struct {
	name string
	do   func()
	n    atomic.Int64
}

func (c *counted) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(data.SQL, "-- name: "+c.name+" ") && c.n.Add(1) == 1 && c.do != nil {
		c.do()
	}
	return ctx
}

func (c *counted) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestOneMoment: a load sees policies and overrides of one version.
func TestOneMoment(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	direct := testworld.Connect(t, address)
	testworld.Exec(t, direct, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('p', 'gcra', 1, 1);
		INSERT INTO pglimit_override (policy, key, limit_units) VALUES ('p', 'k', 2)`)
	change := &counted{name: "Overrides", do: func() {
		testworld.Exec(t, direct, `UPDATE pglimit_policy SET limit_units = 3; UPDATE pglimit_override SET limit_units = 3`)
	}}
	pool := testworld.Connect(t, address, func(c *pgxpool.Config) { c.ConnConfig.Tracer = change })
	p := open(t, pool, policies.Config{PollEvery: time.Hour, DisableListen: true})
	policy, err := p.Get("p")
	override, _, _ := p.For("p", "k")
	if v := p.Version(); err != nil || policy.Limit != 1 || override.Limit != 2 || v != 1 {
		t.Errorf("version %d has policy %+v, override %+v", v, policy, override)
	}
}
