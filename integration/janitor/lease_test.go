package janitor

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/janitor"
)

const lease = 10 * time.Minute

// heldElsewhere expects a sweep to find the lease taken.
func heldElsewhere(t *testing.T, j *janitor.Janitor) {
	t.Helper()
	r, err := j.Sweep(t.Context())
	if err != nil || !r.HeldElsewhere || r.Total() != 0 {
		t.Errorf("a sweep while another leads: %+v, %v", r, err)
	}
}

// newLeader runs a janitor that sweeps once and then keeps the lease.
func newLeader(t *testing.T, over any, clock *handClock) (stop func()) {
	t.Helper()
	swept := make(chan janitor.Removed, 1)
	stop = start(t, testworld.NewJanitor(t, over, &janitor.Config{
		Interval: 24 * time.Hour, Lease: lease, Now: clock.now,
		OnSweep: func(r janitor.Removed) { swept <- r },
	}))
	if r := testworld.Receive(t, swept, "the leader's sweep"); r.HeldElsewhere {
		t.Fatal("the first janitor did not get the lease")
	}
	return stop
}

// TestJanitorLeases: a row that has ended, or that ends later than the longest lease, belongs
// to no janitor and does not stop sweeps.
func TestJanitorLeases(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		for ends, held := range map[string]bool{"-1": false, "71 * 3600": true, "73 * 3600": false, "9e12": false} { // seconds from now
			testworld.Exec(t, pool, `INSERT INTO pglimit_lease (name, holder, expires_at_us) VALUES ('janitor', 'x', ((date_part('epoch', clock_timestamp()) + `+ends+`) * 1e6)::bigint)`)
			if s := readState(t, over); (s.Holder == "x") != held || s.LeaseEndsAt.IsZero() == held {
				t.Errorf("a lease that ends in %s s: %+v", ends, s)
			}
			if r, err := testworld.NewJanitor(t, over, nil).Sweep(t.Context()); err != nil || r.HeldElsewhere != held {
				t.Errorf("a sweep beside a lease that ends in %s s: %+v, %v", ends, r, err)
			}
			testworld.Exec(t, pool, `DELETE FROM pglimit_lease`)
		}
	})
}

func TestJanitorAloneSweepsUntilItsLeaseRunsOut(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		clock := newHandClock()
		stop := newLeader(t, over, clock)
		testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 1, 0)
		second := testworld.NewJanitor(t, over, &janitor.Config{Lease: lease, Now: clock.now})
		clock.add(lease - time.Microsecond)
		heldElsewhere(t, second)
		clock.add(time.Microsecond)
		stopSecond := newLeader(t, over, clock) // a third one
		heldElsewhere(t, second)
		stop() // gives up nothing: the third has the lease by now
		heldElsewhere(t, second)
		stopSecond()
		sweep(t, second, nil) // the third removed the row
		if n := count(t, pool, "pglimit_token_bucket"); n != 0 {
			t.Errorf("%d expired rows are left", n)
		}
	})
}

// steps is a clock that is read before every statement of a sweep, and calls a function
// then.
type steps struct {
	*handClock
	at func()
}

func (s *steps) now() time.Time {
	s.at()
	return s.handClock.now()
}

func TestJanitorRenewsItsLease(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		const table, rows = "pglimit_sliding_window_log", 10
		testworld.InsertRows(t, pool, table, "p", rows, 0)
		clock := &steps{handClock: newHandClock()}
		other := testworld.NewJanitor(t, over, &janitor.Config{Lease: lease, Now: clock.handClock.now})
		left := rows
		clock.at = func() {
			// Each batch of one row takes half a lease: without renewal the lease would be
			// free after two of them.
			if n := count(t, pool, table); n < left {
				left = n
				clock.add(lease / 2)
				heldElsewhere(t, other)
			}
		}
		j := testworld.NewJanitor(t, over, &janitor.Config{BatchSize: 1, Lease: lease, Now: clock.now})
		sweep(t, j, map[string]int64{table: rows})
		if left != 0 {
			t.Errorf("the clock was last read when %d rows were left: this test tested too little", left)
		}
	})
}

func TestJanitorStopsWhenItLosesItsLease(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		const table = "pglimit_leaky_bucket"
		clock := &steps{handClock: newHandClock()}
		testworld.InsertRows(t, pool, table, "p", 10, 0)
		testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 10, 0)
		clock.at = func() {
			if count(t, pool, table) == 7 {
				clock.add(lease) // this one was away for longer than its lease
				_, err := db.New().LeaseTake(t.Context(), pool, db.LeaseTakeParams{
					Name: "janitor", Holder: "another", TtlUs: lease.Microseconds(), LongestUs: lease.Microseconds(), NowUs: new(clock.us.Load()),
				})
				if err != nil {
					t.Error(err)
				}
			}
		}
		logger, log := logged()
		j := testworld.NewJanitor(t, over, &janitor.Config{BatchSize: 1, Lease: lease, Now: clock.now, Logger: logger})
		r, err := j.Sweep(t.Context())
		if err != nil || !r.HeldElsewhere || r.Total() != 3 {
			t.Errorf("a sweep that lost its lease: %+v, %v; want 3 rows removed", r, err)
		}
		if log.Count("lost its lease") != 1 {
			t.Errorf("logged %s", log)
		}
		if holder := testworld.Value[string](t, pool, `SELECT holder FROM pglimit_lease`); holder != "another" {
			t.Errorf("the lease is %s's", holder)
		}
		if a, b := count(t, pool, table), count(t, pool, "pglimit_token_bucket"); a != 7 || b != 10 {
			t.Errorf("left are %d and %d rows, want 7 and 10", a, b)
		}
	})
}

// TestJanitorSweepWhileRunning: a manual Sweep shares Run's lease and leaves it in place.
func TestJanitorSweepWhileRunning(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		clock := newHandClock()
		swept := make(chan janitor.Removed, 2)
		j := testworld.NewJanitor(t, over, &janitor.Config{
			Interval: 24 * time.Hour, Lease: lease, Now: clock.now,
			OnSweep: func(r janitor.Removed) { swept <- r },
		})
		stop := start(t, j)
		testworld.Receive(t, swept, "the first sweep")
		testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 1, 0)
		sweep(t, j, map[string]int64{"pglimit_token_bucket": 1})
		heldElsewhere(t, testworld.NewJanitor(t, over, &janitor.Config{Lease: lease, Now: clock.now}))
		if err := j.Run(context.Background()); err == nil {
			t.Error("Run ran twice at once")
		}
		stop()
		if n := count(t, pool, "pglimit_lease"); n != 0 {
			t.Errorf("after Run there are %d leases", n)
		}
		stop = start(t, j) // and it may run again
		for range 2 {      // the manual sweep, and one more
			testworld.Receive(t, swept, "a sweep")
		}
		stop()
	})
}

// TestJanitorOfAClosedPool: Run ends without a warning if its pool was closed before, and
// its lease ends by itself. If the program waits for Run, the lease is free at once.
func TestJanitorOfAClosedPool(t *testing.T) {
	for name, waits := range map[string]bool{"the pool is closed first": false, "Run ends first": true} {
		t.Run(name, func(t *testing.T) {
			testworld.OverPools(t, func(t *testing.T, watch *pgxpool.Pool, over any) {
				clock := newHandClock()
				logger, log := logged()
				swept := make(chan janitor.Removed, 1)
				stop := start(t, testworld.NewJanitor(t, over, &janitor.Config{
					Interval: 24 * time.Hour, Lease: lease, Now: clock.now,
					Logger:  logger,
					OnSweep: func(r janitor.Removed) { swept <- r },
				}))
				if r := testworld.Receive(t, swept, "the sweep"); r.HeldElsewhere {
					t.Fatal("it did not get the lease")
				}
				if waits {
					stop() // waits
				}
				if own, ok := over.(*sql.DB); ok {
					_ = own.Close()
				} else {
					over.(*pgxpool.Pool).Close()
				}
				stop()
				testworld.InsertRows(t, watch, "pglimit_token_bucket", "p", 1, 0)
				other := testworld.NewJanitor(t, watch, &janitor.Config{Lease: lease, Now: clock.now})
				if !waits {
					heldElsewhere(t, other)
					clock.add(lease)
				}
				sweep(t, other, map[string]int64{"pglimit_token_bucket": 1})
				if text := log.String(); text != "" {
					t.Errorf("logged %s", text)
				}
			})
		})
	}
}
