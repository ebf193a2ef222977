package calendar

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestCalendarOfSpendsIsTheDatabases: AllowAll, reservations and idempotency keys are also
// counted in the period of the database's clock.
func TestCalendarOfSpendsIsTheDatabases(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, ahead := range []time.Duration{-400 * 24 * time.Hour, -3 * time.Hour, 0, 50 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			address, _ := otherClock(t, fmt.Sprintf("real + interval '%d s'", int(ahead.Seconds())))
			pool := bed.Connect(t, address)
			plain := limiter.Policy{Name: "plain", Algorithm: limiter.GCRA, Limit: 1000, Period: time.Hour}
			all := func(r limiter.Results, err error) (limiter.Result, error) {
				if err != nil {
					return limiter.Result{}, err
				}
				return r.PerRequest[1], nil
			}
			held := func(h limiter.Reservation, err error) (limiter.Result, error) { return h.Result, err }
			once := func(request limiter.Request) limiter.Request { request.IdempotencyKey = "1"; return request }
			ways := map[string]func(*limiter.Limiter, limiter.Request) (limiter.Result, error){
				"AllowAll": func(l *limiter.Limiter, request limiter.Request) (limiter.Result, error) {
					return all(l.AllowAll(ctx, plain.Request("k", 1), request))
				},
				"AllowAll in a transaction": func(l *limiter.Limiter, request limiter.Request) (limiter.Result, error) {
					return all(bed.InTxOf(t, pool, l, func(tx *limiter.Tx) (limiter.Results, error) { return tx.AllowAll(ctx, plain.Request("k", 1), request) }))
				},
				"Reserve": func(l *limiter.Limiter, request limiter.Request) (limiter.Result, error) {
					return held(l.Reserve(ctx, request, time.Hour))
				},
				"Reserve in a transaction": func(l *limiter.Limiter, request limiter.Request) (limiter.Result, error) {
					return held(bed.InTxOf(t, pool, l, func(tx *limiter.Tx) (limiter.Reservation, error) { return tx.Reserve(ctx, request, time.Hour) }))
				},
				"once": func(l *limiter.Limiter, request limiter.Request) (limiter.Result, error) {
					return l.Do(ctx, once(request))
				},
				"once in a transaction": func(l *limiter.Limiter, request limiter.Request) (limiter.Result, error) {
					return bed.InTxOf(t, pool, l, func(tx *limiter.Tx) (limiter.Result, error) { return tx.Do(ctx, once(request)) })
				},
			}
			for way, request := range ways {
				for _, calendar := range limiter.Calendars() {
					p := limiter.Policy{Name: string(calendar), Algorithm: limiter.FixedWindow, Limit: 10, Calendar: calendar, TimeZone: "America/Havana"}
					l := bed.NewLimiter(t, pool, nil)
					offTheHour(t, ahead)
					r, err := request(l, p.Request(way, 1))
					if err != nil || !r.Allowed || !bed.Near(bed.Level(t, l, p, way), 1) {
						t.Fatalf("%s, %s: %+v, %v", way, calendar, r, err)
					}
					byTheDatabase(t, ahead, p, r)
				}
			}
		})
	}
}
