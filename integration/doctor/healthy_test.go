package doctor

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// TestDoctorHealthy: a database in use, with the SQL functions and a janitor, is all ok on
// a server with its default settings.
func TestDoctorHealthy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := ownServer(t, "fsync", "on", "full_page_writes", "on")
	bed.Exec(t, pool, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	if err := errors.Join(migrations.Up(ctx, pool), migrations.UpFunctions(ctx, pool)); err != nil {
		t.Fatal(err)
	}
	l := bed.NewLimiter(t, pool, nil)
	for _, p := range bed.Variants(10, time.Minute) {
		bed.Must(t)(l.Allow(ctx, p, "k"))
	}
	bed.Reserve(t, l, limiter.Policy{Name: "r", Algorithm: limiter.GCRA, Limit: 10, Period: time.Minute}.Request("k", 1), time.Hour)
	bed.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('p', 'gcra', 10, 60);
		INSERT INTO pglimit_policy (name, algorithm, limit_units, calendar, time_zone) VALUES ('q', 'fixed_window', 10, 'month', 'Europe/Vienna');
		INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('p', 'k', true)`, pgx.QueryExecModeSimpleProtocol)
	must.OK(bed.NewJanitor(t, pool, nil).Sweep(ctx))(t)

	before := bed.Contents(t, pool)
	report, err := doctor.Run(ctx, pool, nil)
	if err != nil || len(report.Checks) != len(doctor.Names()) || len(report.Checks) < 20 || report.Took <= 0 || report.At.IsZero() {
		t.Errorf("%+v, %v", report, err)
	}
	for i, c := range report.Checks {
		if c.Status != doctor.OK && !outdated(c) || c.Name != doctor.Names()[i] || c.Message == "" || (c.Status == doctor.OK) != (c.Fix == "") {
			t.Errorf("%+v", c)
		}
	}
	if after := bed.Contents(t, pool); after != before {
		t.Errorf("the doctor changed\n%s\nto\n%s", before, after)
	}
	text, err := json.Marshal(report)
	var again doctor.Report
	if err != nil || json.Unmarshal(text, &again) != nil || !reflect.DeepEqual(again.Checks, report.Checks) || !strings.Contains(string(text), `"status":"ok"`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestDoctorConfig: a wrong field is an error that names it, before anything is done.
func TestDoctorConfig(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	for _, c := range []struct {
		cfg  doctor.Config
		want string
	}{
		{doctor.Config{Only: []string{"tables", "x"}}, `Config.Only is "x"`},
		{doctor.Config{Skip: []string{""}}, `Config.Skip is ""`},
		{doctor.Config{Timeout: time.Millisecond}, "Config.Timeout is 1ms"},
		{doctor.Config{Timeout: -1}, "Config.Timeout is -1ns"},
		{doctor.Config{JanitorInterval: 25 * time.Hour}, "Config.JanitorInterval is 25h"},
		{doctor.Config{OldTransaction: 1}, "Config.OldTransaction is 1ns"},
	} {
		if _, err := doctor.Run(t.Context(), pool, &c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	if _, err := doctor.Run(t.Context(), nil, nil); err == nil {
		t.Error("a report of no pool")
	}
	report := must.OK(doctor.Run(t.Context(), pool, &doctor.Config{Only: []string{"tables", "grants"}, Skip: []string{"grants"}}))(t)
	if len(report.Checks) != 1 || report.Checks[0].Name != "tables" {
		t.Errorf("%+v", report)
	}
}

// TestDoctorOfABusyPool: the doctor does not wait for the pool's connections, for locked
// tables, or beyond its time.
func TestDoctorOfABusyPool(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address, bed.OneConnection)
	tx := bed.Begin(t, pool, pgx.TxOptions{}) // the pool's only connection
	if _, err := tx.Exec(ctx, "LOCK TABLE pglimit_policy, pglimit_gcra"); err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "tables", doctor.OK)
	expect(t, pool, "policies", doctor.Warn, "a table is locked")
	expect(t, pool, "due", doctor.Warn, "not checked, it took longer than 5s") // a shorter Timeout ends the doctor's login on a busy machine
	expect(t, pool, "future", doctor.Warn, "a table is locked")
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	expect(t, pool, "policies", doctor.OK)
	expect(t, pool, "future", doctor.OK)
}

// TestDoctorWithoutADatabase: what cannot be reached has no report.
func TestDoctorWithoutADatabase(t *testing.T) {
	t.Parallel()
	pool := bed.Connect(t, "postgres://nobody@127.0.0.1:1/none")
	if report, err := doctor.Run(t.Context(), pool, nil); err == nil || len(report.Checks) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
