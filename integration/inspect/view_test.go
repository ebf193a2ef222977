package inspect

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// TestKeysShowWhatTheLibraryDecides: the view has the level, burst and remaining that the
// library returns, the block, and the counts of the other tables.
func TestKeysShowWhatTheLibraryDecides(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	for _, p := range policies() {
		use(t, l, p, "k", "other")
		open := int64(0)
		if p.Algorithm != limiter.LeakyBucketQueue {
			bed.Reserve(t, l, p.Request("k", 2), time.Hour)
			open++
		}
		bed.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
			SELECT n, 0, 1, us - n * 36000000000, us - n * 36000000000, $1, 'k', $1
			FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c, unnest(ARRAY[1, 2, 3]) AS n`, string(p.Algorithm))
		var level, burst, share, remaining float64
		var blocked, denied *time.Time
		var updated, empty time.Time
		var reservations, denials int64
		read := func() {
			t.Helper()
			err := pool.QueryRow(t.Context(), `SELECT level, burst, share, remaining, blocked_until, updated_at, empty_at, reservations, denials, last_denied_at
				FROM pglimit_keys WHERE policy = $1 AND key = 'k'`, p.Name).Scan(&level, &burst, &share, &remaining, &blocked, &updated, &empty, &reservations, &denials, &denied)
			if err != nil {
				t.Fatalf("%s: %v", p.Algorithm, err)
			}
		}
		read()
		r := bed.Must(t)(l.Check(t.Context(), p, "k", 0))
		if !bed.Near(level, r.Level) || burst != r.Burst || !bed.Near(remaining, r.Remaining) || !bed.Near(share, r.Level/r.Burst) || blocked != nil {
			t.Errorf("%s: level %v, burst %v, share %v, remaining %v, blocked until %v; want %+v", p.Algorithm, level, burst, share, remaining, blocked, r)
		}
		// The denials of 10, 20 and 30 hours ago are 1, 2 and 3; a day has the first two.
		if reservations != open || denials != 3 || denied == nil || time.Since(*denied).Round(time.Hour) != 10*time.Hour {
			t.Errorf("%s: %d reservations, %d denials, the last at %v", p.Algorithm, reservations, denials, denied)
		}
		if time.Since(updated).Abs() > time.Minute || empty.Before(updated) {
			t.Errorf("%s: updated at %v, empty at %v", p.Algorithm, updated, empty)
		}
		bed.Must(t)(l.Charge(t.Context(), p, "k", 100)) // full: the slack is not shown
		if err := l.Block(t.Context(), p, "k", time.Hour); err != nil {
			t.Fatal(err)
		}
		if read(); !bed.Near(level, 10) || level > 10 || share > 1 || remaining != 0 || blocked == nil || time.Until(*blocked).Round(time.Minute) != time.Hour {
			t.Errorf("%s: full and blocked: level %v, share %v, remaining %v, blocked until %v", p.Algorithm, level, share, remaining, blocked)
		}
		use(t, l, p, "wide")
		narrow := p
		narrow.Limit = 2 // the level is carried over, above the burst
		bed.Must(t)(l.AllowN(t.Context(), narrow, "wide", 1))
		if share := bed.Value[float64](t, pool, `SELECT share FROM pglimit_keys WHERE policy = $1 AND key = 'wide'`, p.Name); p.Algorithm != limiter.SlidingWindowLog && !bed.Near(share, 2) {
			t.Errorf("%s: after a smaller limit the share is %v", p.Algorithm, share)
		}
		if err := l.Block(t.Context(), p, "fresh", time.Hour); err != nil {
			t.Fatal(err)
		}
		if !bed.Value[bool](t, pool, `SELECT burst IS NULL AND share IS NULL AND remaining = 0 AND level = 0 FROM pglimit_keys WHERE policy = $1 AND key = 'fresh'`, p.Name) {
			t.Errorf("%s: a row that a block made has a burst", p.Algorithm)
		}
	}
	if n := bed.Value[int](t, pool, `SELECT count(*) FROM pglimit_keys`); n != 4*7 {
		t.Errorf("the view has %d rows, want 28", n)
	}
}

// TestKeysBurstHasNoSlack: the slack in a row's capacity is taken off again, whatever verb
// wrote it.
func TestKeysBurstHasNoSlack(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	limits := []float64{1e-9, 0.001, 0.1, 1, 3, 7, 999.99999, 1000, 1001, 99999.12345, 123456.789, 1e9 + 1, 8.6e9 + 1, 1e10 + 1, 17179869184, 1e15 + 1, 1 << 53}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limits = append(limits, math.Round(math.Exp(random.Float64()*20)*1e4+1)/1e4, math.Round(random.Float64()*1e6+1)/1e4)
	}
	for n, limit := range limits {
		p := limiter.Policy{Name: "burst", Algorithm: limiter.FixedWindow, Limit: limit, Period: time.Hour}
		if n%3 == 0 {
			bed.Must(t)(l.Charge(t.Context(), p, "k", limit))
		} else {
			bed.Must(t)(l.AllowN(t.Context(), p, "k", limit))
		}
		var burst, level, remaining float64
		if err := pool.QueryRow(t.Context(), `SELECT burst, level, remaining FROM pglimit_keys WHERE policy = 'burst' AND key = 'k'`).Scan(&burst, &level, &remaining); err != nil {
			t.Fatal(err)
		}
		if strconv.FormatFloat(burst, 'g', 15, 64) != strconv.FormatFloat(limit, 'g', 15, 64) || remaining != 0 {
			t.Errorf("limit %v: burst %v, level %v, remaining %v", limit, burst, level, remaining)
		}
		if err := l.Reset(t.Context(), p, "k"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeysByPolicyAndKeyUsePrimaryKeys: a query of the view by policy and key reads one row
// of each table at most, and scans none.
func TestKeysByPolicyAndKeyUsePrimaryKeys(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	for _, a := range algorithm.Names {
		many(t, pool, a, 3, 300)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		got := plan(t, pool, `SELECT * FROM pglimit_keys WHERE policy = $1 AND key = $2`, mode, "filler-1", "k77")
		if strings.Contains(got, "Seq Scan") || strings.Count(got, "_pkey on pglimit_") < 7 || strings.Contains(got, "Rows Removed by Filter") {
			t.Errorf("the plan scans:\n%s", got)
		}
		for _, line := range strings.Split(got, "\n") {
			if strings.Contains(line, "Index Cond") && !(strings.Contains(line, "policy = ") && strings.Contains(line, "key = ")) {
				t.Errorf("a condition without policy and key: %s", line)
			}
		}
	}
	// Of one algorithm, the other tables are not touched.
	got := plan(t, pool, `SELECT level FROM pglimit_keys WHERE policy = 'filler-1' AND key = 'k77' AND algorithm = 'gcra'`)
	if strings.Contains(got, "pglimit_token_bucket") || !strings.Contains(got, "pglimit_gcra_pkey") || strings.Contains(got, "pglimit_denial") {
		t.Errorf("the plan reads other tables:\n%s", got)
	}
}
