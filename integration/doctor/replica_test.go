package doctor

import (
	"log"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

// TestDoctorOnAReplica: a server in recovery refuses decisions. The other checks work there.
func TestDoctorOnAReplica(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, err := pglimittest.StartOwn(ctx, log.Printf, pglimittest.Setting("fsync", "on"), pglimittest.Setting("full_page_writes", "on"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	pool := bed.Connect(t, s.URL())
	if err := migrations.Up(ctx, pool); err != nil {
		t.Fatal(err)
	}
	bed.Exec(t, pool, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	bed.Exec(t, pool, "COPY (SELECT '') TO '"+bed.Value[string](t, pool, "SELECT current_setting('data_directory')")+"/standby.signal'")
	pool.Close()
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	report, err := doctor.Run(ctx, bed.Connect(t, s.URL()), nil)
	if err != nil || report.Status() != doctor.Fail {
		t.Errorf("%+v, %v", report, err)
	}
	for _, c := range report.Checks {
		switch {
		case c.Name == "primary":
			expectIn(t, c, doctor.Fail, "in recovery", "target_session_attrs=read-write")
		case outdated(c):
		case c.Status != doctor.OK || strings.Contains(c.Message, "not checked"):
			t.Errorf("%+v", c)
		}
	}
}
