package janitor

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/janitor"
)

// TestJanitorDenials: counts of denials go once their slot ended KeepDenials ago, in
// batches, and rows that a transaction has locked stay for the next sweep.
func TestJanitorDenials(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	const slot = int64(600_000_000)
	const day = 144 * slot
	at := 1000 * day
	bed.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
		SELECT 1, 0, 1, $1::bigint - age * $2::bigint, 0, 'p', 'k' || age, 'gcra' FROM generate_series(0, 200) AS age`, at, slot)
	now := func() time.Time { return time.UnixMicro(at) }
	j := bed.NewJanitor(t, pool, &janitor.Config{Now: now, BatchSize: 10})
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	if _, err := tx.Exec(t.Context(), `SELECT FROM pglimit_denial WHERE key = 'k180' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	removed := bed.OK(j.Sweep(t.Context()))(t)
	// Slots 0 to 144 ended within a day: the last a day ago would have gone.
	if n := removed.ByTable["pglimit_denial"]; n != 55 || removed.Total() != 55 {
		t.Errorf("removed %+v, want 55", removed)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	removed = bed.OK(j.Sweep(t.Context()))(t)
	oldest := bed.Value[int64](t, pool, `SELECT min(slot_us) FROM pglimit_denial`)
	if n := removed.ByTable["pglimit_denial"]; n != 1 || count(t, pool, "pglimit_denial") != 145 || oldest != at-144*slot {
		t.Errorf("removed %+v; %d are left, the oldest of slot %d", removed, count(t, pool, "pglimit_denial"), (at-oldest)/slot)
	}
	short := bed.NewJanitor(t, pool, &janitor.Config{Now: now, KeepDenials: time.Hour})
	if removed = bed.OK(short.Sweep(t.Context()))(t); removed.ByTable["pglimit_denial"] != 138 || count(t, pool, "pglimit_denial") != 7 {
		t.Errorf("removed %+v", removed)
	}
}

// TestJanitorDenialsBounded: of more than 100,000 counts the oldest slots go.
func TestJanitorDenialsBounded(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	bed.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
		SELECT 1, 0, 1, 600000000 * (n / 1000)::bigint, 0, 'p', 'k' || n, 'gcra' FROM generate_series(0, 102499) AS n`)
	now := func() time.Time { return time.UnixMicro(103 * 600_000_000) }
	j := bed.NewJanitor(t, pool, &janitor.Config{Now: now})
	removed := bed.OK(j.Sweep(t.Context()))(t)
	if n := removed.ByTable["pglimit_denial"]; n != 2500 || count(t, pool, "pglimit_denial") != 100_000 {
		t.Errorf("removed %+v, want 2,500", removed)
	}
	if oldest := bed.Value[int64](t, pool, `SELECT min(slot_us) / 600000000 FROM pglimit_denial`); oldest != 2 {
		t.Errorf("the oldest slot is %d", oldest)
	}
	if removed = bed.OK(j.Sweep(t.Context()))(t); removed.Total() != 0 {
		t.Errorf("removed %+v again", removed)
	}
}
