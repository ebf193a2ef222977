package reserve

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveJanitorGivesBackExpired at the microsecond, and deletes those that need not be remembered.
func TestReserveJanitorGivesBackExpired(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { return at }
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: now, IdempotencyTTL: time.Hour})
	j := testworld.NewJanitor(t, pool, &janitor.Config{Now: now, BatchSize: 3})
	var kept []limiter.Reservation
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		for range 2 {
			testworld.Reserve(t, l, p.Request("k", 2), time.Minute)
		}
		kept = append(kept, testworld.Reserve(t, l, p.Request("k", 3), 2*time.Hour))
	}
	at = at.Add(time.Minute - time.Microsecond)
	if removed, err := j.Sweep(ctx); err != nil || removed.ReservationsExpired != 0 {
		t.Errorf("a microsecond before: %+v, %v", removed, err)
	}
	at = at.Add(time.Microsecond)
	removed, err := j.Sweep(ctx)
	if err != nil || int(removed.ReservationsExpired) != 2*len(kept) || removed.ByTable["pglimit_reservation"] != 0 {
		t.Errorf("the first sweep: %+v, %v", removed, err)
	}
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		if got := testworld.Level(t, l, p, "k"); !testworld.Near(got, 3) {
			t.Errorf("%s: level %v after the sweep", testworld.Variant(p), got)
		}
	}
	at = at.Add(time.Hour)
	removed, err = j.Sweep(ctx)
	if err != nil || removed.ReservationsExpired != 0 || int(removed.ByTable["pglimit_reservation"]) != 2*len(kept) {
		t.Errorf("an hour later: %+v, %v", removed, err)
	}
	for _, h := range kept { // open reservations stay
		testworld.Must(t)(l.Settle(ctx, h.ID, 1))
	}
}

// TestReserveReapingNeverDeadlocks: a denied request in one transaction has locked the
// key's row, and a Settle in another has locked the reservation.
func TestReserveReapingNeverDeadlocks(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	h := testworld.Reserve(t, l, p.Request("k", 10), time.Second)
	testworld.Eventually(t, "the hold has expired", func(ctx context.Context) (bool, error) {
		return testworld.Value[bool](t, pool, "SELECT clock_timestamp() > $1", h.ExpiresAt), nil
	})
	asking, settling := testworld.Begin(t, pool, pgx.TxOptions{}), testworld.Begin(t, pool, pgx.TxOptions{})
	// The first has locked the key's row; the second has locked the reservation and waits.
	testworld.Must(t)(l.InTx(asking).Charge(ctx, p, "k", 1))
	done := make(chan error, 1)
	go func() {
		_, err := l.InTx(settling).Settle(ctx, h.ID, 5)
		done <- errors.Join(err, settling.Commit(ctx))
	}()
	testworld.AwaitBlocked(t, pool)
	if r, err := l.InTx(asking).Allow(ctx, p, "k"); err != nil || r.Allowed {
		t.Errorf("the denied request: %+v, %v", r, err)
	}
	if err := errors.Join(asking.Commit(ctx), <-done); err != nil {
		t.Error(err)
	}
	if n := testworld.Value[int](t, pool, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// TestReserveArguments: errors name invalid arguments, before anything is written.
func TestReserveArguments(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
	queue := p
	queue.Algorithm = limiter.LeakyBucketQueue
	long := p.Request("k", 1)
	long.IdempotencyKey = string(make([]byte, 256))
	nul := p.Request("k", 1)
	nul.IdempotencyKey = "a\x00"
	odd := testworld.NewLimiter(t, pool, &limiter.Config{IdempotencyTTL: -time.Second})
	for want, err := range map[string]error{
		"pglimit: invalid: ttl 999ms: must be whole microseconds from one second to a hundred years":        second(l.Reserve(ctx, p.Request("k", 1), 999*time.Millisecond)),
		"pglimit: invalid: ttl 1.000000001s: must be whole microseconds from one second to a hundred years": second(l.Reserve(ctx, p.Request("k", 1), time.Second+1)),
		"pglimit: unsupported: Reserve on leaky_bucket_queue: units in a queue are not given back":          second(l.Reserve(ctx, queue.Request("k", 1), time.Second)),
		"pglimit: invalid: units -1: must be from 0 to 2^53":                                                second(l.Settle(ctx, "token_bucket:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw", -1)),
		`pglimit: invalid: reservation "7": is not the ID of a Reservation`:                                 l.Cancel(ctx, "7"),
		`pglimit: invalid: IdempotencyKey "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"… (256 bytes): is longer than 255 bytes; hash it first`: second(l.Do(ctx, long)),
		`pglimit: invalid: IdempotencyKey "a\x00": holds a NUL byte`:        second(l.Do(ctx, nul)),
		"pglimit: invalid: Config.IdempotencyTTL -1s: must not be negative": second(odd.Reserve(ctx, p.Request("k", 1), time.Second)),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	if got := testworld.Value[int](t, pool, "SELECT (SELECT count(*) FROM pglimit_reservation) + (SELECT count(*) FROM pglimit_token_bucket)"); got != 0 {
		t.Errorf("%d rows were written", got)
	}
}

func second[T any](_ T, err error) error { return err }
