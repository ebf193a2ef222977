package janitor

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
)

// TestJanitorDenials: counts of denials go once their slot ended KeepDenials ago, in
// batches, and rows that a transaction has locked stay for the next sweep.
func TestJanitorDenials(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		const slot = int64(600_000_000)
		const day = 144 * slot
		at := 1000 * day
		testworld.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
		SELECT 1, 0, 1, $1::bigint - age * $2::bigint, 0, 'p', 'k' || age, 'gcra' FROM generate_series(0, 200) AS age`, at, slot)
		now := func() time.Time { return time.UnixMicro(at) }
		j := testworld.NewJanitor(t, over, &janitor.Config{Now: now, BatchSize: 10})
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		must.OK(tx.Exec(t.Context(), `SELECT FROM pglimit_denial WHERE key = 'k180' FOR UPDATE`))(t)
		removed := must.OK(j.Sweep(t.Context()))(t)
		// Slots 0 to 144 ended within a day: the last a day ago would have gone.
		if n := removed.ByTable["pglimit_denial"]; n != 55 || removed.Total() != 55 {
			t.Errorf("removed %+v, want 55", removed)
		}
		must.Succeed(t, tx.Rollback(t.Context()))
		removed = must.OK(j.Sweep(t.Context()))(t)
		oldest := testworld.Value[int64](t, pool, `SELECT min(slot_us) FROM pglimit_denial`)
		if n := removed.ByTable["pglimit_denial"]; n != 1 || count(t, pool, "pglimit_denial") != 145 || oldest != at-144*slot {
			t.Errorf("removed %+v; %d are left, the oldest of slot %d", removed, count(t, pool, "pglimit_denial"), (at-oldest)/slot)
		}
		short := testworld.NewJanitor(t, over, &janitor.Config{Now: now, KeepDenials: time.Hour})
		if removed = must.OK(short.Sweep(t.Context()))(t); removed.ByTable["pglimit_denial"] != 138 || count(t, pool, "pglimit_denial") != 7 {
			t.Errorf("removed %+v", removed)
		}
	})
}

// TestJanitorDenialsMerged: rows of minutes of more than an hour ago are merged by ten
// minutes, once, in batches. Sums, the last denial and the time to retry stay. Rows that a
// transaction has locked wait for the next sweep.
func TestJanitorDenialsMerged(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		const minute = int64(60_000_000)
		at := 100_000*10*minute + 3*minute // 3 minutes into ten
		testworld.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, blocked, above_burst, overloaded, units, slot_us, last_denied_at_us, retry_at_us, policy, key, algorithm)
		SELECT 2, 1, age % 2, age % 3, age % 5, 0.5, $1::bigint - age * $2::bigint, $1::bigint - age * $2::bigint + 1, age, 'p', key, 'gcra' FROM generate_series(0, 92) AS age, unnest('{a,b,""}'::text[]) AS key`, at, minute)
		const totals = `SELECT concat_ws(' ', sum(denials), sum(shadowed), sum(blocked), sum(above_burst), sum(overloaded), sum(units), max(last_denied_at_us), max(retry_at_us)) FROM pglimit_denial`
		want := testworld.Value[string](t, pool, totals)
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		must.OK(tx.Exec(t.Context(), `SELECT FROM pglimit_denial WHERE key = 'a' AND slot_us = $1 FOR UPDATE`, at-70*minute))(t)
		j := testworld.NewJanitor(t, over, &janitor.Config{Now: func() time.Time { return time.UnixMicro(at) }, BatchSize: 30})
		must.OK(j.Sweep(t.Context()))(t)
		// Those of 63 minutes ago are not an hour old with all of their ten minutes.
		rows := func(merged bool) int64 {
			return testworld.Value[int64](t, pool, `SELECT count(*) FROM pglimit_denial WHERE merged = $1`, merged)
		}
		if n := rows(false); n != 3*64+1 {
			t.Errorf("%d rows of minutes, want 3 for each of 64, and one that is locked", n)
		}
		if n := rows(true); n < 9 || n > 15 { // two batches end within ten minutes
			t.Errorf("%d merged rows of three ten minutes and three keys", n)
		}
		if got := testworld.Value[string](t, pool, totals); got != want {
			t.Errorf("the sums are %s, want %s", got, want)
		}
		if n := testworld.Value[int64](t, pool, `SELECT count(*) FROM pglimit_denial WHERE last_denied_at_us / 600000000 <> slot_us / 600000000 OR denials / 2 > 10`); n != 0 {
			t.Errorf("%d rows of other minutes", n)
		}
		must.Succeed(t, tx.Rollback(t.Context()))
		removed := must.OK(j.Sweep(t.Context()))(t)
		if removed.Total() != 0 || rows(false) != 3*64 || testworld.Value[string](t, pool, totals) != want {
			t.Errorf("removed %+v; %d rows of minutes are left", removed, rows(false))
		}
	})
}

// TestJanitorDenialsBounded: of a flood of made-up keys 100,000 counts stay. The oldest slots
// go first. What is deleted adds to the sums under the key "", which stay.
func TestJanitorDenialsBounded(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		testworld.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
		SELECT 2, 1, 0.5, 600000000 * (n / 1000)::bigint, n, 'p', CASE WHEN n % 1000 > 0 THEN 'k' || n ELSE '' END, 'gcra' FROM generate_series(0, 102599) AS n`)
		const totals = `SELECT concat_ws(' ', sum(denials), sum(shadowed), sum(units), max(last_denied_at_us)) FROM pglimit_denial`
		want := testworld.Value[string](t, pool, totals)
		now := func() time.Time { return time.UnixMicro(103 * 600_000_000) }
		j := testworld.NewJanitor(t, over, &janitor.Config{Now: now})
		removed := must.OK(j.Sweep(t.Context()))(t)
		if n := removed.ByTable["pglimit_denial"]; n != 2497 || count(t, pool, "pglimit_denial") != 100_103 {
			t.Errorf("removed %+v, want 2,497", removed)
		}
		about := int64(0)
		if len(testworld.Server().Workers()) > 0 { // each shard deletes its oldest
			about = 2
		}
		if oldest := testworld.Value[int64](t, pool, `SELECT min(slot_us) / 600000000 FROM pglimit_denial WHERE key <> ''`); oldest < 2-about || oldest > 2+about {
			t.Errorf("the oldest slot is %d", oldest)
		}
		if got := testworld.Value[string](t, pool, totals); got != want {
			t.Errorf("the sums are %s, want %s", got, want)
		}
		if got := testworld.Value[int64](t, pool, `SELECT denials FROM pglimit_denial WHERE key = '' AND slot_us = 0`); got != 2000 {
			t.Errorf("a whole slot has %d denials under the key \"\", want 2,000", got)
		}
		if removed = must.OK(j.Sweep(t.Context()))(t); removed.Total() != 0 {
			t.Errorf("removed %+v again", removed)
		}
	})
}

// trim deletes counts of the slot 0 as the janitor does.
func trim(t *testing.T, tx pgx.Tx) error {
	sums, err := db.New().DenialsTrim(t.Context(), tx, 40)
	if err != nil {
		return err
	}
	p := db.DenialsAddParams{NowUs: new(int64)}
	for _, d := range sums {
		p.Policies, p.Keys, p.Algorithms = append(p.Policies, d.Policy), append(p.Keys, ""), append(p.Algorithms, d.Algorithm)
		p.Denials, p.Shadowed, p.Units, p.LastDeniedAtUs = append(p.Denials, d.Denials), append(p.Shadowed, 0), append(p.Units, 1), append(p.LastDeniedAtUs, 1)
		p.Blocked, p.AboveBurst, p.Overloaded, p.RetryAtUs = append(p.Blocked, 0), append(p.AboveBurst, 0), append(p.Overloaded, 0), append(p.RetryAtUs, 0)
	}
	return db.New().DenialsAdd(t.Context(), tx, p)
}

// TestJanitorDenialsTrimmedWhileWritten: deleting counts of the present slot neither
// deadlocks with the programs that write them nor loses one.
func TestJanitorDenialsTrimmedWhileWritten(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	const writers, rounds, keys = 3, 50, 60
	var p db.DenialsAddParams
	for k := range keys {
		key := ""
		if k >= 2 {
			key = fmt.Sprint("k", k)
		}
		p.Policies, p.Keys, p.Algorithms = append(p.Policies, fmt.Sprint("p", k%2)), append(p.Keys, key), append(p.Algorithms, "gcra")
		p.Denials, p.Shadowed, p.Units, p.LastDeniedAtUs = append(p.Denials, 1), append(p.Shadowed, 0), append(p.Units, 1), append(p.LastDeniedAtUs, 1)
		p.Blocked, p.AboveBurst, p.Overloaded, p.RetryAtUs = append(p.Blocked, 0), append(p.AboveBurst, 0), append(p.Overloaded, 0), append(p.RetryAtUs, 1)
	}
	p.NowUs = new(int64)
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for range rounds {
				if err := db.New().DenialsAdd(t.Context(), pool, p); err != nil {
					t.Error(err)
				}
				if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return trim(t, tx) }); err != nil {
					t.Error(err)
				}
				if _, err := db.New().DenialsMerge(t.Context(), pool, db.DenialsMergeParams{BeforeUs: 1, MaxRows: 30}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := testworld.Value[int](t, pool, `SELECT sum(denials)::int FROM pglimit_denial`); n != writers*rounds*keys {
		t.Errorf("%d denials in the table, want %d", n, writers*rounds*keys)
	}
}
