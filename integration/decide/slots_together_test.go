package decide

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// together makes calls of a Limiter while another transaction has the key's row, so that they share
// statements once it ends.
func together(t *testing.T, pool *pgxpool.Pool, l *limiter.Limiter, calls ...func()) {
	t.Helper()
	tx := must.OK(pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }() // a test that fails ends
	must.OK(tx.Exec(t.Context(), `SELECT FROM pglimit_slot FOR UPDATE`))(t)
	var all sync.WaitGroup
	var done atomic.Int64
	for _, call := range calls {
		all.Go(func() { defer done.Add(1); call() })
	}
	for l.Waiting()+int(done.Load()) < len(calls) { // one of a slot that has ended may be answered at once
		time.Sleep(time.Millisecond)
	}
	must.Succeed(t, tx.Rollback(t.Context()))
	all.Wait()
}

// TestSlotsTogether: concurrent Acquires of a key share statements, and so do Releases. Each caller
// gets the answer of its own request: its fence, the level then, or that its slot is not held.
func TestSlotsTogether(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.NewDatabase(t))
	var shared atomic.Int64
	l := testworld.NewLimiter(t, pool, &limiter.Config{Timeout: time.Minute, Observe: func(_ context.Context, o limiter.Observation) {
		shared.Store(max(shared.Load(), int64(o.Rows)))
	}})
	p := limiter.Policy{Name: "together", Algorithm: limiter.Concurrency, Limit: 10, Period: time.Hour}
	ended := must.OK(l.DoAcquire(t.Context(), p.Request("k", 1), time.Second))(t)
	other := must.OK(l.DoAcquire(t.Context(), p.Request("k", 1), 2*time.Hour))(t) // its end is after theirs

	for _, cost := range []float64{1, 3} {
		slots := make([]limiter.Slot, 14)
		var calls []func()
		for i := range slots {
			calls = append(calls, func() { slots[i] = must.OK(l.DoAcquire(t.Context(), p.Request("k", cost), 0))(t) })
		}
		for cost == 1 && must.OK(l.Usage(t.Context(), p, "k"))(t).Reservations > 1 { // until the first has ended
			time.Sleep(10 * time.Millisecond)
		}
		together(t, pool, l, calls...)
		slices.SortFunc(slots, func(a, b limiter.Slot) int { return int(a.Fence - b.Fence) })
		fits := int(9 / cost)
		denied, held := slots[:14-fits], slots[14-fits:]
		for _, s := range denied {
			if r := s.Result; r.Allowed || s.ID != "" || s.Fence != 0 || r.Level != 1+float64(fits)*cost || r.RetryAfter < 59*time.Minute || r.RetryAfter > time.Hour {
				t.Errorf("cost %v: denied with %+v", cost, s)
			}
		}
		fence := other.Fence
		for i, s := range held {
			if r := s.Result; !r.Allowed || r.Level != 1+float64(i+1)*cost || s.Fence <= fence || r.RetryAfter != 0 {
				t.Errorf("cost %v: slot %d is %+v after fence %d", cost, i, s, fence)
			}
			fence = s.Fence
		}
		if u := must.OK(l.Usage(t.Context(), p, "k"))(t); u.Spent != 1+float64(fits)*cost || u.Reservations != 1+fits {
			t.Errorf("cost %v: %+v", cost, u)
		}

		// Releases: of all but one, of one twice, and of one that has ended.
		ids := []string{held[0].ID, held[0].ID}
		for _, s := range held[1 : fits-1] {
			ids = append(ids, s.ID)
		}
		ids = slices.Insert(ids, (len(ids)+1)/2, ended.ID) // not among those that are sent alone first
		errs := make([]error, len(ids))
		calls = nil
		for i, id := range ids {
			calls = append(calls, func() { errs[i] = l.Release(t.Context(), id) })
		}
		together(t, pool, l, calls...)
		for i, err := range errs {
			want := ids[i] == ended.ID || i < 2 && errs[1-i] == nil
			if errors.Is(err, limiter.ErrNoSlot) != want || err != nil && !want {
				t.Errorf("cost %v: release %d: %v; %v", cost, i, err, errs[:2])
			}
		}
		if u := must.OK(l.Usage(t.Context(), p, "k"))(t); u.Spent != 1+cost || u.Reservations != 2 {
			t.Errorf("cost %v: after the releases: %+v", cost, u)
		}
		must.Succeed(t, l.Release(t.Context(), held[fits-1].ID))
	}
	must.Succeed(t, l.Release(t.Context(), other.ID))
	if shared.Load() < 3 {
		t.Errorf("at most %d requests shared a statement", shared.Load())
	}
}
