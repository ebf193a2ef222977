package operations

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestDoctorConfig: a wrong field is an error that names it, before anything is done.
func TestDoctorConfig(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	for _, c := range []struct {
		config doctor.Config
		want   string
	}{
		{doctor.Config{Only: []string{"tables", "x"}}, `Config.Only "x"`},
		{doctor.Config{Skip: []string{""}}, `Config.Skip ""`},
		{doctor.Config{Timeout: time.Millisecond}, "Config.Timeout 1ms"},
		{doctor.Config{Timeout: -1}, "Config.Timeout -1ns"},
		{doctor.Config{JanitorInterval: 25 * time.Hour}, "Config.JanitorInterval 25h"},
		{doctor.Config{OldTransaction: 1}, "Config.OldTransaction 1ns"},
	} {
		if _, err := doctor.Run(t.Context(), pool, &c.config); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.config, err)
		}
	}
	if _, err := doctor.Run(t.Context(), nil, nil); !errors.Is(err, limiter.ErrInvalid) {
		t.Error("a report of no pool")
	}
	if _, err := doctor.RunSQL(t.Context(), nil, nil); err == nil {
		t.Error("a report of no db")
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
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address, testworld.OneConnection)
	tx := testworld.Begin(t, pool, pgx.TxOptions{}) // the pool's only connection
	must.OK(tx.Exec(ctx, "LOCK TABLE pglimit_policy, pglimit_token_bucket"))(t)
	expect(t, pool, "tables", doctor.OK)
	expect(t, pool, "policies", doctor.Unchecked, "a table is locked")
	expect(t, pool, "janitor", doctor.Warn, "not checked, it took longer than 5s") // a shorter Timeout ends the doctor's login on a busy machine
	expect(t, pool, "future", doctor.Unchecked, "a table is locked")
	must.Succeed(t, tx.Rollback(ctx))
	expect(t, pool, "policies", doctor.OK)
	expect(t, pool, "future", doctor.OK)
}

// TestDoctorWithoutADatabase: what cannot be reached has no report.
func TestDoctorWithoutADatabase(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, "postgres://nobody@127.0.0.1:1/none")
	if report, err := doctor.Run(t.Context(), pool, nil); err == nil || len(report.Checks) != 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
