package roles

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestGrantsLetAnOperatorWork runs the library, the janitor and the command as an operator,
// who may also do what askers must not: TestGrantsRefuseAnAsker calls the SQL functions.
func TestGrantsLetAnOperatorWork(t *testing.T) {
	t.Parallel()
	s := granted(t)
	called, failed := testworld.CallStatements(t.Context(), s.operator, "")
	if len(failed) > 0 || len(called) < 80 {
		t.Errorf("of %d statements of the library failed: %v", len(called), failed)
	}
	l := testworld.NewLimiter(t, s.operator, nil)
	for _, a := range algorithms {
		p := limiter.Policy{Name: a, Algorithm: limiter.Algorithm(a), Limit: 10, Period: time.Hour}
		testworld.Must(t)(l.Allow(t.Context(), p, "k"))
		testworld.Exec(t, s.operator, `SELECT pglimit_ask.allow($1, 'k')`, a)
		testworld.Exec(t, s.operator, `SELECT * FROM `+testworld.TableOf(a)+`_now`)
	}
	testworld.Exec(t, s.operator, `SELECT * FROM pglimit_keys`)
	j := testworld.NewJanitor(t, s.operator, &janitor.Config{Now: func() time.Time { return time.Now().Add(1000 * time.Hour) }})
	if r, err := j.Sweep(t.Context()); err != nil || r.HeldElsewhere || r.Total() == 0 {
		t.Errorf("sweep: %+v, %v", r, err)
	}
	for _, args := range [][]string{
		{"allow", "--limit", "10", "k"}, {"check", "--limit", "10", "k"}, {"charge", "--limit", "10", "k"}, {"refund", "--limit", "10", "k"},
		{"usage", "--limit", "10", "k"}, {"reserve", "--limit", "10", "k"}, {"reserve-up-to", "--limit", "10", "--estimate", "k"}, {"block", "k", "1m"}, {"unblock", "k"}, {"block", "bot-", "--prefix", "--policy", "gcra"}, {"unblock", "bot-", "--prefix", "--yes"}, {"top"}, {"top", "--by", "denials"}, {"find", "k"},
		{"attempt", "--limit", "3", "k"}, {"reset", "--policy", "cli", "k"}, {"forget", "--yes", "k"},
		{"janitor", "--once"}, {"migrate", "status"}, {"migrate", "up"}, {"migrate", "status", "--functions"}, {"migrate", "up", "--functions"},
	} {
		if code, _, stderr := testworld.Pglimit(t, s.operatorURL, args...); code != 0 {
			t.Errorf("%q: exit code %d: %s", args, code, stderr)
		}
	}
	if err := sets.Tables.Up(t.Context(), s.operator); err != nil {
		t.Error(err)
	}
}

// TestGrantsWithoutFunctions: an operator needs only the tables.
func TestGrantsWithoutFunctions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	must.OK(sets.Functions.Down(t.Context(), s.owner, 0))(t)
	must.OK(grants.Apply(t.Context(), s.owner, grants.Roles{Operators: s.roles.Operators}))(t)
	if _, failed := testworld.CallStatements(t.Context(), s.operator, ""); len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
}

// TestGrantsNoRightsBefore: without grants neither role may do anything.
func TestGrantsNoRightsBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, pool := range []*pgxpool.Pool{s.asker, s.operator} {
		wants(t, pool, "42501", `SELECT pglimit_ask.allow('gcra', 'k')`)
		wants(t, pool, "42501", `SELECT pglimit.gcra('p', 'k', 1, 10, 60)`)
		wants(t, pool, "42501", `SELECT * FROM limits.pglimit_token_bucket`)
	}
	// USAGE on the schema alone is not enough.
	testworld.Exec(t, s.owner, `GRANT USAGE ON SCHEMA pglimit_ask TO PUBLIC`)
	for _, call := range []string{`allow('gcra', 'k')`, `allow_up_to('gcra', 'k')`, `"check"('gcra', 'k')`, `charge('gcra', 'k')`, `reserve('gcra', 'k', 1, 60)`, `reserve_up_to('gcra', 'k', 99, 60)`,
		`settle('x', 1)`, `cancel('x')`, `_find('gcra', 'k')`, `_declared(NULL, 'x', 1)`} {
		wants(t, s.asker, "42501", `SELECT pglimit_ask.`+call)
	}
	// All other functions run with their caller's privileges.
	testworld.Exec(t, s.owner, `GRANT USAGE ON SCHEMA pglimit, limits TO PUBLIC`)
	testworld.Exec(t, s.owner, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pglimit TO PUBLIC`)
	wants(t, s.operator, "42501", `SELECT pglimit.gcra('p', 'k', 1, 10, 60)`)
}
