package marks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// hourly has a mark at half of its limit.
var hourly = limiter.Policy{Name: "hourly", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour, Marks: "50%"}

// reach lets n keys reach their mark.
func reach(t *testing.T, l *limiter.Limiter, n int) {
	t.Helper()
	for i := range n {
		testworld.Must(t)(l.AllowN(t.Context(), hourly, fmt.Sprint("k", i), 5))
	}
}

// TestEventsOfTwoProcesses: two processes deliver at the same time, and each event comes once.
func TestEventsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	reach(t, testworld.NewLimiter(t, pool, nil), 40)
	one := must.OK(policies.Open(t.Context(), testworld.Connect(t, address), nil))(t)
	two := must.OK(policies.OpenSQL(t.Context(), testworld.ConnectSQL(t, "pgx", address), nil))(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	count := map[string]int{}
	var first, running sync.WaitGroup
	first.Add(2)
	for _, p := range []*policies.Policies{one, two} {
		begun := sync.OnceFunc(func() { // neither ends a delivery before both have looked
			first.Done()
			first.Wait()
		})
		running.Go(func() {
			must.Succeed(t, p.Events(ctx, func(_ context.Context, e policies.Event) error {
				begun()
				mu.Lock()
				defer mu.Unlock()
				if count[e.Key]++; e.Mark != 0.5 || e.Level != 5 || e.Limit != 10 || e.Attempt != 1 || e.WindowEndsAt.Before(e.At) {
					t.Errorf("the event is %+v", e)
				}
				return nil
			}))
		})
	}
	testworld.Eventually(t, "all events are delivered", func(ctx context.Context) (delivered bool, err error) {
		err = pool.QueryRow(ctx, `SELECT count(*) = 40 FROM pglimit_event WHERE delivered_at_us > 0`).Scan(&delivered)
		return delivered, err
	})
	stop()
	running.Wait()
	for key, n := range count {
		if n != 1 {
			t.Errorf("%s was delivered %d times", key, n)
		}
	}
	if len(count) != 40 {
		t.Errorf("%d keys were delivered", len(count))
	}
	must.Succeed(t, errors.Join(one.Close(), two.Close()))
}

// TestEventsAgain: a delivery that fails is due again, at most MaxAttempts times, and one that
// succeeds is the last.
func TestEventsAgain(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	reach(t, testworld.NewLimiter(t, pool, nil), 1)
	live := must.OK(policies.Open(t.Context(), pool, &policies.Config{PollEvery: 10 * time.Millisecond, DisableListen: true}))(t)
	defer live.Close()
	deliver := func(times int, answer error) (ids []string) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		must.Succeed(t, live.Events(ctx, func(_ context.Context, e policies.Event) error {
			if ids = append(ids, e.ID); len(ids) == times {
				stop()
			}
			testworld.Exec(t, pool, `UPDATE pglimit_event SET due_at_us = 0`) // while it is under way
			return answer
		}))
		testworld.Exec(t, pool, `UPDATE pglimit_event SET due_at_us = 0`)
		return ids
	}
	var ids []string
	for range 3 {
		ids = append(ids, deliver(1, errors.New("the receiver is away"))...)
	}
	if ids = append(ids, deliver(1, nil)...); len(ids) != 4 || ids[0] != ids[3] || !strings.HasPrefix(ids[0], "evt_") {
		t.Errorf("the deliveries were %q", ids)
	}
	if got := testworld.Value[string](t, pool, `SELECT attempts::text || (delivered_at_us > 0)::text FROM pglimit_event`); got != "4true" {
		t.Errorf("attempts and delivery are %s", got)
	}
	testworld.Exec(t, pool, `UPDATE pglimit_event SET delivered_at_us = 0, attempts = $1 - 1`, policies.MaxAttempts)
	deliver(1, errors.New("the receiver is away"))
	reach(t, testworld.NewLimiter(t, pool, nil), 2) // the second key is new
	if ids := deliver(1, nil); len(ids) != 1 {
		t.Errorf("%q were delivered", ids)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_event WHERE delivered_at_us = 0 AND key = 'k0' AND attempts = 10`); n != 1 {
		t.Errorf("the event that was given up was delivered")
	}
}

// TestEventsWithoutDatabase: Events says that it has none, and refuses nil.
func TestEventsWithoutDatabase(t *testing.T) {
	t.Parallel()
	memory := must.OK(policies.New())(t)
	if err := memory.Events(t.Context(), func(context.Context, policies.Event) error { return nil }); !errors.Is(err, limiter.ErrUnsupported) {
		t.Error(err)
	}
	live := must.OK(policies.Open(t.Context(), testworld.NewPool(t), nil))(t)
	defer live.Close()
	if err := live.Events(t.Context(), nil); !errors.Is(err, limiter.ErrInvalid) {
		t.Error(err)
	}
}

// TestEventsAreForgotten: the janitor deletes events 30 days after their window, and no others.
func TestEventsAreForgotten(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	reach(t, testworld.NewLimiter(t, pool, nil), 3)
	testworld.Exec(t, pool, `UPDATE pglimit_event SET window_ends_at_us = window_ends_at_us - CASE key WHEN 'k0' THEN 31 ELSE 29 END * 86400000000 WHERE key <> 'k2'`)
	must.OK(testworld.NewJanitor(t, pool, &janitor.Config{}).Sweep(t.Context()))(t)
	if left := testworld.Value[string](t, pool, `SELECT string_agg(key, ' ' ORDER BY key) FROM pglimit_event`); left != "k1 k2" {
		t.Errorf("the events of %s are left", left)
	}
}
