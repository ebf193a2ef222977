package functions

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestFunctionsReadIDsAsGo: the library and the functions take the same texts as IDs, of
// any key, and find the same reservations.
func TestFunctionsReadIDsAsGo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.FunctionsPool(t)
	l := bed.NewLimiter(t, pool, nil)
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
	same := func(t rapid.TB, id string) string {
		t.Helper()
		a, b := byGo(id), bySQL(id)
		if a != b {
			t.Fatalf("%q is %s in Go and %s in SQL", id, a, b)
		}
		return a
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := limiter.Policy{
			Name: rapid.StringMatching(`[a-z0-9][a-z0-9_.-]{0,63}`).Draw(rt, "policy"), Algorithm: limiter.GCRA, Limit: 1e6, Period: time.Hour,
		}
		key := rapid.OneOf(rapid.StringN(1, 64, 1024), rapid.StringN(200, 256, 1024)).Draw(rt, "key")
		if key = strings.ReplaceAll(key, "\x00", "0"); key == "" {
			key = "k"
		}
		var id string
		if rapid.Bool().Draw(rt, "made by SQL") {
			id = bed.Value[string](t, pool, `SELECT reservation FROM pglimit.reserve_with('gcra', $1, $2, 1, 1e6, 3600, ttl_s => 60)`, p.Name, key)
		} else {
			id = bed.Reserve(t, l, p.Request(key, 1), time.Minute).ID
		}
		if same(rt, id) != "found" {
			rt.Fatalf("%q is not found", id)
		}
		// Others that are nearly it.
		at := rapid.OneOf(rapid.IntRange(0, len(id)), rapid.IntRange(strings.LastIndex(id, ":"), len(id)), rapid.IntRange(len(id)-2, len(id))).Draw(rt, "at")
		to := at + rapid.IntRange(0, 2).Draw(rt, "instead of")
		other := id[:at] + rapid.StringOfN(rapid.RuneFrom([]rune("AQgwaZ09-_+/=: .\nké")), 0, 4, -1).Draw(rt, "with") + id[min(to, len(id)):]
		if !utf8.ValidString(other) {
			return
		}
		if same(rt, other) == "found" && other != id {
			rt.Fatalf("%q and %q are one ID", id, other)
		}
	})

	const id = "gcra:0123456789abcdef0123456789abcdef:p:"
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
	long := bed.Value[string](t, pool, `SELECT reservation FROM pglimit.reserve_with('sliding_window_counter', repeat('p', 64), repeat('é', 512), 1, 10, 60, ttl_s => 60)`)
	if got := same(t, long); got != "found" || len(long) != 1487 {
		t.Errorf("%s, with %d characters", got, len(long))
	}
}
