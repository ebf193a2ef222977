package integration

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/migrations"
)

// handClock is a clock that stands still until it is moved.
type handClock struct{ us atomic.Int64 }

func newHandClock() *handClock {
	c := &handClock{}
	c.us.Store(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *handClock) now() time.Time           { return time.UnixMicro(c.us.Load()) }
func (c *handClock) add(d time.Duration)      { c.us.Add(d.Microseconds()) }
func (c *handClock) in(d time.Duration) int64 { return c.us.Load() + d.Microseconds() }

func newJanitor(t *testing.T, pool *pgxpool.Pool, cfg *janitor.Config) *janitor.Janitor {
	t.Helper()
	if cfg == nil {
		cfg = &janitor.Config{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	j, err := janitor.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// sweep has to succeed and to remove so many rows of each table.
func sweep(t *testing.T, j *janitor.Janitor, want map[string]int64) {
	t.Helper()
	got, err := j.Sweep(t.Context())
	if err != nil || got.HeldElsewhere || !maps.Equal(got.ByTable, want) {
		t.Errorf("a sweep removed %v, held elsewhere %v, error %v; want %v", got.ByTable, got.HeldElsewhere, err, want)
	}
}

// start runs a janitor until stop is called or the test ends. stop returns
// when Run has.
func start(t *testing.T, j *janitor.Janitor) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func count(t *testing.T, pool *pgxpool.Pool, table string) int {
	t.Helper()
	return one[int](t, pool, `SELECT count(*) FROM `+table)
}

// take decides one ask of one token on a key whose tokens never come back.
func take(ctx context.Context, conn db.DBTX, policy, key string, now *int64) (db.TokenBucketTakeRow, error) {
	const hour = int64(time.Hour / time.Microsecond)
	return db.New().TokenBucketTake(ctx, conn, db.TokenBucketTakeParams{
		Policy: policy, Key: key, Cost: 1, Count: 1, Capacity: 1e9, HoldUs: hour, LingerUs: hour, NowUs: now,
	})
}

func TestJanitorCountsWhatItRemoves(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	var swept []janitor.Removed
	clock := newHandClock()
	j := newJanitor(t, pool, &janitor.Config{
		Now: clock.now, BatchSize: 4,
		OnSweep: func(r janitor.Removed) { swept = append(swept, r) },
	})
	want, total := map[string]int64{}, int64(0)
	for i, table := range limitTables(t, pool) {
		n := 3 * i // none at all, less than a batch, whole batches, and more
		insertRows(t, pool, table, "gone", n, clock.in(-time.Second))
		insertRows(t, pool, table, "lives", 2, clock.in(time.Second))
		if n > 0 {
			want[table] = int64(n)
		}
		total += int64(n)
	}
	sweep(t, j, want)
	for _, table := range limitTables(t, pool) {
		if n := count(t, pool, table); n != 2 {
			t.Errorf("%s has %d rows left, want the 2 that live", table, n)
		}
	}
	insertRows(t, pool, "pglimit_gcra", "gone too", 1, clock.in(-time.Second))
	sweep(t, j, map[string]int64{"pglimit_gcra": 1})
	sweep(t, j, nil)

	want["pglimit_gcra"]++
	all := j.Removed()
	if !maps.Equal(all.ByTable, want) || all.Total() != total+1 || all.HeldElsewhere {
		t.Errorf("in all, removed %+v, want %v", all, want)
	}
	all.ByTable["pglimit_gcra"] = 99
	if j.Removed().ByTable["pglimit_gcra"] == 99 {
		t.Error("Removed gave the janitor's own map away")
	}
	if len(swept) != 3 || swept[0].Total() != total || swept[1].Total() != 1 || swept[2].Total() != 0 {
		t.Errorf("OnSweep heard of %+v", swept)
	}
}

func TestJanitorTakesTheClockItIsGiven(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	clock := newHandClock()
	byHand := newJanitor(t, pool, &janitor.Config{Now: clock.now})
	insertRows(t, pool, "pglimit_gcra", "p", 3, clock.in(time.Hour)) // 1, 2 and 3 microseconds later than that
	clock.add(time.Hour)
	sweep(t, byHand, nil)
	clock.add(2 * time.Microsecond) // a row goes at its very microsecond
	sweep(t, byHand, map[string]int64{"pglimit_gcra": 2})

	// Without one it is the database's, whatever this machine's is.
	byDatabase := newJanitor(t, pool, nil)
	now := one[int64](t, pool, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)
	insertRows(t, pool, "pglimit_fixed_window", "past", 1, now-1)
	insertRows(t, pool, "pglimit_fixed_window", "in an hour", 1, now+time.Hour.Microseconds())
	sweep(t, byDatabase, map[string]int64{"pglimit_gcra": 1, "pglimit_fixed_window": 1})
}

// TestJanitorSweepsAMillionRows: while decisions go on, on keys whose rows are
// among those that have expired, and none of them is forgotten.
func TestJanitorSweepsAMillionRows(t *testing.T) {
	t.Parallel()
	const gone, live, workers = 1_000_000, 64, 2
	const table = "pglimit_token_bucket"
	pool := connect(t, newDatabase(t), func(c *pgxpool.Config) { c.MaxConns = workers + 2 })
	insertRows(t, pool, table, "gone", gone, 0)
	insertRows(t, pool, table, "live", live, gone/2) // their turn comes half-way
	exec(t, pool, `ANALYZE `+table)

	j := newJanitor(t, pool, nil)
	var granted [live + 1]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				i := 1 + rand.IntN(live)
				// Not ctx: a statement that is cut off may have been done.
				row, err := take(t.Context(), pool, "live", fmt.Sprint("k", i), nil)
				if err != nil || row.Granted != 1 {
					t.Errorf("a decision while the janitor sweeps: %+v, %v", row, err)
					return
				}
				granted[i].Add(1)
			}
		})
	}
	began := time.Now()
	removed, err := j.Sweep(t.Context())
	took := time.Since(began)
	stop()
	all.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if n := removed.Total(); n < gone || n > gone+live {
		t.Errorf("removed %d rows, want %d and at most %d more", n, gone, live)
	}
	if n := one[int](t, pool, `SELECT count(*) FROM `+table+` WHERE policy = 'gone'`); n != 0 {
		t.Errorf("%d expired rows are left", n)
	}
	var decisions int64
	for i := 1; i <= live; i++ {
		n := granted[i].Load()
		decisions += n
		row, err := db.New().TokenBucketGet(t.Context(), pool, db.TokenBucketGetParams{Policy: "live", Key: fmt.Sprint("k", i)})
		if err != nil {
			t.Fatal(err)
		}
		if row.Level != float64(n) {
			t.Errorf("key %d: %d were granted, and its level is %v", i, n, row.Level)
		}
	}
	if decisions == 0 {
		t.Error("no decision was made meanwhile")
	}
	t.Logf("removed %d rows in %v, %.0f/s, beside %d decisions", removed.Total(), took.Round(time.Millisecond), float64(removed.Total())/took.Seconds(), decisions)
}

// TestJanitorOutlivesTheDatabase: neither a connection that breaks in the
// middle of a sweep nor a database that refuses connections ends Run.
func TestJanitorOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	watch := connect(t, address)
	name := watch.Config().ConnConfig.Database
	outside := connect(t, server.URL())
	clock := newHandClock()
	gate := newGate(t, watch, "pglimit_gcra")
	insertRows(t, watch, "pglimit_gcra", "p", 1, 0)

	swept := make(chan janitor.Removed)
	failed := newLogWatch("the janitor's sweep failed")
	start(t, newJanitor(t, connect(t, address, setting("application_name", "janitor")), &janitor.Config{
		Interval: time.Millisecond, Now: clock.now, Logger: slog.New(failed),
		OnSweep: func(r janitor.Removed) {
			select {
			case swept <- r:
			case <-t.Context().Done():
			}
		},
	}))
	gate.awaitSweep(t)
	exec(t, outside, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'janitor'`, name)
	if r := <-swept; r.Total() != 0 {
		t.Errorf("the sweep whose connection broke removed %v", r.ByTable)
	}
	<-failed.seen
	gate.open(t)
	for r := range swept {
		if r.Total() == 1 {
			break
		}
	}

	watch.Close()
	exec(t, outside, fmt.Sprintf(`ALTER DATABASE "%s" ALLOW_CONNECTIONS false`, name))
	exec(t, outside, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, name)
	failed.reset()
	for range 3 { // at least two of these sweeps began after that
		<-swept
	}
	<-failed.seen
	exec(t, outside, fmt.Sprintf(`ALTER DATABASE "%s" ALLOW_CONNECTIONS true`, name))
	insertRows(t, connect(t, address), "pglimit_gcra", "p", 1, 0)
	for r := range swept {
		if r.Total() == 1 {
			return
		}
	}
}

func TestJanitorBeforeMigrations(t *testing.T) {
	t.Parallel()
	pool := connect(t, emptyDatabase(t))
	_, err := newJanitor(t, pool, nil).Sweep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "run `pglimit migrate up`") || !strings.HasPrefix(err.Error(), "pglimit: ") {
		t.Errorf("a sweep without tables: %v", err)
	}
	// Run waits for the tables.
	swept := make(chan janitor.Removed)
	failed := newLogWatch("run `pglimit migrate up`")
	start(t, newJanitor(t, pool, &janitor.Config{
		Interval: time.Millisecond, Logger: slog.New(failed),
		OnSweep: func(r janitor.Removed) {
			select {
			case swept <- r:
			case <-t.Context().Done():
			}
		},
	}))
	<-swept
	<-failed.seen
	go func() { // the sweeps go on meanwhile
		if err := migrations.Up(t.Context(), pool); err != nil {
			t.Error(err)
		}
		insertRows(t, pool, "pglimit_gcra", "p", 5, 0)
	}()
	for r := range swept {
		if r.Total() == 5 {
			return
		}
	}
}

// TestJanitorLeavesNoTableOut: a table that cannot be swept does not keep the
// others from it.
func TestJanitorLeavesNoTableOut(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	tables := limitTables(t, pool)
	want := map[string]int64{}
	for _, table := range tables {
		insertRows(t, pool, table, "p", 2, 0)
		want[table] = 2
	}
	const broken = "pglimit_leaky_bucket"
	exec(t, pool, `ALTER TABLE `+broken+` RENAME TO away`)
	delete(want, broken)
	removed, err := newJanitor(t, pool, nil).Sweep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "sweep "+broken+":") {
		t.Errorf("the error does not name %s: %v", broken, err)
	}
	if !maps.Equal(removed.ByTable, want) {
		t.Errorf("removed %v, want %v", removed.ByTable, want)
	}
	if n := count(t, pool, "pglimit_lease"); n != 0 {
		t.Error("the lease was not given up after the error")
	}
}
