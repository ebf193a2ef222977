package reserve

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveJanitorPassesOverWhatItCannotGiveBack: a reservation that is locked, or of a
// kind that only a newer version knows, does not keep others from being given back, in
// that sweep or in later ones.
func TestReserveJanitorPassesOverWhatItCannotGiveBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { return at }
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: now})
	j := testworld.NewJanitor(t, pool, &janitor.Config{Now: now, BatchSize: 2})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 100, Period: 1000 * time.Hour}
	testworld.Reserve(t, l, p.Request("busy", 5), time.Second)
	newer := testworld.Reserve(t, l, p.Request("newer", 5), 2*time.Second)
	for range 7 {
		testworld.Reserve(t, l, p.Request("k", 5), time.Minute)
	}
	testworld.Exec(t, pool, "UPDATE pglimit_reservation SET algorithm = 'of_the_future' WHERE id = $1", testworld.StoredID(newer.ID))
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	testworld.Must(t)(l.InTx(tx).Allow(ctx, p, "busy"))

	at = at.Add(time.Minute)
	removed, err := j.Sweep(ctx)
	if err == nil || !strings.Contains(err.Error(), testworld.StoredID(newer.ID)+" of policy p") || !strings.Contains(err.Error(), `"of_the_future"`) {
		t.Errorf("the error does not name the hold: %v", err)
	}
	if removed.ReservationsExpired != 7 || testworld.Level(t, l, p, "k") != 0 {
		t.Errorf("%+v, level %v", removed, testworld.Level(t, l, p, "k"))
	}
	must.Succeed(t, tx.Commit(ctx))
	if removed, _ := j.Sweep(ctx); removed.ReservationsExpired != 1 || testworld.Level(t, l, p, "busy") != 1 {
		t.Errorf("after the transaction: %+v, level %v", removed, testworld.Level(t, l, p, "busy"))
	}
	if all := j.Removed(); all.ReservationsExpired != 8 || all.Total() != 0 {
		t.Errorf("of all sweeps: %+v", all)
	}
}

// TestReserveBacklog: a denied request ends a bounded number of the key's expired
// reservations, in each way to request. The janitor ends the rest.
func TestReserveBacklog(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.FunctionsPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour}
	testworld.StorePolicy(t, pool, p, true)
	testworld.Reserve(t, l, p.Request("k", 1.0/1024), time.Hour)
	testworld.Exec(t, pool, `INSERT INTO pglimit_reservation SELECT (r).* FROM (
		SELECT jsonb_populate_record(h, jsonb_build_object('id', lpad(i::text, 20, '0'), 'expires_at_us', h.created_at_us)) AS r
		FROM pglimit_reservation AS h, generate_series(1, 2047) AS i) AS copies`)
	testworld.Must(t)(l.AllowN(ctx, p, "k", 8-1.0/1024)) // none of it is theirs
	testworld.Must(t)(l.Charge(ctx, p, "k", 2047.0/1024))
	left := 2047
	for way, request := range map[string]func() bool{
		"library": func() bool { return testworld.Must(t)(l.AllowN(ctx, p, "k", 9)).Allowed },
		"AllowAll": func() bool {
			return testworld.MustAll(t)(l.AllowAll(ctx, p.Request("k", 9), p.Request("other", 1))).Allowed
		},
		"Check":     func() bool { return testworld.Must(t)(l.Check(ctx, p, "k", 9)).Allowed },
		"Reserve":   func() bool { return testworld.Must(t)(reserved(l.Reserve(ctx, p.Request("k", 9), time.Hour))).Allowed },
		"SQL":       func() bool { return testworld.Value[bool](t, pool, `SELECT allowed FROM pglimit.allow('p', 'k', 9)`) },
		"SQL check": func() bool { return testworld.Value[bool](t, pool, `SELECT allowed FROM pglimit.check('p', 'k', 9)`) },
	} {
		allowed := request()
		before := left
		left = testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_reservation WHERE state = 'open' AND expires_at_us = created_at_us`)
		if allowed || before-left == 0 || before-left > 200 {
			t.Errorf("%s: allowed %v, ended %d", way, allowed, before-left)
		}
	}
	if r := testworld.Must(t)(l.Check(ctx, p, "k", 0)); r.Level != 8+float64(left)/1024 {
		t.Errorf("level %v with %d left", r.Level, left)
	}
	removed, err := testworld.NewJanitor(t, pool, &janitor.Config{}).Sweep(ctx)
	if err != nil || int(removed.ReservationsExpired) != left || left == 0 || testworld.Level(t, l, p, "k") != 8 {
		t.Errorf("%d were left: %+v, %v, level %v", left, removed, err, testworld.Level(t, l, p, "k"))
	}
}

func reserved(r limiter.Reservation, err error) (limiter.Result, error) { return r.Result, err }
