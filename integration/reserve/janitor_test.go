package reserve

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveJanitorPassesOverWhatItCannotGiveBack: a reservation that is locked, or of a
// kind that only a newer version knows, does not keep others from being given back, in
// that sweep or in later ones.
func TestReserveJanitorPassesOverWhatItCannotGiveBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { return at }
	l := bed.NewLimiter(t, pool, &limiter.Config{Now: now})
	j := bed.NewJanitor(t, pool, &janitor.Config{Now: now, BatchSize: 2})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 100, Period: 1000 * time.Hour}
	bed.Reserve(t, l, p.Request("busy", 5), time.Second)
	newer := bed.Reserve(t, l, p.Request("newer", 5), 2*time.Second)
	for range 7 {
		bed.Reserve(t, l, p.Request("k", 5), time.Minute)
	}
	bed.Exec(t, pool, "UPDATE pglimit_reservation SET algorithm = 'of_the_future' WHERE id = $1", bed.StoredID(newer.ID))
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	bed.Must(t)(l.InTx(tx).Allow(ctx, p, "busy"))

	at = at.Add(time.Minute)
	removed, err := j.Sweep(ctx)
	if err == nil || !strings.Contains(err.Error(), bed.StoredID(newer.ID)+" of policy p") || !strings.Contains(err.Error(), `"of_the_future"`) {
		t.Errorf("the error does not name the hold: %v", err)
	}
	if removed.ReservationsExpired != 7 || bed.Level(t, l, p, "k") != 0 {
		t.Errorf("%+v, level %v", removed, bed.Level(t, l, p, "k"))
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if removed, _ := j.Sweep(ctx); removed.ReservationsExpired != 1 || bed.Level(t, l, p, "busy") != 1 {
		t.Errorf("after the transaction: %+v, level %v", removed, bed.Level(t, l, p, "busy"))
	}
	if all := j.Removed(); all.ReservationsExpired != 8 || all.Total() != 0 {
		t.Errorf("of all sweeps: %+v", all)
	}
}

// TestReserveJanitorWaitsForExpiry: to the microsecond.
func TestReserveJanitorWaitsForExpiry(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { return at }
	l := bed.NewLimiter(t, pool, &limiter.Config{Now: now})
	j := bed.NewJanitor(t, pool, &janitor.Config{Now: now})
	for _, p := range bed.Holdable() {
		p.Period = 1000 * time.Hour
		bed.Reserve(t, l, p.Request("k", 5), time.Minute)
	}
	at = at.Add(time.Minute - time.Microsecond)
	if removed, err := j.Sweep(ctx); err != nil || removed.ReservationsExpired != 0 {
		t.Errorf("%+v, %v", removed, err)
	}
	for _, p := range bed.Holdable() {
		p.Period = 1000 * time.Hour
		if got := bed.Level(t, l, p, "k"); !bed.Near(got, 5) {
			t.Errorf("%s: level %v", bed.Variant(p), got)
		}
	}
}
