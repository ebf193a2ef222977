package decide

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// slots is the base of histories of slots.
var slots = limiter.Policy{Name: "slots", Algorithm: limiter.Concurrency, Limit: 2, Period: 10 * time.Second}

// TestSlotsAsMemory: over each driver, and in the caller's transaction and its savepoints, slots
// are taken, renewed and released as by a limiter in memory, to the microsecond and with the same
// fences, with clocks that are set back and a janitor that sweeps.
func TestSlotsAsMemory(t *testing.T) {
	t.Parallel()
	searchAsMemory(t, search.Draw{Equal: true, Retries: true, Operations: search.Slots}, slots)
}

// searchAsMemory compares the drivers and their transactions with memory.
func searchAsMemory(t *testing.T, d search.Draw, base limiter.Policy) {
	t.Helper()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	var dbs []*sql.DB
	for _, driver := range testworld.SQLDrivers {
		dbs = append(dbs, testworld.ConnectSQL(t, driver, address))
	}
	testworld.Search(t, d, 100, func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := testworld.NewSubject(t)
			s.Apply = nil
			s.Sweep = func() error {
				now := s.Clock.Now
				sweeper := must.OK(janitor.New(pool, &janitor.Config{Now: now}))(t)
				_, err := sweeper.Sweep(t.Context())
				return err
			}
			s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config)), pool.Begin
			for _, db := range dbs {
				s.Ways = append(s.Ways, search.By(testworld.NewSQL(t, db, config))...)
			}
			return s
		}
	}, base)
}

// TestSlotsAtOnce: callers of all drivers who take, renew and release slots of several costs never
// hold more than the limit at once, by their own count and in each snapshot of the row. With a
// limit of one, each holder's fence is greater than that of the one before, also if the janitor
// has deleted the row in between.
func TestSlotsAtOnce(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	pool := testworld.Connect(t, url)
	var all []*limiter.Limiter
	for _, open := range testworld.Drivers(t, url) {
		all = append(all, open(nil), open(nil))
	}
	for _, limit := range []int64{1, 3} {
		p := limiter.Policy{Name: fmt.Sprint("at-once-", limit), Algorithm: limiter.Concurrency, Limit: float64(limit), Period: time.Hour}
		var units, fence, taken atomic.Int64
		var working sync.WaitGroup
		for i := range 16 {
			working.Go(func() {
				l, random := all[i%len(all)], rand.New(rand.NewPCG(uint64(i), 1))
				for range 40 {
					cost := 1 + random.Int64N(min(2, limit))
					slot, err := l.AcquireWait(t.Context(), p.Request("k", float64(cost)), 0)
					if err != nil || !slot.Result.Allowed {
						t.Errorf("got %+v, %v", slot, err)
						return
					}
					if n := units.Add(cost); n > limit {
						t.Errorf("%d units are held, more than %d", n, limit)
					}
					if before := fence.Swap(slot.Fence); limit == 1 && before >= slot.Fence {
						t.Errorf("fence %d after %d", slot.Fence, before)
					}
					if _, err := l.Renew(t.Context(), slot.ID, 2*time.Hour); err != nil {
						t.Error(err)
					}
					taken.Add(1)
					units.Add(-cost)
					if err := l.Release(t.Context(), slot.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { working.Wait(); close(done) }()
		for looking := true; looking; {
			select {
			case <-done:
				looking = false
			default:
			}
			if n := testworld.Value[int64](t, pool, `SELECT coalesce(max(u), 0) FROM (SELECT (SELECT sum(c) FROM unnest(t.costs) AS c)::bigint AS u FROM pglimit_slot AS t WHERE policy = $1) AS s`, p.Name); n > limit {
				t.Errorf("%d units are in the row, more than %d", n, limit)
			}
		}
		if u := must.OK(all[0].Usage(t.Context(), p, "k"))(t); taken.Load() != 640 || u.Reservations != 0 || u.Spent != 0 {
			t.Errorf("%d slots were taken, and are left: %+v", taken.Load(), u)
		}
		sweeper := must.OK(janitor.New(pool, &janitor.Config{Now: func() time.Time { return time.Now().Add(3 * time.Hour) }}))(t)
		must.OK(sweeper.Sweep(t.Context()))(t)
		if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_slot WHERE policy = $1`, p.Name); n != 0 {
			t.Error("the janitor left an empty row")
		}
		if slot := must.OK(all[0].Acquire(t.Context(), p, "k"))(t); slot.Fence <= fence.Load() {
			t.Errorf("fence %d after the row was deleted, %d before", slot.Fence, fence.Load())
		}
	}
}

// TestSlotEndsAtItsEnd: a slot is held until the microsecond before its end, and at its end another
// can have it; it is not renewed then, although nobody has taken it, and its holder cannot release
// the next one's.
func TestSlotEndsAtItsEnd(t *testing.T) {
	t.Parallel()
	var now atomic.Int64
	l := testworld.NewLimiter(t, testworld.Connect(t, testworld.NewDatabase(t)), &limiter.Config{Now: func() time.Time { return time.UnixMicro(now.Load()) }})
	start, ctx, p := int64(1e15), t.Context(), slots
	p.Limit = 1
	now.Store(start)
	first := must.OK(l.DoAcquire(ctx, p.Request("k", 1), 5*time.Second))(t)
	now.Store(start + 5e6 - 1)
	if s := must.OK(l.Acquire(ctx, p, "k"))(t); s.Result.Allowed || s.Result.RetryAfter != time.Microsecond {
		t.Errorf("before the end: %+v", s)
	}
	now.Store(start + 5e6)
	if _, err := l.Renew(ctx, first.ID, 0); !errors.Is(err, limiter.ErrNoSlot) {
		t.Errorf("renewed at its end: %v", err)
	}
	if err := l.Release(ctx, first.ID); !errors.Is(err, limiter.ErrNoSlot) {
		t.Errorf("released at its end: %v", err)
	}
	second := must.OK(l.Acquire(ctx, p, "k"))(t)
	if !second.Result.Allowed || second.Fence <= first.Fence {
		t.Errorf("at the end: %+v", second)
	}
	if err := l.Release(ctx, first.ID); !errors.Is(err, limiter.ErrNoSlot) {
		t.Errorf("released another's: %v", err)
	}
	must.Succeed(t, l.Release(ctx, second.ID))
	for range 20 { // answers, and no failures of the database
		if err := l.Release(ctx, second.ID); !errors.Is(err, limiter.ErrNoSlot) {
			t.Errorf("released again: %v", err)
		}
	}
	must.OK(l.Acquire(ctx, p, "k"))(t)
}

// TestSlotOfAKilledProcess: two jobs hold the two slots and renew them, and a third waits. Once the
// process of a job is killed, the third gets its turn when the slot ends, and not before: its fence
// is at least the time at which it got it. The other job goes on.
func TestSlotOfAKilledProcess(t *testing.T) {
	const holder = "PGLIMIT_TEST_HOLDER"
	p := limiter.Policy{Name: "killed", Algorithm: limiter.Concurrency, Limit: 2, Period: 2 * time.Second}
	if address := os.Getenv(holder); address != "" { // this is the process of a job
		l := testworld.NewLimiter(t, testworld.Connect(t, address), nil)
		t.Log(l.DoWith(t.Context(), p, "k", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
		return
	}
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	var jobs []*exec.Cmd
	for range 2 {
		job := exec.Command(os.Args[0], "-test.run=^TestSlotOfAKilledProcess$")
		job.Env = append(os.Environ(), holder+"="+address)
		must.Succeed(t, job.Start())
		t.Cleanup(func() { _ = job.Process.Kill(); _ = job.Wait() })
		jobs = append(jobs, job)
	}
	l := testworld.NewLimiter(t, pool, nil)
	for held, renewed := int64(0), map[int64]bool{}; held < 2 || len(renewed) < 8; { // both have renewed for longer than a slot lasts
		held = testworld.Value[int64](t, pool, `SELECT coalesce(max(held), 0) FROM pglimit_slot`)
		if held == 2 {
			renewed[testworld.Value[int64](t, pool, `SELECT ends[2] FROM pglimit_slot`)] = true
		}
	}
	if s := must.OK(l.Acquire(t.Context(), p, "k"))(t); s.Result.Allowed {
		t.Fatalf("a third job holds a slot: %+v", s)
	}
	must.Succeed(t, jobs[0].Process.Kill())
	_ = jobs[0].Wait()                                                          // the signal is its error
	ends := testworld.Value[int64](t, pool, `SELECT ends[1] FROM pglimit_slot`) // or later, if it is the other's
	third := must.OK(l.AcquireWait(t.Context(), p.Request("k", 1), time.Hour))(t)
	u := must.OK(l.Usage(t.Context(), p, "k"))(t)
	if !third.Result.Allowed || third.Fence < ends || u.Reservations != 2 || u.Spent != 2 {
		t.Errorf("got %+v; held: %+v", third, u)
	}
}
