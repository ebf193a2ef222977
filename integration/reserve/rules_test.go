package reserve

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveDurability: a Reserve commits as its policy says. Settle and Cancel commit
// durably, whatever the policy and the session. What has expired comes back without a wait
// for the disk.
func TestReserveDurability(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	log := bed.NewCommitLog(t)
	for _, d := range bed.Durabilities {
		l := bed.NewLimiter(t, bed.Connect(t, log.URL, bed.Setting("synchronous_commit", "off")), nil)
		for _, p := range bed.Holdable() {
			p.Name, p.Durability, p.Period = fmt.Sprintf("%s-%d", p.Name, d), d, 1000*time.Hour
			bed.Must(t)(l.Settle(ctx, bed.Reserve(t, l, p.Request("settle", 5), time.Hour).ID, 3))
			if err := l.Cancel(ctx, bed.Reserve(t, l, p.Request("cancel", 5), time.Hour).ID); err != nil {
				t.Fatal(err)
			}
			got := bed.Value[string](t, log.Pool, `SELECT string_agg(DISTINCT s, ', ' ORDER BY s) FROM
				(SELECT key || ' ' || string_agg(setting, ' ' ORDER BY xid) AS s FROM committed WHERE policy = $1 GROUP BY key) AS c`, p.Name)
			first := bed.CommittedWith("off", d)
			if want := fmt.Sprintf("cancel %s on, settle %s on", first, first); got != want {
				t.Errorf("%s: committed %q, want %q", p.Name, got, want)
			}
		}
	}
	at := time.Now()
	now := func() time.Time { return at }
	l := bed.NewLimiter(t, log.Pool, &limiter.Config{Now: now})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour}
	bed.Reserve(t, l, p.Request("denied", 10), time.Second)
	bed.Reserve(t, l, p.Request("swept", 10), time.Second)
	at = at.Add(time.Second)
	bed.Must(t)(l.Allow(ctx, p, "denied"))
	if _, err := bed.NewJanitor(t, log.Pool, &janitor.Config{Now: now}).Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"denied": "on on off on", "swept": "on off"} {
		if got := bed.Value[string](t, log.Pool, `SELECT string_agg(setting, ' ' ORDER BY xid) FROM committed WHERE policy = 'p' AND key = $1`, key); got != want {
			t.Errorf("%s: committed %q, want %q", key, got, want)
		}
	}
}

// TestReserveKeepsKeysSecret: with a KeySecret neither the key nor the idempotency key is
// stored or in the ID, and another process with the secret finds the same reservation.
func TestReserveKeepsKeysSecret(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	config := &limiter.Config{KeySecret: []byte("a secret for the keys")}
	l, other := bed.NewLimiter(t, pool, config), bed.NewLimiter(t, pool, config)
	for _, p := range bed.Holdable() {
		p.Period = 1000 * time.Hour
		request := p.Request("alice@example.com", 6)
		request.IdempotencyKey = "order of alice"
		h := bed.Reserve(t, l, request, time.Hour)
		if again := bed.Reserve(t, other, request, time.Hour); again.ID != h.ID || !again.Result.Replayed {
			t.Errorf("%s: %+v", bed.Variant(p), again)
		}
		stored := bed.Value[string](t, pool, "SELECT string_agg(h::text, ' ') FROM pglimit_reservation AS h WHERE policy = $1", p.Name) +
			bed.Value[string](t, pool, "SELECT string_agg(r::text, ' ') FROM pglimit_"+string(p.Algorithm)+" AS r WHERE policy = $1", p.Name)
		inID, err := base64.RawURLEncoding.DecodeString(h.ID[strings.LastIndex(h.ID, ":")+1:])
		if err != nil || strings.Contains(stored+string(inID), "alice") || !strings.Contains(stored, string(inID)) {
			t.Errorf("%s: %s, ID %s, %v", bed.Variant(p), stored, h.ID, err)
		}
		if _, err := other.Settle(ctx, h.ID, 7); err != nil || !bed.Near(bed.Level(t, l, p, "alice@example.com"), 7) {
			t.Errorf("%s: %v", bed.Variant(p), err)
		}
	}
}

// TestReserveEndIsSeenAtOnce by the process that ends it, although it remembers a denial
// of the key: alone, in a transaction, and if a Settle changes nothing.
func TestReserveEndIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, &limiter.Config{DenyCacheTTL: time.Hour})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	for name, end := range map[string]func(id string) error{
		"settle": func(id string) error { _, err := l.Settle(ctx, id, 1); return err },
		"cancel": func(id string) error { return l.Cancel(ctx, id) },
		"in a transaction": func(id string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return l.InTx(tx).Cancel(ctx, id) })
		},
	} {
		h := bed.Reserve(t, l, p.Request(name, 10), time.Hour)
		for range 2 {
			bed.Must(t)(l.AllowN(ctx, p, name, 5))
		}
		if r := bed.Must(t)(l.AllowN(ctx, p, name, 5)); r.Source != limiter.SourceCache {
			t.Errorf("%s: the denial is not remembered: %+v", name, r)
		}
		if err := end(h.ID); err != nil {
			t.Fatal(err)
		}
		if r := bed.Must(t)(l.AllowN(ctx, p, name, 5)); !r.Allowed {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestReserveUnknownOpensNoBreaker: the database has answered.
func TestReserveUnknownOpensNoBreaker(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := bed.NewLimiter(t, bed.NewPool(t), &limiter.Config{BreakAfter: 2, BreakFor: time.Hour})
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
	for range 5 {
		if err := l.Cancel(ctx, "gcra:AAAAAAAAAAAAAAAAAAAAAAAAAA:p:aw"); !errors.Is(err, limiter.ErrNoReservation) {
			t.Error(err)
		}
	}
	if r := bed.Must(t)(l.Allow(ctx, p, "k")); !r.Allowed {
		t.Errorf("%+v", r)
	}
}

// TestReserveIsObserved: a Reserve is observed once, however many statements it took. So
// are Settle and Cancel, with the policy and key of the reservation.
func TestReserveIsObserved(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var seen []string
	l := bed.NewLimiter(t, bed.NewPool(t), &limiter.Config{
		Now: func() time.Time { return at },
		Observe: func(_ context.Context, o limiter.Observation) {
			seen = append(seen, fmt.Sprint(o.Verb, " ", o.Request.Policy.Name, " ", o.Request.Key, " ", o.Request.Cost, o.Result.Allowed, o.Result.Replayed, " ", o.Rows, o.Err != nil))
		},
	})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	h := bed.Reserve(t, l, p.Request("k", 6), time.Second)
	if denied, err := l.Reserve(ctx, p.Request("k", 5), time.Second); err != nil || denied.ID != "" || !denied.Expires.IsZero() {
		t.Errorf("%+v, %v", denied, err)
	}
	at = at.Add(time.Second)
	request := p.Request("k", 8)
	request.IdempotencyKey = "order 1"
	for range 2 { // the first gives the expired one back
		bed.Reserve(t, l, request, time.Second)
	}
	bed.Must(t)(l.Settle(ctx, h.ID, 1))
	_ = l.Cancel(ctx, h.ID)
	if want := []string{
		"reserve p k 6 true false 1 false", "reserve p k 5 false false 1 false", "reserve p k 8 true false 1 false", "reserve p k 8 true true 1 false",
		"settle p k 1 true false 1 false", "cancel p k 0 false false 0 true",
	}; !slices.Equal(seen, want) {
		t.Errorf("seen %q", seen)
	}
}

// TestReserveFreeingWaitsForNobody: a caller that is about to end a reservation may be
// waiting for the row that the Reset has locked.
func TestReserveFreeingWaitsForNobody(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := bed.NewDatabase(t)
	pool := bed.Connect(t, url)
	l := bed.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: 1000 * time.Hour}
	bed.Reserve(t, l, p.Request("k", 5), time.Hour)
	settling := bed.Begin(t, pool, pgx.TxOptions{})
	if _, err := settling.Exec(ctx, "SELECT FROM pglimit_reservation FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	err := db.New().ReservationsFree(ctx, bed.Connect(t, url, bed.Setting("statement_timeout", "10s")), db.ReservationsFreeParams{Policy: "p", Key: "k", Algorithm: "gcra"})
	if state := pgState(err); state != "55P03" {
		t.Errorf("%v", err)
	}
}

func pgState(err error) string {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// TestReserveOldSnapshotSilencesNobody: a transaction that sees no reservation, because
// its snapshot is older, does not keep others from giving an expired one back.
func TestReserveOldSnapshotSilencesNobody(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	bed.Must(t)(l.AllowN(ctx, p, "full", 10))
	tx := bed.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if _, err := tx.Exec(ctx, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	h := bed.Reserve(t, bed.NewLimiter(t, pool, nil), p.Request("k", 10), time.Second)
	bed.Eventually(t, "the hold has expired", func(ctx context.Context) (bool, error) {
		return bed.Value[bool](t, pool, "SELECT clock_timestamp() > $1", h.Expires), nil
	})
	if r := bed.Must(t)(l.InTx(tx).Allow(ctx, p, "full")); r.Allowed {
		t.Fatalf("%+v", r)
	}
	if r := bed.Must(t)(l.Allow(ctx, p, "k")); !r.Allowed {
		t.Errorf("%+v", r)
	}
}

// TestIdempotencyKeyCountsOnce, for many concurrent callers: alone, and in transactions of
// every isolation, which run again as documented. Reserve returns the same reservation to
// all of them.
func TestIdempotencyKeyCountsOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.Connect(t, bed.NewDatabase(t), bed.Connections(16))
	l := bed.NewLimiter(t, pool, nil)
	for _, iso := range []pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, p := range bed.Variants(100, 1000*time.Hour) {
			request := p.Request("k"+string(iso), 7)
			request.IdempotencyKey = "order 1"
			admit := func(d limiter.Decider) (h limiter.Reservation, err error) {
				if p.Algorithm == limiter.LeakyBucketQueue || iso == pgx.ReadCommitted {
					h.Result, err = d.Do(ctx, request)
					return h, err
				}
				return d.Reserve(ctx, request, time.Hour)
			}
			var mu sync.Mutex
			ids, fresh := map[string]int{}, 0
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					h, err := limiter.Reservation{}, errors.New("not yet")
					for err != nil {
						if iso == "" || iso == pgx.ReadCommitted && i%2 == 0 {
							h, err = admit(l)
						} else {
							err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: iso}, func(tx pgx.Tx) (err error) {
								if _, err = tx.Exec(ctx, "SELECT 1"); err == nil {
									h, err = admit(l.InTx(tx))
								}
								return err
							})
						}
						if err != nil && !errors.Is(err, limiter.ErrRetryTx) && pgState(err) != "40001" {
							t.Errorf("%s, %s: %v", bed.Variant(p), iso, err)
							return
						}
					}
					mu.Lock()
					defer mu.Unlock()
					ids[h.ID]++
					if !h.Result.Replayed {
						fresh++
					}
				})
			}
			wg.Wait()
			if len(ids) != 1 || fresh != 1 || !bed.Near(bed.Level(t, l, p, request.Key), 7) {
				t.Errorf("%s, %s: %v, %d of them fresh, level %v", bed.Variant(p), iso, ids, fresh, bed.Level(t, l, p, request.Key))
			}
		}
	}
}
