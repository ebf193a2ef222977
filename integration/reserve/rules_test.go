package reserve

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveDurability: a Reserve commits as its policy says. Settle and Cancel commit
// durably, whatever the policy and the session. What has expired comes back without a wait
// for the disk.
func TestReserveDurability(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	log := testworld.NewCommitLog(t)
	for _, d := range testworld.Durabilities {
		l := testworld.NewLimiter(t, testworld.Connect(t, log.URL, testworld.Setting("synchronous_commit", "off")), nil)
		for _, p := range testworld.Holdable() {
			p.Name, p.Durability, p.Period = fmt.Sprintf("%s-%d", p.Name, d), d, 1000*time.Hour
			testworld.Must(t)(l.Settle(ctx, testworld.Reserve(t, l, p.Request("settle", 5), time.Hour).ID, 3))
			must.Succeed(t, l.Cancel(ctx, testworld.Reserve(t, l, p.Request("cancel", 5), time.Hour).ID))
			got := testworld.Value[string](t, log.Pool, `SELECT string_agg(DISTINCT s, ', ' ORDER BY s) FROM
				(SELECT key || ' ' || string_agg(setting, ' ' ORDER BY xid) AS s FROM committed WHERE policy = $1 GROUP BY key) AS c`, p.Name)
			first := testworld.CommittedWith("off", d)
			if want := fmt.Sprintf("cancel %s on, settle %s on", first, first); got != want {
				t.Errorf("%s: committed %q, want %q", p.Name, got, want)
			}
		}
	}
	at := time.Now()
	now := func() time.Time { return at }
	l := testworld.NewLimiter(t, log.Pool, &limiter.Config{Now: now})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour}
	testworld.Reserve(t, l, p.Request("denied", 10), time.Second)
	testworld.Reserve(t, l, p.Request("swept", 10), time.Second)
	at = at.Add(time.Second)
	testworld.Must(t)(l.Allow(ctx, p, "denied"))
	must.OK(testworld.NewJanitor(t, log.Pool, &janitor.Config{Now: now}).Sweep(ctx))(t)
	for key, want := range map[string]string{"denied": "on on off on", "swept": "on off"} {
		if got := testworld.Value[string](t, log.Pool, `SELECT string_agg(setting, ' ' ORDER BY xid) FROM committed WHERE policy = 'p' AND key = $1`, key); got != want {
			t.Errorf("%s: committed %q, want %q", key, got, want)
		}
	}
}

// TestReserveKeepsKeysSecret: with a KeySecret neither the key nor the idempotency key is
// stored or in the ID. Another process with the secret finds the same reservation, and one
// with another secret finds nothing.
func TestReserveKeepsKeysSecret(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	config := &limiter.Config{KeySecret: []byte("a secret for the keys")}
	l, other := testworld.NewLimiter(t, pool, config), testworld.NewLimiter(t, pool, config)
	stranger := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: []byte("another secret for them")})
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		request := p.Request("alice@example.com", 6)
		request.IdempotencyKey = "order of alice"
		h := testworld.Reserve(t, l, request, time.Hour)
		if again := testworld.Reserve(t, other, request, time.Hour); again.ID != h.ID || !again.Result.Replayed {
			t.Errorf("%s: %+v", testworld.Variant(p), again)
		}
		stored := testworld.Value[string](t, pool, "SELECT string_agg(h::text, ' ') FROM pglimit_reservation AS h WHERE policy = $1", p.Name) +
			testworld.Value[string](t, pool, "SELECT string_agg(r::text, ' ') FROM "+testworld.TableOf(p.Algorithm)+" AS r WHERE policy = $1", p.Name)
		inID, err := base64.RawURLEncoding.DecodeString(h.ID[strings.LastIndex(h.ID, ":")+1:])
		if err != nil || strings.Contains(stored+string(inID), "alice") || !strings.Contains(stored, string(inID)) {
			t.Errorf("%s: %s, ID %s, %v", testworld.Variant(p), stored, h.ID, err)
		}
		if level := testworld.Level(t, stranger, p, "alice@example.com"); level != 0 {
			t.Errorf("%s: with another secret the level is %v", testworld.Variant(p), level)
		}
		if _, err := other.Settle(ctx, h.ID, 7); err != nil || !testworld.Near(testworld.Level(t, l, p, "alice@example.com"), 7) {
			t.Errorf("%s: %v", testworld.Variant(p), err)
		}
	}
}

// TestReserveFreeingWaitsForNobody: a caller that is about to end a reservation may be
// waiting for the row that the Reset has locked.
func TestReserveFreeingWaitsForNobody(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := testworld.NewDatabase(t)
	pool := testworld.Connect(t, url)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: 1000 * time.Hour}
	testworld.Reserve(t, l, p.Request("k", 5), time.Hour)
	settling := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(settling.Exec(ctx, "SELECT FROM pglimit_reservation FOR UPDATE"))(t)
	err := db.New().ReservationsFree(ctx, testworld.Connect(t, url, testworld.Setting("statement_timeout", "10s")), db.ReservationsFreeParams{Policy: "p", Key: "k", Algorithm: "token_bucket"})
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
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	testworld.Must(t)(l.AllowN(ctx, p, "full", 10))
	tx := testworld.Begin(t, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must.OK(tx.Exec(ctx, "SELECT 1"))(t)
	h := testworld.Reserve(t, testworld.NewLimiter(t, pool, nil), p.Request("k", 10), time.Second)
	testworld.Eventually(t, "the hold has expired", func(ctx context.Context) (bool, error) {
		return testworld.Value[bool](t, pool, "SELECT clock_timestamp() > $1", h.ExpiresAt), nil
	})
	if r := testworld.Must(t)(l.InTx(tx).Allow(ctx, p, "full")); r.Allowed {
		t.Fatalf("%+v", r)
	}
	if r := testworld.Must(t)(l.Allow(ctx, p, "k")); !r.Allowed {
		t.Errorf("%+v", r)
	}
}

// TestIdempotencyKeyCountsOnce: concurrent callers with one key count once, alone and in
// transactions of every isolation, which run again as documented. Reserve returns the same
// reservation to all of them.
func TestIdempotencyKeyCountsOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.Connections(16))
	l := testworld.NewLimiter(t, pool, nil)
	for _, iso := range []pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, p := range testworld.Variants(100, 1000*time.Hour) {
			request := p.Request("k"+string(iso), 7)
			request.IdempotencyKey = "order 1"
			admit := func(d verbs.Limiter) (h limiter.Reservation, err error) {
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
							t.Errorf("%s, %s: %v", testworld.Variant(p), iso, err)
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
			if len(ids) != 1 || fresh != 1 || !testworld.Near(testworld.Level(t, l, p, request.Key), 7) {
				t.Errorf("%s, %s: %v, %d of them fresh, level %v", testworld.Variant(p), iso, ids, fresh, testworld.Level(t, l, p, request.Key))
			}
		}
	}
}
