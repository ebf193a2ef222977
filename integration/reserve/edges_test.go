package reserve

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveAtTheEpoch: a test's clock may stand at 0.
func TestReserveAtTheEpoch(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := testworld.NewLimiter(t, testworld.NewPool(t), &limiter.Config{Now: func() time.Time { return time.Unix(0, 0) }})
	for _, p := range testworld.Holdable() {
		h := testworld.Reserve(t, l, p.Request("k", 4), time.Minute)
		again := p.Request("k", 3)
		again.IdempotencyKey = "order 1"
		testworld.Reserve(t, l, again, time.Minute)
		if r := testworld.Must(t)(l.Check(ctx, p, "k", 0)); r.Level != 7 || h.ExpiresAt != time.Unix(60, 0) {
			t.Errorf("%s: level %v, expires %v", testworld.Variant(p), r.Level, h.ExpiresAt)
		}
	}
}

// TestReserveCheckWritesNothingWhereItMustNot: a Check in a transaction locks no
// reservation, and succeeds in a read-only transaction and on a read-only server.
func TestReserveCheckWritesNothingWhereItMustNot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := testworld.NewDatabase(t)
	pool := testworld.Connect(t, url)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	config := &limiter.Config{Now: func() time.Time { return at }}
	l := testworld.NewLimiter(t, pool, config)
	readOnly := testworld.NewLimiter(t, testworld.Connect(t, url, testworld.Setting("default_transaction_read_only", "on")), config)
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		testworld.Reserve(t, l, p.Request("k", 10), time.Second)
		at = at.Add(time.Second)
		if r, err := readOnly.Check(ctx, p, "k", 1); err != nil || r.Allowed {
			t.Errorf("%s: where one only reads: %+v, %v", testworld.Variant(p), r, err)
		}
		for _, mode := range []pgx.TxAccessMode{pgx.ReadOnly, pgx.ReadWrite} {
			tx := testworld.Begin(t, pool, pgx.TxOptions{AccessMode: mode})
			if r, err := l.InTx(tx).Check(ctx, p, "k", 1); err != nil || r.Allowed {
				t.Errorf("%s: in a transaction, %s: %+v, %v", testworld.Variant(p), mode, r, err)
			}
			testworld.Exec(t, pool, "SELECT FROM pglimit_reservation WHERE policy = $1 FOR UPDATE NOWAIT", p.Name)
			must.Succeed(t, tx.Rollback(ctx))
		}
		if r := testworld.Must(t)(l.Check(ctx, p, "k", 1)); !r.Allowed || r.Level != 0 {
			t.Errorf("%s: %+v", testworld.Variant(p), r)
		}
	}
}

// TestReserveManyExpiredComeBackAtOnce: as many as a request needs, even if the first to
// expire have nothing left to give back.
func TestReserveManyExpiredComeBackAtOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, other, at := settable(t)
	for _, a := range []limiter.Algorithm{limiter.FixedWindow, limiter.TokenBucket} {
		p := limiter.Policy{Name: "p", Algorithm: a, Limit: 130, Period: 1000 * time.Hour}
		at(0)
		for range 130 {
			testworld.Reserve(t, l, p.Request("k", 1), time.Second)
			testworld.Reserve(t, l, p.Request("other", 1), time.Second)
		}
		at(time.Second)
		if r := testworld.Must(t)(other.AllowN(ctx, p, "k", 129)); !r.Allowed {
			t.Errorf("%s: %+v", a, r)
		}
		if all := testworld.MustAll(t)(l.AllowAll(ctx, p.Request("other", 129), p.Request("third", 1))); !all.Allowed {
			t.Errorf("%s: %+v", a, all)
		}
	}
	p := limiter.Policy{Name: "leaked", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Second, Burst: 130}
	at(0)
	for range 110 {
		testworld.Reserve(t, l, p.Request("k", 1), time.Second)
	}
	at(2 * time.Second) // of each 1 has leaked, of all together 2
	testworld.Reserve(t, l, p.Request("k", 20), time.Second)
	at(3 * time.Second)
	if r := testworld.Must(t)(other.AllowN(ctx, p, "k", 10)); !r.Allowed {
		t.Errorf("%+v", r)
	}
}

// TestSettleOverdraftOutlivesTheJanitor: a row stays while it counts, also under a slower plan
// than the reservation's or after one.
func TestSettleOverdraftOutlivesTheJanitor(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { return at }
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: now, DisableDenyCache: true})
	j := testworld.NewJanitor(t, pool, &janitor.Config{Now: now})
	for _, a := range []limiter.Algorithm{limiter.LeakyBucket, limiter.TokenBucket, limiter.GCRA} {
		for _, order := range []string{"slower before", "slower after", "twice"} {
			fast := limiter.Policy{Name: "p", Algorithm: a, Limit: 10, Period: time.Second}
			slow := limiter.Policy{Name: "p", Algorithm: a, Limit: 10, Period: 10 * time.Hour}
			began := at
			hold, key := testworld.Reserve(t, l, fast.Request(order, 1), time.Hour), order
			if order == "slower before" {
				testworld.Must(t)(l.Allow(ctx, slow, key))
			}
			testworld.Must(t)(l.Settle(ctx, hold.ID, 1e6))
			if order == "twice" {
				testworld.Must(t)(l.Settle(ctx, reserveAfter(t, l, fast, key), 1e6))
			}
			if order != "slower before" {
				testworld.Must(t)(l.Allow(ctx, slow, key))
			}
			at = began.Add(20 * 365 * 24 * time.Hour)
			must.OK(j.Sweep(ctx))(t)
			if r := testworld.Must(t)(l.Check(ctx, slow, key, 1)); r.Allowed || r.Level < 1e6-20*365*24-100 {
				t.Errorf("%s, %s: %+v", a, order, r)
			}
		}
	}
}

// reserveAfter makes a reservation on a key that is overdrawn afterwards.
func reserveAfter(t *testing.T, l *limiter.Limiter, p limiter.Policy, key string) string {
	t.Helper()
	testworld.Must(t)(l.Refund(context.Background(), p, key, 1e6))
	return testworld.Reserve(t, l, p.Request(key, 1), time.Hour).ID
}

// TestReserveLiftsOnlyTheDenialsBlock: a request that was denied because of an expired
// reservation lifts the block that ends when its own would, and no other.
func TestReserveLiftsOnlyTheDenialsBlock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	blocked := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: func() time.Time { return blocked }})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
	must.Succeed(t, l.Block(ctx, p, "k", time.Minute))
	until := blocked.Add(time.Minute).UnixMicro()
	for _, lift := range []int64{until - 1, until + 1, until} {
		if r := testworld.Must(t)(l.Check(ctx, p, "k", 0)); r.Allowed {
			t.Errorf("%d is lifted with another", until)
		}
		must.Succeed(t, db.New().TokenBucketUnblock(ctx, pool, db.TokenBucketUnblockParams{Policy: "p", Key: "k", UntilUs: lift}))
	}
	if r := testworld.Must(t)(l.Check(ctx, p, "k", 0)); !r.Allowed {
		t.Errorf("%+v", r)
	}
}
