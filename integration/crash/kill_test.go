package crash

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

const (
	plenty   = 1e6 // a limit that the load does not reach
	loadKeys = 50  // of each policy
)

// place identifies a row by policy and key.
type place struct{ policy, key string }

// deed sends one request, the n-th of its caller, and returns where it counts.
type deed func(ctx context.Context, n int) (place, error)

// load is callers that run until the server is gone, and the answers that they got.
type load struct {
	least   int64         // this many answers, and
	lasts   time.Duration // this long since each caller's first answer, are enough
	enough  chan struct{}
	closing sync.Once
	killing atomic.Bool
	count   atomic.Int64
	mute    atomic.Int64 // callers without an answer so far
	first   atomic.Pointer[time.Time]
	callers sync.WaitGroup

	mu   sync.Mutex
	told map[place][]time.Time // of each unit
}

// caller runs its deeds in turns until one fails.
func (b *load) caller(t *testing.T, deeds ...deed) {
	b.mute.Add(1)
	b.callers.Go(func() {
		told := map[place][]time.Time{}
		for n := 0; ; n++ {
			at, err := deeds[n%len(deeds)](t.Context(), n)
			if err != nil {
				if !b.killing.Load() {
					t.Errorf("before the kill: %v", err)
					b.closing.Do(func() { close(b.enough) })
				}
				break
			}
			now := time.Now()
			told[at] = append(told[at], now)
			if n == 0 && b.mute.Add(-1) == 0 {
				b.first.Store(&now)
			}
			if first := b.first.Load(); b.count.Add(1) >= b.least && first != nil && now.Sub(*first) >= b.lasts {
				b.closing.Do(func() { close(b.enough) })
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for at, times := range told {
			b.told[at] = append(b.told[at], times...)
		}
	})
}

// each returns the units granted to callers, by key, and how many of them since a moment.
func (b *load) each(p limiter.Policy, since time.Time) (units, recent map[string]float64) {
	units, recent = map[string]float64{}, map[string]float64{}
	for at, times := range b.told {
		if at.policy != p.Name {
			continue
		}
		units[at.key] = float64(len(times))
		for _, when := range times {
			if !when.Before(since) {
				recent[at.key]++
			}
		}
	}
	return units, recent
}

// kept is what the database still records of a key.
type kept struct {
	level        float64
	blockedUntil int64
}

func keptBy(t *testing.T, pool *pgxpool.Pool, p limiter.Policy) map[string]kept {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT key, level, blocked_until_us FROM pglimit_fixed_window WHERE policy = $1`, p.Name)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]kept{}
	var key string
	var k kept
	if _, err := pgx.ForEachRow(rows, []any{&key, &k.level, &k.blockedUntil}, func() error { all[key] = k; return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func sum(units map[string]float64) (total float64) {
	for _, n := range units {
		total += n
	}
	return total
}

// crash is a separate server whose sessions commit without waiting for the disk by
// default.
type crash struct {
	own   *pglimittest.Server
	url   string
	bound time.Duration // what it may lose because of that
}

func newCrash(t *testing.T) *crash {
	t.Helper()
	own, err := pglimittest.StartOwn(t.Context(), log.Printf, pglimittest.Setting("synchronous_commit", "off"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	template, err := own.Template(t.Context(), "crash", migrations.Up)
	if err != nil {
		t.Fatal(err)
	}
	c := &crash{own: own, url: template.New(t)}
	pool := c.connect(t)
	if is := bed.Value[string](t, pool, "SHOW synchronous_commit"); is != "off" {
		t.Fatalf("synchronous_commit is %s: there is nothing to raise", is)
	}
	delay := bed.Value[int64](t, pool, `SELECT setting::bigint FROM pg_settings WHERE name = 'wal_writer_delay' AND unit = 'ms'`)
	c.bound = 3 * time.Duration(delay) * time.Millisecond
	return c
}

func (c *crash) connect(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return bed.Connect(t, c.url, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 16
		cfg.ConnConfig.DialFunc = bed.NewDialer(c.own.URL).Dial // a container's port changes
	})
}

// under puts the server under load, kills all its processes during it, and starts it
// again. It returns the callers' answers, and the moment from which answers may be lost if
// commits do not wait for the disk.
func (c *crash) under(t *testing.T, start func(*load, *limiter.Limiter)) (b *load, since time.Time) {
	t.Helper()
	b = &load{least: 2000, lasts: 3 * c.bound / 2, enough: make(chan struct{}), told: map[place][]time.Time{}}
	b.mute.Add(1) // until all callers are running
	start(b, bed.NewLimiter(t, c.connect(t), nil))
	if b.mute.Add(-1) == 0 {
		now := time.Now()
		b.first.Store(&now)
	}
	<-b.enough
	b.killing.Store(true)
	since = time.Now().Add(-c.bound)
	if err := c.own.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.callers.Wait()
	if err := c.own.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b, since
}

// budget is a policy whose name says which verbs are used under it.
func budget(name string, d limiter.Durability) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: limiter.FixedWindow, Limit: plenty, Period: 1000 * time.Hour, Durability: d}
}

// spends requests one unit after another.
func spends(l *limiter.Limiter, p limiter.Policy, caller int) deed {
	return func(ctx context.Context, n int) (place, error) {
		at := place{p.Name, fmt.Sprint((17*caller + n) % loadKeys)}
		r, err := l.Allow(ctx, p, at.key)
		if err == nil && !r.Allowed {
			err = fmt.Errorf("%v was denied: %+v", at, r)
		}
		return at, err
	}
}

// TestKillUnderLoad kills the server under Durable and Relaxed load.
//
// Durable loses nothing acknowledged, of any verb. Relaxed loses nothing older than its
// bound. What is granted before and after the crash together keeps to the limit. A server
// that has just written its WAL loses nothing whatever its settings, so one kill is not
// enough.
func TestKillUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	for round := range 3 {
		t.Run(fmt.Sprint(round), func(t *testing.T) { c.killUnderLoad(t, round) })
	}
}

func (c *crash) killUnderLoad(t *testing.T, round int) {
	policy := func(name string, d limiter.Durability) limiter.Policy { return budget(fmt.Sprint(name, round), d) }
	allowed, relaxed := policy("allowed", limiter.Durable), policy("relaxed", limiter.Relaxed)
	filled, refunded, denied := policy("filled", limiter.Durable), policy("refunded", limiter.Durable), policy("blocked", limiter.Durable)
	b, since := c.under(t, func(b *load, l *limiter.Limiter) {
		for key := range loadKeys {
			bed.Must(t)(l.Charge(t.Context(), refunded, fmt.Sprint(key), plenty))
		}
		for i := range 6 {
			b.caller(t, spends(l, allowed, i))
			b.caller(t, spends(l, relaxed, i))
		}
		for i := range 4 {
			key := func(n int) string { return fmt.Sprint((17*i + n) % loadKeys) }
			b.caller(t,
				func(ctx context.Context, n int) (place, error) {
					_, err := l.Charge(ctx, filled, key(n), 1)
					return place{filled.Name, key(n)}, err
				},
				func(ctx context.Context, n int) (place, error) {
					_, err := l.Refund(ctx, refunded, key(n), 1)
					return place{refunded.Name, key(n)}, err
				},
				func(ctx context.Context, n int) (place, error) {
					at := place{denied.Name, fmt.Sprint(i, "-", n)}
					return at, l.Block(ctx, denied, at.key, 1000*time.Hour)
				})
		}
	})

	pool := c.connect(t)
	for _, p := range []limiter.Policy{allowed, filled, refunded, denied} {
		units, _ := b.each(p, since)
		stored := keptBy(t, pool, p)
		for key, n := range units {
			got := stored[key]
			var lost bool
			switch p {
			case refunded:
				lost = got.level > plenty-n
			case denied:
				lost = got.blockedUntil <= 0
			default:
				lost = got.level < n
			}
			if lost {
				t.Errorf("%s: of key %s %v were acknowledged, and %+v is there", p.Name, key, n, got)
			}
		}
		t.Logf("%s: %v acknowledged on %d keys", p.Name, sum(units), len(units))
	}
	c.boundHolds(t, pool, b, relaxed, since)

	l := bed.NewLimiter(t, pool, nil)
	for _, p := range []limiter.Policy{allowed, relaxed} {
		units, recent := b.each(p, since)
		if p == allowed {
			clear(recent)
		}
		for key, n := range units {
			rest := bed.Must(t)(l.AllowUpTo(t.Context(), p, key, plenty))
			if r := bed.Must(t)(l.Allow(t.Context(), p, key)); r.Allowed {
				t.Errorf("%s: key %s goes on after %v more units", p.Name, key, rest.Granted)
			}
			if total := n + rest.Granted; total > plenty+recent[key] {
				t.Errorf("%s: key %s was granted %v before and %v after, %v of them recent: the limit is %v", p.Name, key, n, rest.Granted, recent[key], plenty)
			}
		}
	}
}

// TestKillUnderRelaxedLoad has no other commits that would write Relaxed ones to disk.
func TestKillUnderRelaxedLoad(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	relaxed := budget("relaxed", limiter.Relaxed)
	b, since := c.under(t, func(b *load, l *limiter.Limiter) {
		for i := range 16 {
			b.caller(t, spends(l, relaxed, i))
		}
	})
	c.boundHolds(t, c.connect(t), b, relaxed, since)
}

// boundHolds: of each key no more is lost than was acknowledged since.
func (c *crash) boundHolds(t *testing.T, pool *pgxpool.Pool, b *load, p limiter.Policy, since time.Time) {
	t.Helper()
	units, recent := b.each(p, since)
	stored := keptBy(t, pool, p)
	var lost float64
	for key, n := range units {
		missing := max(0, n-stored[key].level)
		lost += missing
		if missing > recent[key] {
			t.Errorf("%s: key %s lost %v, and only %v were acknowledged in the last %v", p.Name, key, missing, recent[key], c.bound)
		}
	}
	t.Logf("%s: %v acknowledged on %d keys, %v of them in the last %v; %v lost", p.Name, sum(units), len(units), sum(recent), c.bound, lost)
	if sum(recent) == sum(units) {
		t.Errorf("%s: all was acknowledged in the last %v: this says nothing", p.Name, c.bound)
	}
}
