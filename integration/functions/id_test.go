package functions

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// TestFunctionsReadIDsAsGo: the library and the functions take the same texts as IDs, of
// any key, and find the same reservations.
func TestFunctionsReadIDsAsGo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.FunctionsPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	byGo := func(id string) string {
		switch err := l.Cancel(ctx, id); {
		case err == nil:
			return "found"
		case errors.Is(err, limiter.ErrInvalid):
			return "invalid"
		case errors.Is(err, limiter.ErrNoReservation):
			return "none"
		default:
			return err.Error()
		}
	}
	bySQL := func(id string) string {
		_, err := pool.Exec(ctx, `SELECT pglimit.cancel($1)`, id)
		var pg *pgconn.PgError
		switch {
		case err == nil:
			return "found"
		case errors.As(err, &pg) && pg.Code == "22023" && strings.Contains(pg.Message, "is not the ID of a reservation"):
			return "invalid"
		case errors.As(err, &pg) && pg.Code == "P0002":
			return "none"
		}
		return err.Error()
	}
	same := func(t *testing.T, id string) string {
		t.Helper()
		a, b := byGo(id), bySQL(id)
		if a != b {
			t.Fatalf("%q is %s in Go and %s in SQL", id, a, b)
		}
		return a
	}
	random := rand.New(rand.NewPCG(1, 1))
	text := func(from string, least, most int) string {
		runes := []rune(from)
		all := make([]rune, least+random.IntN(most-least+1))
		for i := range all {
			all[i] = runes[random.IntN(len(runes))]
		}
		return string(all)
	}
	for range 40 {
		p := limiter.Policy{Name: text("az09", 1, 1) + text("abyz0189_.-", 0, 63), Algorithm: limiter.GCRA, Limit: 1e6, Period: time.Hour}
		key := text("aZ0 :/=\"'\n\x01\x7fé漢👩\u0301\u200d\ufffd", 1, []int{64, 256}[random.IntN(2)])
		var id string
		if random.IntN(2) == 0 {
			id = testworld.Value[string](t, pool, `SELECT reservation FROM pglimit.reserve_with('gcra', $1, $2, 1, 1e6, 3600, ttl_s => 60)`, p.Name, key)
		} else {
			id = testworld.Reserve(t, l, p.Request(key, 1), time.Minute).ID
		}
		if same(t, id) != "found" {
			t.Fatalf("%q is not found", id)
		}
		// Others that are nearly it.
		from := []int{0, strings.LastIndex(id, ":"), len(id) - 2}[random.IntN(3)]
		at := from + random.IntN(len(id)-from+1)
		other := id[:at] + text("AQgwaZ09-_+/=: .\nké", 0, 4) + id[min(at+random.IntN(3), len(id)):]
		if same(t, other) == "found" && other != id {
			t.Fatalf("%q and %q are one ID", id, other)
		}
	}

	const id = "token_bucket:0123456789abcdef0123456789abcdef:p:"
	for text, want := range map[string]string{
		id + "aw": "none", id + "ax": "invalid", id + "aw=": "invalid", id + "aw==": "invalid", id + "a": "invalid", id: "invalid", id + "aw:": "invalid", id + "a\nw": "invalid",
		id + "YQA":    "invalid", // "a\x00"
		id + "_w":     "invalid", // "\xff"
		id + "7aCA":   "invalid", // a surrogate
		id + "8J-YgA": "none", id + "8J+YgA": "invalid",
		id + strings.Repeat("YWFh", 341) + "YQ": "none", id + strings.Repeat("YWFh", 341) + "YWE": "invalid", id + strings.Repeat("YWFh", 342): "invalid", // 1,024 to 1,026 bytes
	} {
		if got := same(t, text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	long := testworld.Value[string](t, pool, `SELECT reservation FROM pglimit.reserve_with('sliding_window_counter', repeat('p', 64), repeat('é', 512), 1, 10, 60, ttl_s => 60)`)
	if got := same(t, long); got != "found" || len(long) != 1487 {
		t.Errorf("%s, with %d characters", got, len(long))
	}
}
