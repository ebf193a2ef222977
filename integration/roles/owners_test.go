package roles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestStrangersTablesInFront: another role makes a schema that comes first in the default
// search_path, since it is named as the application's role, and in it a table with a
// trigger. New limiters and all janitors refuse at once, and limiters in use within
// seconds. FailOpen does not apply.
func TestStrangersTablesInFront(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	owner, app := testworld.Connect(t, address), testworld.RuntimeRole(t, address)
	me, stranger := testworld.RoleOf(t, app), testworld.RoleOf(t, testworld.RuntimeRole(t, address))
	testworld.Exec(t, owner, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO %s", me))
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1000, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
	config := &limiter.Config{MisconfiguredFailsOpen: true, Logger: slog.New(slog.DiscardHandler)}
	pool := testworld.Connect(t, app)
	used := testworld.NewLimiter(t, pool, config)
	testworld.Must(t)(used.Allow(t.Context(), p, "k"))
	j := testworld.NewJanitor(t, pool, &janitor.Config{Logger: config.Logger})
	must.OK(j.Sweep(t.Context()))(t)

	testworld.Exec(t, owner, fmt.Sprintf(`CREATE SCHEMA %[1]s AUTHORIZATION %[2]s; CREATE TABLE %[1]s.pglimit_token_bucket (LIKE public.pglimit_token_bucket INCLUDING ALL);
		CREATE TABLE runs (role name); GRANT INSERT ON runs TO PUBLIC;
		CREATE FUNCTION %[1]s.run() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.runs VALUES (current_user); RETURN NULL; END $$;
		CREATE TRIGGER run BEFORE INSERT ON %[1]s.pglimit_token_bucket EXECUTE FUNCTION %[1]s.run();
		ALTER TABLE %[1]s.pglimit_token_bucket OWNER TO %[2]s;
		GRANT USAGE ON SCHEMA %[1]s TO PUBLIC; GRANT ALL ON %[1]s.pglimit_token_bucket TO PUBLIC`, me, stranger))
	refuses := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, limiter.ErrMisconfigured) || !strings.Contains(err.Error(), stranger) || !strings.Contains(err.Error(), "pglimit migrate up") {
			t.Errorf("%s: %v", name, err)
		}
	}
	all := map[string]*limiter.Limiter{"pool": testworld.NewLimiter(t, pool, config)}
	for _, driver := range testworld.SQLDrivers {
		all[driver] = testworld.NewSQL(t, testworld.ConnectSQL(t, driver, app), config)
	}
	for name, l := range all {
		_, err := l.Allow(t.Context(), p, "k")
		refuses(name, err)
		_, err = l.AllowAll(t.Context(), p.Request("k", 1), p.Request("l", 1))
		refuses(name, err)
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	_, err := testworld.NewLimiter(t, pool, config).InTx(tx).Allow(t.Context(), p, "k")
	refuses("a transaction", err)
	_ = tx.Rollback(t.Context())
	if _, err := j.Sweep(t.Context()); err == nil || !strings.Contains(err.Error(), stranger) {
		t.Errorf("the janitor: %v", err)
	}
	report := must.OK(doctor.Run(t.Context(), pool, nil))(t)
	at := slices.IndexFunc(report.Checks, func(c doctor.Check) bool { return c.Name == "schemas" })
	if c := report.Checks[at]; c.Verdict != doctor.Fail || !strings.Contains(c.Message, stranger) || c.NextStep == "" {
		t.Errorf("the doctor: %+v", c)
	}
	if n := testworld.Value[int](t, owner, "SELECT count(*) FROM runs"); n != 0 {
		t.Errorf("the trigger ran %d times", n)
	}
	testworld.Eventually(t, "the limiter in use refuses", func(ctx context.Context) (bool, error) {
		_, err = used.Allow(ctx, p, "k")
		return err != nil, nil
	})
	refuses("the limiter in use", err)

	testworld.Exec(t, owner, "DROP SCHEMA "+me+" CASCADE")
	testworld.Eventually(t, "it decides again", func(ctx context.Context) (bool, error) {
		_, err := used.Allow(ctx, p, "k")
		return err == nil, nil
	})
}
