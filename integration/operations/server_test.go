package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

// TestDoctorServer: a server with the settings of a real one is healthy, then ill in one
// way after the other, and at last a replica.
func TestDoctorServer(t *testing.T) {
	t.Parallel()
	s := testworld.OwnServer(t, pglimittest.Setting("fsync", "on"), pglimittest.Setting("full_page_writes", "on"), pglimittest.Setting("max_prepared_transactions", "5"))
	pool := testworld.Connect(t, s.URL())
	testworld.Exec(t, pool, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	must.Succeed(t, errors.Join(migrations.Up(t.Context(), pool), migrations.Functions.Up(t.Context(), pool)))
	healthy(t, pool)
	settings(t, pool)
	prepared(t, pool)
	recovering(t, s, pool)
}

// healthy expects a database in use, with the SQL functions and a janitor, to be all ok.
func healthy(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	ctx := t.Context()
	l := testworld.NewLimiter(t, pool, nil)
	for _, p := range testworld.Variants(10, time.Minute) {
		testworld.Must(t)(l.Allow(ctx, p, "k"))
	}
	testworld.Reserve(t, l, limiter.Policy{Name: "r", Algorithm: limiter.GCRA, Limit: 10, Period: time.Minute}.Request("k", 1), time.Hour)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('p', 'gcra', 10, 60);
		INSERT INTO pglimit_policy (name, algorithm, limit_units, calendar, time_zone) VALUES ('q', 'fixed_window', 10, 'month', 'Europe/Vienna');
		INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('p', 'k', true)`, pgx.QueryExecModeSimpleProtocol)
	must.OK(testworld.NewJanitor(t, pool, nil).Sweep(ctx))(t)

	before := testworld.Contents(t, pool)
	report, err := doctor.Run(ctx, pool, nil)
	if err != nil || len(report.Checks) != len(doctor.Names()) || len(report.Checks) < 20 || report.Took <= 0 || report.At.IsZero() {
		t.Errorf("%+v, %v", report, err)
	}
	for i, c := range report.Checks {
		if c.Verdict != doctor.OK || c.Name != doctor.Names()[i] || c.Message == "" || c.Fix+c.NextStep != "" {
			t.Errorf("%+v", c)
		}
		for _, driver := range testworld.SQLDrivers {
			alike(t, pool, driver, &doctor.Config{Only: []string{c.Name}}, c)
		}
	}
	if after := testworld.Contents(t, pool); after != before {
		t.Errorf("the doctor changed\n%s\nto\n%s", before, after)
	}
	text, err := json.Marshal(report)
	var again doctor.Report
	if err != nil || json.Unmarshal(text, &again) != nil || !reflect.DeepEqual(again.Checks, report.Checks) || !strings.Contains(string(text), `"verdict":"ok"`) {
		t.Errorf("%s, %v", text, err)
	}
}

// settings changes settings of the server that lose or keep too much.
func settings(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for _, c := range []struct {
		name, value, check string
		status             doctor.Verdict
		words              []string
	}{
		{"synchronous_commit", "off", "durability", doctor.Warn, nil},
		{"autovacuum", "off", "autovacuum", doctor.Fail, nil},
		{"track_counts", "off", "autovacuum", doctor.Fail, nil},
		{"synchronous_standby_names", "elsewhere", "replicas", doctor.Fail, []string{`"elsewhere"`, "commits wait for it"}},
	} {
		mend(t, pool, "ALTER SYSTEM SET "+c.name+" = '"+c.value+"'; SELECT pg_reload_conf()")
		ill := await(t, pool, c.check, c.status, append(c.words, c.name)...)
		mend(t, pool, ill.Fix)
		await(t, pool, c.check, doctor.OK)
	}
	// The shared server has these on its command line.
	expect(t, testworld.NewPool(t), "durability", doctor.Fail, "fsync is off", "start the server with fsync = on: its command line sets it")
}

// prepared leaves a prepared transaction.
func prepared(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	tiny := doctor.Config{OldTransaction: time.Millisecond}
	expectIn(t, find(t, pool, "snapshots", tiny), doctor.OK)
	testworld.Exec(t, pool, "BEGIN; INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm) VALUES (1, 0, 1, 0, 0, 'p', 'k', 'gcra'); PREPARE TRANSACTION 'order''s 1'", pgx.QueryExecModeSimpleProtocol)
	c := await(t, pool, "snapshots", doctor.Fail, `prepared transaction "order's 1"`, "ROLLBACK PREPARED 'order''s 1'")
	mend(t, pool, c.Fix)
	expectIn(t, find(t, pool, "snapshots", tiny), doctor.OK)
}

// recovering makes the server a replica: it refuses decisions, and the other checks work.
func recovering(t *testing.T, s *pglimittest.Server, pool *pgxpool.Pool) {
	t.Helper()
	testworld.Exec(t, pool, "COPY (SELECT '') TO '"+testworld.Value[string](t, pool, "SELECT current_setting('data_directory')")+"/standby.signal'")
	pool.Close()
	must.Succeed(t, s.Restart(t.Context()))
	report, err := doctor.Run(t.Context(), testworld.Connect(t, s.URL()), nil)
	if err != nil || report.Verdict() != doctor.Fail {
		t.Errorf("%+v, %v", report, err)
	}
	for _, c := range report.Checks {
		switch {
		case c.Name == "primary":
			expectIn(t, c, doctor.Fail, "in recovery", "target_session_attrs=read-write")
		case c.Name == "decision":
			expectIn(t, c, doctor.Unchecked, "see check primary")
		case c.Verdict != doctor.OK:
			t.Errorf("%+v", c)
		}
	}
}

// await waits until a check has a status and says words: the server publishes its
// statistics a little later. Before PostgreSQL 15 a session that is idle keeps what it
// counted, until it ends.
func await(t *testing.T, pool *pgxpool.Pool, name string, status doctor.Verdict, words ...string) doctor.Check {
	t.Helper()
	pool.Reset()
	var c doctor.Check
	testworld.Eventually(t, fmt.Sprintf("%s is %v and says %q", name, status, words), func(context.Context) (bool, error) {
		c = find(t, pool, name, doctor.Config{OldTransaction: time.Millisecond})
		return c.Verdict == status && !slices.ContainsFunc(words, func(word string) bool { return !says(c, word) }), nil
	})
	return c
}
