package reserve

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestReserveExpiredComeBackToAllowAll: expired reservations come back before AllowAll
// denies, and a block that it started for lack of their units is lifted.
func TestReserveExpiredComeBackToAllowAll(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l, other, at := bed.SettableOn(t, pool)
	for _, p := range bed.Holdable() {
		p.BlockFor = time.Minute
		p.Period = 1000 * time.Hour
		q := p
		q.Name += "-q"
		at(0)
		for _, key := range []string{"a", "b"} {
			bed.Reserve(t, l, p.Request(key, 8), time.Second)
			bed.Reserve(t, l, q.Request(key, 8), time.Second)
		}
		at(time.Second)
		for key, request := range map[string]func(...limiter.Request) (limiter.Results, error){
			"a": func(requests ...limiter.Request) (limiter.Results, error) { return other.AllowAll(ctx, requests...) },
			"b": func(requests ...limiter.Request) (limiter.Results, error) {
				return bed.InTxOf(t, pool, other, func(tx *limiter.Tx) (limiter.Results, error) { return tx.AllowAll(ctx, requests...) })
			},
		} {
			all, err := request(p.Request(key, 5), q.Request(key, 5))
			if err != nil || !all.Allowed || !bed.Near(bed.Level(t, l, p, key), 5) || !bed.Near(bed.Level(t, l, q, key), 5) {
				t.Errorf("%s, key %s: %+v, %v", bed.Variant(p), key, all, err)
			}
		}
	}
	request := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}.Request("k", 1)
	request.IdempotencyKey = "1"
	if _, err := l.AllowAll(ctx, request); !errors.Is(err, limiter.ErrUnsupported) {
		t.Errorf("with an idempotency key: %v", err)
	}
}
