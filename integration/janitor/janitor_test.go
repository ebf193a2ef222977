package janitor

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
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/migrations"
)

// handClock is a clock that stands still until the test moves it.
type handClock struct{ us atomic.Int64 }

func newHandClock() *handClock {
	c := &handClock{}
	c.us.Store(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *handClock) now() time.Time           { return time.UnixMicro(c.us.Load()) }
func (c *handClock) add(d time.Duration)      { c.us.Add(d.Microseconds()) }
func (c *handClock) in(d time.Duration) int64 { return c.us.Load() + d.Microseconds() }

// sweep expects a sweep to succeed and to remove want rows of each table.
func sweep(t *testing.T, j *janitor.Janitor, want map[string]int64) {
	t.Helper()
	got, err := j.Sweep(t.Context())
	if err != nil || got.HeldElsewhere || !maps.Equal(got.ByTable, want) {
		t.Errorf("a sweep removed %v, held elsewhere %v, error %v; want %v", got.ByTable, got.HeldElsewhere, err, want)
	}
}

// start runs a janitor until stop is called or the test ends. stop returns when Run has
// returned.
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

// heard is an OnSweep whose sweeps the test reads one by one; the janitor waits for it
// until the test ends.
func heard(t *testing.T) (sweeps <-chan janitor.Removed, onSweep func(janitor.Removed)) {
	c := make(chan janitor.Removed)
	return c, func(r janitor.Removed) {
		select {
		case c <- r:
		case <-t.Context().Done():
		}
	}
}

// awaitRemoved reads sweeps until one has removed the number of rows.
func awaitRemoved(t *testing.T, sweeps <-chan janitor.Removed, rows int64) {
	t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; { // prevents a hang
		if testworld.Receive(t, sweeps, "a sweep").Total() == rows {
			return
		}
	}
	t.Fatalf("no sweep removed %d rows", rows)
}

// logged is a logger and what it has written.
func logged() (*slog.Logger, *testworld.Buffer) {
	text := new(testworld.Buffer)
	return slog.New(slog.NewTextHandler(text, nil)), text
}

// awaitLog waits until text was logged more than before times.
func awaitLog(t *testing.T, log *testworld.Buffer, text string, before int) {
	t.Helper()
	testworld.Eventually(t, "it logs "+text, func(context.Context) (bool, error) { return log.Count(text) > before, nil })
}

func count(t *testing.T, pool *pgxpool.Pool, table string) int {
	t.Helper()
	return testworld.Value[int](t, pool, `SELECT count(*) FROM `+table)
}

// take requests one token of a key whose tokens never come back.
func take(ctx context.Context, conn db.DBTX, policy, key string, now *int64) (db.TokenBucketTakeRow, error) {
	const hour = int64(time.Hour / time.Microsecond)
	return db.New().TokenBucketTake(ctx, conn, db.TokenBucketTakeParams{
		Policy: policy, Key: key, Cost: 1, Count: 1, Capacity: 1e9, Room: 1e9, Leak: 1e-300, LifetimeUs: hour, NowUs: now,
	})
}

func TestJanitorCountsWhatItRemoves(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		var swept []janitor.Removed
		clock := newHandClock()
		j := testworld.NewJanitor(t, over, &janitor.Config{
			Now: clock.now, BatchSize: 4,
			OnSweep: func(r janitor.Removed) { swept = append(swept, r) },
		})
		want, total := map[string]int64{}, int64(0)
		for i, table := range testworld.LimitTables(t, pool) {
			n := 3 * i // none, less than a batch, whole batches, and more
			testworld.InsertRows(t, pool, table, "gone", n, clock.in(-inFlight-time.Second))
			testworld.InsertRows(t, pool, table, "lives", 2, clock.in(time.Second))
			if n > 0 {
				want[table] = int64(n)
			}
			total += int64(n)
		}
		sweep(t, j, want)
		for _, table := range testworld.LimitTables(t, pool) {
			if n := count(t, pool, table); n != 2 {
				t.Errorf("%s has %d rows left, want the 2 that live", table, n)
			}
		}
		testworld.InsertRows(t, pool, "pglimit_token_bucket", "gone too", 1, clock.in(-inFlight-time.Second))
		sweep(t, j, map[string]int64{"pglimit_token_bucket": 1})
		sweep(t, j, nil)

		want["pglimit_token_bucket"]++
		all := j.Removed()
		if !maps.Equal(all.ByTable, want) || all.Total() != total+1 || all.HeldElsewhere {
			t.Errorf("in all, removed %+v, want %v", all, want)
		}
		all.ByTable["pglimit_token_bucket"] = 99
		if j.Removed().ByTable["pglimit_token_bucket"] == 99 {
			t.Error("Removed gave the janitor's own map away")
		}
		if len(swept) != 3 || swept[0].Total() != total || swept[1].Total() != 1 || swept[2].Total() != 0 {
			t.Errorf("OnSweep heard of %+v", swept)
		}
	})
}

func TestJanitorTakesTheClockItIsGiven(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		clock := newHandClock()
		byHand := testworld.NewJanitor(t, over, &janitor.Config{Now: clock.now})
		testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 3, clock.in(time.Hour)) // 1, 2 and 3 microseconds later than that
		clock.add(time.Hour + inFlight)
		sweep(t, byHand, nil)
		clock.add(2 * time.Microsecond) // a row is deleted at its exact microsecond
		sweep(t, byHand, map[string]int64{"pglimit_token_bucket": 2})

		// Without a clock it is the database's, whatever this machine's is.
		byDatabase := testworld.NewJanitor(t, over, nil)
		now := testworld.Value[int64](t, pool, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint`)
		testworld.InsertRows(t, pool, "pglimit_fixed_window", "past", 1, now-inFlight.Microseconds()-1)
		testworld.InsertRows(t, pool, "pglimit_fixed_window", "in an hour", 1, now+time.Hour.Microseconds())
		sweep(t, byDatabase, map[string]int64{"pglimit_token_bucket": 1, "pglimit_fixed_window": 1})
	})
}

// TestJanitorOutlivesTheDatabase: Run survives a connection that breaks in the middle of a
// sweep, and a database that refuses connections.
func TestJanitorOutlivesTheDatabase(t *testing.T) {
	testworld.OverEach(t, outlives)
}

func outlives(t *testing.T, connect func(string) any) {
	address := testworld.NewDatabase(t)
	watch := testworld.Connect(t, address)
	name := watch.Config().ConnConfig.Database
	outside := testworld.Connect(t, testworld.Server().URL())
	clock := newHandClock()
	gate := newGate(t, watch, "pglimit_token_bucket")
	testworld.InsertRows(t, watch, "pglimit_token_bucket", "p", 1, 0)

	swept, onSweep := heard(t)
	const failed = "the janitor's sweep failed"
	logger, log := logged()
	start(t, testworld.NewJanitor(t, connect(testworld.WithQuery(t, address, "application_name", "janitor").String()), &janitor.Config{
		Interval: time.Millisecond, Now: clock.now, Logger: logger,
		OnSweep: onSweep,
	}))
	testworld.AwaitBlocked(t, watch)
	testworld.Exec(t, outside, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'janitor'`, name)
	if r := testworld.Receive(t, swept, "the sweep whose connection broke"); r.Total() != 0 {
		t.Errorf("the sweep whose connection broke removed %v", r.ByTable)
	}
	awaitLog(t, log, failed, 0)
	gate.open(t)
	awaitRemoved(t, swept, 1)

	watch.Close()
	testworld.Exec(t, outside, fmt.Sprintf(`ALTER DATABASE "%s" ALLOW_CONNECTIONS false`, name))
	testworld.Exec(t, outside, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, name)
	before := log.Count(failed)
	for range 3 { // at least two of these sweeps began after that
		testworld.Receive(t, swept, "a sweep of a closed database")
	}
	awaitLog(t, log, failed, before)
	testworld.Exec(t, outside, fmt.Sprintf(`ALTER DATABASE "%s" ALLOW_CONNECTIONS true`, name))
	testworld.InsertRows(t, testworld.Connect(t, address), "pglimit_token_bucket", "p", 1, 0)
	awaitRemoved(t, swept, 1)
}

// TestJanitorSweepsWhileDecisionsContinue: none of the decisions on keys whose rows are spread
// among many expired ones is forgotten.
func TestJanitorSweepsWhileDecisionsContinue(t *testing.T) {
	t.Parallel()
	const live, workers = 2000, 2
	gone := testworld.Size(int64(40_000), 1_000_000)
	const table = "pglimit_token_bucket"
	pool := testworld.Connect(t, testworld.NewDatabase(t), func(c *pgxpool.Config) { c.MaxConns = workers + 2 })
	testworld.InsertRows(t, pool, table, "gone", int(gone), 0)
	testworld.InsertRows(t, pool, table, "live", live, 0)
	testworld.Exec(t, pool, `UPDATE `+table+` SET expires_at_us = expires_at_us * $1 WHERE policy = 'live'`, gone/live)
	var decisions atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil {
				// Not ctx: a cancelled statement may have been done.
				row, err := take(t.Context(), pool, "live", fmt.Sprint("k", 1+rand.IntN(live)), nil)
				if err != nil || row.Granted != 1 {
					t.Errorf("a decision while the janitor sweeps: %+v, %v", row, err)
					return
				}
				decisions.Add(1)
			}
		})
	}
	removed, err := testworld.NewJanitor(t, pool, nil).Sweep(t.Context())
	stop()
	all.Wait()
	if n := removed.Total(); err != nil || n < gone || n > gone+live {
		t.Errorf("removed %d rows of %d, %v", n, gone, err)
	}
	counted := testworld.Value[int64](t, pool, `SELECT coalesce(sum(level), 0)::bigint FROM `+table)
	if left := testworld.Value[int](t, pool, `SELECT count(*) FROM `+table+` WHERE level = 0`); counted != decisions.Load() || counted == 0 || left > 0 {
		t.Errorf("of %d decisions %d are counted, and %d empty rows are left", decisions.Load(), counted, left)
	}
}

func TestJanitorBeforeMigrations(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t))
	_, err := testworld.NewJanitor(t, pool, nil).Sweep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "run `pglimit migrate up`") || !strings.HasPrefix(err.Error(), "pglimit: ") {
		t.Errorf("a sweep without tables: %v", err)
	}
	// Run waits for the tables.
	swept, onSweep := heard(t)
	logger, log := logged()
	start(t, testworld.NewJanitor(t, pool, &janitor.Config{
		Interval: time.Millisecond, Logger: logger,
		OnSweep: onSweep,
	}))
	testworld.Receive(t, swept, "the first sweep")
	awaitLog(t, log, "run `pglimit migrate up`", 0)
	must.Succeed(t, migrations.Up(t.Context(), pool))
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 5, 0)
	awaitRemoved(t, swept, 5)
}
