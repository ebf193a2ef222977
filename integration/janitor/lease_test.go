package janitor

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/bed"
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
func newLeader(t *testing.T, pool *pgxpool.Pool, clock *handClock) (stop func()) {
	t.Helper()
	swept := make(chan janitor.Removed, 1)
	stop = start(t, bed.NewJanitor(t, pool, &janitor.Config{
		Interval: 24 * time.Hour, Lease: lease, Now: clock.now,
		OnSweep: func(r janitor.Removed) { swept <- r },
	}))
	if r := bed.Receive(t, swept, "the leader's sweep"); r.HeldElsewhere {
		t.Fatal("the first janitor did not get the lease")
	}
	return stop
}

func TestJanitorAloneSweepsUntilItsLeaseRunsOut(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	clock := newHandClock()
	stop := newLeader(t, pool, clock)
	bed.InsertRows(t, pool, "pglimit_gcra", "p", 1, 0)
	second := bed.NewJanitor(t, pool, &janitor.Config{Lease: lease, Now: clock.now})
	clock.add(lease - time.Microsecond)
	heldElsewhere(t, second)
	clock.add(time.Microsecond)
	stopSecond := newLeader(t, pool, clock) // a third one
	heldElsewhere(t, second)
	stop() // gives up nothing: the third has the lease by now
	heldElsewhere(t, second)
	stopSecond()
	sweep(t, second, nil) // the third removed the row
	if n := count(t, pool, "pglimit_gcra"); n != 0 {
		t.Errorf("%d expired rows are left", n)
	}
}

// TestJanitorTakesALeaseThatNoJanitorCanHave: a row that ends later than the longest lease
// belongs to no janitor and does not stop sweeps.
func TestJanitorTakesALeaseThatNoJanitorCanHave(t *testing.T) {
	t.Parallel()
	const longest = 72 * time.Hour // of Config.Lease
	for name, c := range map[string]struct {
		ends func(*handClock) int64
		held bool
	}{
		"the longest":    {func(c *handClock) int64 { return c.in(longest) }, true},
		"longer":         {func(c *handClock) int64 { return c.in(longest + time.Microsecond) }, false},
		"the year 9999":  {func(*handClock) int64 { return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).UnixMicro() }, false},
		"the last value": {func(*handClock) int64 { return math.MaxInt64 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := bed.NewPool(t)
			clock := newHandClock()
			bed.InsertRows(t, pool, "pglimit_gcra", "p", 1, 0)
			bed.Exec(t, pool, `INSERT INTO pglimit_lease (name, holder, expires_at_us) VALUES ('janitor', 'another', $1)`, c.ends(clock))
			j := bed.NewJanitor(t, pool, &janitor.Config{Lease: lease, Now: clock.now})
			if c.held {
				heldElsewhere(t, j)
				return
			}
			sweep(t, j, map[string]int64{"pglimit_gcra": 1})
		})
	}
}

// TestJanitorTakesOver: when the leader ends, another running janitor takes over.
func TestJanitorTakesOver(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	clock := newHandClock()
	stop := newLeader(t, pool, clock)
	bed.InsertRows(t, pool, "pglimit_gcra", "p", 1, 0)
	swept, onSweep := heard(t)
	start(t, bed.NewJanitor(t, pool, &janitor.Config{
		Interval: time.Millisecond, Lease: lease, Now: clock.now, OnSweep: onSweep,
	}))
	for range 3 {
		if r := bed.Receive(t, swept, "a sweep while another leads"); !r.HeldElsewhere || r.Total() != 0 {
			t.Errorf("a sweep while another leads: %+v", r)
		}
	}
	stop()
	awaitRemoved(t, swept, 1)
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
	t.Parallel()
	pool := bed.NewPool(t)
	const table, rows = "pglimit_sliding_window_log", 10
	bed.InsertRows(t, pool, table, "p", rows, 0)
	clock := &steps{handClock: newHandClock()}
	other := bed.NewJanitor(t, pool, &janitor.Config{Lease: lease, Now: clock.handClock.now})
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
	j := bed.NewJanitor(t, pool, &janitor.Config{BatchSize: 1, Lease: lease, Now: clock.now})
	sweep(t, j, map[string]int64{table: rows})
	if left != 0 {
		t.Errorf("the clock was last read when %d rows were left: this test tested too little", left)
	}
}

func TestJanitorStopsWhenItLosesItsLease(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	const table = "pglimit_leaky_bucket"
	clock := &steps{handClock: newHandClock()}
	bed.InsertRows(t, pool, table, "p", 10, 0)
	bed.InsertRows(t, pool, "pglimit_gcra", "p", 10, 0)
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
	lost := newLogWatch("lost its lease")
	j := bed.NewJanitor(t, pool, &janitor.Config{BatchSize: 1, Lease: lease, Now: clock.now, Logger: slog.New(lost)})
	r, err := j.Sweep(t.Context())
	if err != nil || !r.HeldElsewhere || r.Total() != 3 {
		t.Errorf("a sweep that lost its lease: %+v, %v; want 3 rows removed", r, err)
	}
	select {
	case <-lost.seen:
	default:
		t.Error("the log does not tell")
	}
	if holder := bed.Value[string](t, pool, `SELECT holder FROM pglimit_lease`); holder != "another" {
		t.Errorf("the lease is %s's", holder)
	}
	if a, b := count(t, pool, table), count(t, pool, "pglimit_gcra"); a != 7 || b != 10 {
		t.Errorf("left are %d and %d rows, want 7 and 10", a, b)
	}
}

// TestJanitorSweepWhileRunning: a manual Sweep shares Run's lease and leaves it in place.
func TestJanitorSweepWhileRunning(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	clock := newHandClock()
	swept := make(chan janitor.Removed, 2)
	j := bed.NewJanitor(t, pool, &janitor.Config{
		Interval: 24 * time.Hour, Lease: lease, Now: clock.now,
		OnSweep: func(r janitor.Removed) { swept <- r },
	})
	stop := start(t, j)
	bed.Receive(t, swept, "the first sweep")
	bed.InsertRows(t, pool, "pglimit_gcra", "p", 1, 0)
	sweep(t, j, map[string]int64{"pglimit_gcra": 1})
	heldElsewhere(t, bed.NewJanitor(t, pool, &janitor.Config{Lease: lease, Now: clock.now}))
	if err := j.Run(context.Background()); err == nil {
		t.Error("Run ran twice at once")
	}
	stop()
	if n := count(t, pool, "pglimit_lease"); n != 0 {
		t.Errorf("after Run there are %d leases", n)
	}
	stop = start(t, j) // and it may run again
	for range 2 {      // the manual sweep, and one more
		bed.Receive(t, swept, "a sweep")
	}
	stop()
}
