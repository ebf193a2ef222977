package inspect

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestWithPart: all keys of which a text is a whole part are found, in whatever table they
// are, and no others.
func TestWithPart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	i, l := inspect.New(pool), testworld.NewLimiter(t, pool, nil)
	join := limiter.JoinKey
	person := "a:b"
	want := []string{person, join(person), join(person, "x"), join("x", person), join("x", person, "y")}
	others := []string{"a", "b", join("b", "a"), join("x"+person, "y"), join(`x\`+person, "y"), join("y", person+"x"), person + "x"}
	for _, p := range everyTable() {
		use(t, l, p, append(slices.Clone(want), others...)...)
	}
	reserved := policy("reserved", limiter.GCRA)
	testworld.Reserve(t, l, reserved.Request(join("r", person), 1), time.Hour)
	testworld.Exec(t, pool, `DELETE FROM pglimit_token_bucket WHERE policy = 'reserved'`)
	deny(t, pool, policy("denied", limiter.GCRA), join("d", person), 1, time.Hour)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('over', $1, true), ('over', $2, true)`, join("o", person), join("h", person))
	testworld.Exec(t, pool, `DELETE FROM pglimit_override WHERE key = $1`, join("h", person)) // leaves history
	want = append(want, join("r", person), join("d", person), join("o", person), join("h", person))
	slices.Sort(want)
	if got := must.OK(i.WithPart(ctx, person, inspect.Filter{}, 100, nil))(t); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	only := inspect.Filter{Policy: "reserved"}
	if got := must.OK(i.WithPart(ctx, person, only, 100, nil))(t); !slices.Equal(got, []string{join("r", person)}) {
		t.Errorf("of one policy: %q", got)
	}
	if _, err := i.WithPart(ctx, person, inspect.Filter{}, len(want)-1, nil); !errors.Is(err, inspect.ErrTooMany) {
		t.Errorf("too many: %v", err)
	}
	if n := must.OK(i.FirstParts(ctx, person, inspect.Filter{}, 100))(t); n != len(algorithm.Tables) {
		t.Errorf("%d rows have it first", n)
	}

	// All of them, and only they, are forgotten.
	keys := inspect.Keys{List: want}
	found := must.OK(i.Find(ctx, keys, inspect.Filter{}, 1000))(t)
	if len(found.Keys) != 5*len(algorithm.Tables)+1 || len(found.Reservations) != 1 || len(found.Overrides) != 1 || len(found.Denials) != 1 {
		t.Errorf("found %+v", found)
	}
	all := must.OK(i.Targets(ctx, keys, inspect.Filter{}, 1000, true))(t)
	must.OK(i.Forget(ctx, all, inspect.Options{}))(t)
	if left := must.OK(i.WithPart(ctx, person, inspect.Filter{}, 100, nil))(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_token_bucket`); n != len(others) {
		t.Errorf("%d keys of others are left, want %d", n, len(others))
	}
	if targets := must.OK(i.Targets(ctx, inspect.Keys{List: []string{}}, inspect.Filter{}, 1000, true))(t); len(targets) > 0 {
		t.Errorf("no keys have %v", targets)
	}
}

// TestWithPartOfLargeTables: it reads page after page by the primary key, also where many
// rows have one key, and shows how far it is.
func TestWithPartOfLargeTables(t *testing.T) {
	t.Parallel()
	pool, statements := traced(t, testworld.NewDatabase(t))
	const rows = 25_000
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", rows, 0)
	testworld.Exec(t, pool, `UPDATE pglimit_token_bucket SET key = 'x:' || key || ':pro1' WHERE key IN ('k1', 'k12345', 'k24999')`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_reservation SELECT 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 'open', 'token_bucket', 'i' || i, 'p', CASE WHEN i < 20000 THEN 'same' ELSE 'z:pro1' END FROM generate_series(1, 20001) AS i`)
	testworld.Exec(t, pool, `ANALYZE`)
	statements.take()
	var read int64
	got := must.OK(inspect.New(pool).WithPart(t.Context(), "pro1", inspect.Filter{Algorithm: algorithm.GCRA}, 100, func(n int64) { read = n }))(t)
	if want := []string{"x:k12345:pro1", "x:k1:pro1", "x:k24999:pro1", "z:pro1"}; !slices.Equal(got, want) || read < rows+10_000 {
		t.Errorf("got %q after %d rows, want %q", got, read, want)
	}
	for _, s := range statements.take() {
		if plan := plan(t, pool, s.SQL, s.Args...); strings.Contains(plan, "Seq Scan on pglimit_") && !strings.Contains(plan, "pglimit_policy_history") {
			t.Errorf("it scans a table:\n%s", plan)
		}
	}
}
