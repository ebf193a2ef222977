package reserve

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReservationIDTampered: an ID finds its reservation only as a whole. With another
// algorithm, policy or key in it there is none, and no other changes.
func TestReservationIDTampered(t *testing.T) {
	testworld.InSQLAndMemory(t, func(t *testing.T, l *limiter.Limiter, _ *conformance.Clock) {
		ctx := context.Background()
		var ids []string
		for _, p := range testworld.Holdable() {
			p.Name, p.Period, p.Tick, p.Aligned = "p", 1000*time.Hour, 0, false
			h := testworld.Reserve(t, l, p.Request("k", 5), time.Hour)
			testworld.Reserve(t, l, p.Request("other", 5), time.Hour)
			ids = append(ids, h.ID)
		}
		for i, id := range ids {
			part := strings.Split(id, ":")
			for _, other := range [][]string{
				{strings.Split(ids[(i+2)%len(ids)], ":")[0], part[1], part[2], part[3]},
				{part[0], part[1], "q", part[3]},
				{part[0], part[1], part[2], base64.RawURLEncoding.EncodeToString([]byte("other"))},
				{part[0], strings.ToLower(part[1]), part[2], part[3]},
			} {
				id := strings.Join(other, ":")
				if _, err := l.Settle(ctx, id, 1); !errors.Is(err, limiter.ErrNoReservation) {
					t.Errorf("settled %s: %v", id, err)
				}
				if err := l.Cancel(ctx, id); !errors.Is(err, limiter.ErrNoReservation) {
					t.Errorf("cancelled %s: %v", id, err)
				}
			}
		}
		for _, p := range testworld.Holdable() {
			p.Name, p.Period, p.Tick, p.Aligned = "p", 1000*time.Hour, 0, false
			for _, key := range []string{"k", "other"} {
				if u, err := l.Usage(ctx, p, key); err != nil || u.Reservations == 0 || u.Spent > 1e-6 {
					t.Errorf("%s, %s: %+v, %v", testworld.Variant(p), key, u, err)
				}
			}
		}
		for _, id := range ids {
			if err := l.Cancel(ctx, id); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
	})
}

// TestReservationsWithOneStoredID: the column id is unique for a policy and key only. No
// statement goes by it alone.
func TestReservationsWithOneStoredID(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := began
	clock := func() time.Time { return now }
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock, DisableDenyCache: true, IdempotencyTTL: time.Second})
	j := testworld.NewJanitor(t, pool, &janitor.Config{Now: clock})
	const stored = "0123456789abcdef"
	type place struct {
		p   limiter.Policy
		key string
	}
	ids, levels := map[place]string{}, map[place]float64{}
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		for i, key := range []string{"settled", "cancelled", "expires", "reset", "stays"} {
			request := p.Request(key, 5)
			request.IdempotencyKey = "order 1"
			h := testworld.Reserve(t, l, request, time.Duration(1+i)*time.Second)
			ids[place{p, key}] = strings.Replace(h.ID, testworld.StoredID(h.ID), stored, 1)
			levels[place{p, key}] = 5
		}
	}
	testworld.Exec(t, pool, "UPDATE pglimit_reservation SET id = $1", stored)
	check := func(after string) {
		t.Helper()
		for at, want := range levels {
			if got := testworld.Level(t, l, at.p, at.key); !testworld.Near(got, want) {
				t.Errorf("%s, %s: level %v after %s, want %v", testworld.Variant(at.p), at.key, got, after, want)
			}
		}
	}
	count := func(where string) int {
		return testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_reservation WHERE "+where)
	}
	n := len(ids) / 5
	for at, id := range ids {
		switch at.key {
		case "settled":
			if r := testworld.Must(t)(l.Settle(ctx, id, 2)); !testworld.Near(r.Level, 2) {
				t.Errorf("%+v", r)
			}
			levels[at] = 2
		case "cancelled":
			if err := l.Cancel(ctx, id); err != nil {
				t.Error(err)
			}
			levels[at] = 0
		case "reset":
			if err := l.Reset(ctx, at.p, at.key); err != nil {
				t.Error(err)
			}
			levels[at] = 0
		}
	}
	check("the ends")
	if got := [...]int{count("state = 'settled' AND key = 'settled'"), count("state = 'cancelled' AND key = 'cancelled'"), count("state = 'open' AND units = 0 AND key = 'reset'")}; got != [...]int{n, n, n} {
		t.Errorf("%v of %d each", got, n)
	}

	// ReservationsFree of one key, as a Reset runs it.
	for p := range levels {
		if p.key != "stays" {
			continue
		}
		must.Succeed(t, db.New().ReservationsFree(ctx, pool, db.ReservationsFreeParams{Policy: p.p.Name, Key: "expires", Algorithm: string(algorithm.Name(p.p.Algorithm).Table())}))
	}
	if got := count("units = 0 AND state = 'open'"); got != 2*n || count("units = 5 AND key = 'stays'") != n {
		t.Errorf("%d were freed", got)
	}
	testworld.Exec(t, pool, "UPDATE pglimit_reservation SET units = 5 WHERE key = 'expires'")

	now = began.Add(3 * time.Second) // the look before a denial
	for at := range levels {
		if at.key == "expires" {
			if r := testworld.Must(t)(l.AllowN(ctx, at.p, at.key, 9)); !r.Allowed {
				t.Errorf("%s: %+v", testworld.Variant(at.p), r)
			}
			levels[at] = 9
		}
	}
	check("the look")

	// The janitor ends what has expired, and deletes what has been retained for a second.
	now = began.Add(4 * time.Second)
	removed, err := j.Sweep(ctx)
	if err != nil || int(removed.ReservationsExpired) != n || int(removed.ByTable["pglimit_reservation"]) != 3*n {
		t.Errorf("%+v, %v", removed, err)
	}
	check("the sweep")
	if reset, stays := count("key = 'reset' AND state = 'expired'"), count("key = 'stays' AND state = 'open'"); reset != n || stays != n {
		t.Errorf("%d expired and %d are open, of %d each", reset, stays, n)
	}
}

// TestSettleOfALockedReservation: while another transaction ends a reservation without a
// change to its key's row, others for the key do not wait.
func TestSettleOfALockedReservation(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Timeout: time.Minute})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1000, Period: 1000 * time.Hour}
	h := testworld.Reserve(t, l, p.Request("k", 5), time.Hour)
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	testworld.Must(t)(l.InTx(tx).Settle(ctx, h.ID, 5))
	settled := make(chan error, 1)
	go func() {
		_, err := l.Settle(ctx, h.ID, 5)
		settled <- err
	}()
	testworld.AwaitBlocked(t, pool)
	for range 50 { // none of them could end if they waited for the transaction
		testworld.Must(t)(l.Allow(ctx, p, "k"))
		testworld.Must(t)(l.Charge(ctx, p, "k", 1))
		testworld.Reserve(t, l, p.Request("k", 1), time.Hour)
	}
	if err := errors.Join(tx.Commit(ctx), <-settled); err != nil {
		t.Error(err)
	}
}
