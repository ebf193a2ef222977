package share

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestFloorsOfManyCallers: of callers of one key at once, half with a floor of three quarters, those
// without get all that is left and the others never more than a quarter, whichever way they ask.
func TestFloorsOfManyCallers(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	drivers := testworld.Drivers(t, pool.Config().ConnString())
	for driver, open := range drivers {
		l := open(&limiter.Config{DisableTimeout: true})
		ways := map[string]func(limiter.Request) (bool, error){
			"Do": func(in limiter.Request) (bool, error) {
				r, err := l.Do(t.Context(), in)
				return r.Allowed, err
			},
			"AllowAll": func(in limiter.Request) (bool, error) {
				all, err := l.AllowAll(t.Context(), in, in.Policy.Request(in.Key+" other", 1e-3))
				return all.Allowed, err
			},
			"InTx": func(in limiter.Request) (allowed bool, err error) {
				tx, err := pool.Begin(t.Context())
				if err != nil {
					return false, err
				}
				defer func() { _ = tx.Rollback(t.Context()) }()
				r, err := testworld.NewLimiter(t, pool, nil).InTx(tx).Do(t.Context(), in)
				if err != nil {
					return false, err
				}
				return r.Allowed, tx.Commit(t.Context())
			},
		}
		for way, ask := range ways {
			if way == "InTx" && driver != "pgx" {
				continue
			}
			t.Run(driver+" "+way, func(t *testing.T) {
				t.Parallel()
				for i, p := range search.Variants(40, time.Hour) {
					p.Name = fmt.Sprintf("%s-%d", map[string]string{"Do": "do", "AllowAll": "all", "InTx": "tx"}[way], i)
					p.BlockFor = 0
					key := driver + search.Name(p)
					var above, below atomic.Int64
					var wg sync.WaitGroup
					for n := range 60 {
						wg.Go(func() {
							in := limiter.Request{Policy: p, Key: key, Cost: 1}
							count := &below
							if n%2 == 0 {
								in.Floor, count = 0.75, &above
							}
							switch allowed, err := ask(in); {
							case err != nil:
								t.Error(err)
							case allowed:
								count.Add(1)
							}
						})
					}
					wg.Wait()
					for range 20 { // what is left
						allowed, err := ask(p.Request(key, 1))
						if err != nil {
							t.Error(err)
						}
						if allowed {
							below.Add(1)
						}
					}
					if above.Load() > 10 || above.Load()+below.Load() != 40 {
						t.Errorf("%s: %d with a floor of 30 passed, %d without", search.Name(p), above.Load(), below.Load())
					}
				}
			})
		}
	}
}

// TestRememberedFloors: a remembered denial answers requests with at least its floor, with their
// own RetryAfter. It does not deny a lower floor.
func TestRememberedFloors(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	l := testworld.NewLimiter(t, testworld.NewPool(t), &limiter.Config{DenyCacheTTL: time.Hour, Now: func() time.Time { return now }})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 10 * time.Second, BlockFor: 0}
	ask := func(floor, cost float64, want limiter.Source, after time.Duration) {
		t.Helper()
		r, err := l.Do(t.Context(), limiter.Request{Policy: p, Key: "k", Cost: cost, Floor: floor})
		if err != nil || r.Source != want || r.Allowed != (after == 0) || r.RetryAfter != after {
			t.Errorf("floor %v: %+v, %v", floor, r, err)
		}
	}
	ask(0, 8, limiter.SourceDatabase, 0)
	ask(0.2, 1, limiter.SourceDatabase, time.Second)
	ask(0.2, 1, limiter.SourceCache, time.Second)
	ask(0.3, 1, limiter.SourceCache, 2*time.Second)
	ask(0.2, 2, limiter.SourceCache, 2*time.Second)
	ask(0.9, 2, limiter.SourceCache, limiter.Never)
	ask(0.1, 1, limiter.SourceDatabase, 0)
	ask(0, 1, limiter.SourceDatabase, 0)
	ask(0, 1, limiter.SourceDatabase, time.Second)
	ask(0.2, 1, limiter.SourceCache, 3*time.Second)
}

// TestFloorOfAFreshRow: the number that a fresh row keeps of a floor lifts no block of an operator,
// and leaves a window its end.
func TestFloorOfAFreshRow(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	for i, p := range search.Variants(40, time.Hour) {
		if p.Algorithm == limiter.LeakyBucketQueue {
			continue
		}
		p.Name = fmt.Sprint("p", i)
		var first limiter.Result
		var wg sync.WaitGroup
		for n := range 8 { // keys of one statement, most likely
			wg.Go(func() {
				r := testworld.Must(t)(l.Do(t.Context(), limiter.Request{Policy: p, Key: fmt.Sprint("k", n), Cost: 1, Floor: 0.5}))
				if n == 7 {
					first = r
				}
			})
		}
		wg.Wait()
		must.Succeed(t, l.Block(t.Context(), p, "k7", time.Hour))
		testworld.Must(t)(l.Undo(t.Context(), p, "k7", first))
		if r := testworld.Must(t)(l.Check(t.Context(), p, "k7", 1)); r.Allowed || r.Reason != limiter.ReasonBlocked {
			t.Errorf("%s: Undo lifted an operator's block: %+v", search.Name(p), r)
		}
	}
}

// TestFloorsOfManyWindows: in a statement for several keys a request with a floor begins its window
// as one without does, at the time of the row if its own clock is behind that.
func TestFloorsOfManyWindows(t *testing.T) {
	t.Parallel()
	clock := new(conformance.Clock)
	c := newCallers(t, testworld.NewDatabase(t), limiter.Config{Now: clock.Now})
	for name, aligned := range map[string]bool{"from the first request": false, "on the clock": true} {
		p := limiter.Policy{Name: fmt.Sprint("p-", aligned), Algorithm: limiter.FixedWindow, Limit: 4, Period: time.Minute, Aligned: aligned}
		floors := map[string]float64{"first": 0, "a": 0, "b": 0.5, "c": 0.25}
		var asks []ask
		for _, key := range []string{"first", "a", "b", "c"} {
			clock.Set(0)
			testworld.Must(t)(c.AllowN(t.Context(), p, key, 4))
			clock.Set(70_000_000)
			testworld.Must(t)(c.Refund(t.Context(), p, key, 1)) // after the window
			asks = append(asks, func() (limiter.Result, error) {
				return c.Do(t.Context(), limiter.Request{Policy: p, Key: key, Cost: 2, Floor: floors[key]})
			})
		}
		clock.Set(65_000_000)
		want := 65 * time.Second // the row's 70 and a period
		if aligned {
			want = 55 * time.Second
		}
		for i, got := range c.behind(asks...) {
			if got.Err != nil || !got.Result.Allowed || got.Result.ResetAfter != want {
				t.Errorf("%s: request %d: %+v, %v; want a window of %v", name, i, got.Result, got.Err, want)
			}
		}
		c.expectSizes(t, 1, 1) // the first, and the others together
	}
}

// TestFloorOfAFreshKey: of requests with a floor that begin a key in one row of a statement, no
// more pass than the floor leaves room for.
func TestFloorOfAFreshKey(t *testing.T) {
	t.Parallel()
	c := newCallers(t, testworld.NewDatabase(t), limiter.Config{Now: new(conformance.Clock).Now})
	for i, p := range search.Variants(8, time.Hour) {
		p.Name, p.BlockFor = fmt.Sprint("p", i), 0
		var asks []ask
		for n := range 9 { // the first makes the others wait
			key := "fresh"
			if n == 0 {
				key = "first"
			}
			asks = append(asks, func() (limiter.Result, error) {
				return c.Do(t.Context(), limiter.Request{Policy: p, Key: key, Cost: 1, Floor: 0.5})
			})
		}
		passed := 0
		for _, got := range c.behind(asks...) {
			if got.Err != nil {
				t.Error(got.Err)
			} else if got.Result.Allowed {
				passed++
			}
		}
		if passed != 5 {
			t.Errorf("%s: %d passed, want the first and 4 of the others", search.Name(p), passed)
		}
	}
}

// TestFloorOfADeniedLog: RetryAfter of a request that shares a statement leaves its floor free,
// of a key that the statement began and of one that was blocked at the same moment.
func TestFloorOfADeniedLog(t *testing.T) {
	t.Parallel()
	clock := new(conformance.Clock)
	c := newCallers(t, testworld.NewDatabase(t), limiter.Config{Now: clock.Now, DisableDenyCache: true})
	p := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 4, Period: time.Hour, BlockFor: time.Second}
	testworld.Must(t)(c.AllowN(t.Context(), p, "blocked", 1))
	clock.Set((10 * time.Minute).Microseconds())
	testworld.Must(t)(c.AllowN(t.Context(), p, "blocked", 3))
	testworld.Must(t)(c.AllowN(t.Context(), p, "blocked", 1)) // begins the block
	first := p
	asks := []ask{func() (limiter.Result, error) { return c.Allow(t.Context(), first, "first") }}
	for _, key := range []string{"blocked", "fresh", "fresh", "fresh"} {
		if key == "fresh" {
			p.Name, p.BlockFor = "q", 0 // so that they are one row
		}
		p := p
		asks = append(asks, func() (limiter.Result, error) {
			return c.Do(t.Context(), limiter.Request{Policy: p, Key: key, Cost: 1, Floor: 0.5})
		})
	}
	all := c.behind(asks...)
	if r := all[1].Result; r.Reason != limiter.ReasonBlocked || r.RetryAfter != time.Hour {
		t.Errorf("blocked, with 1 unit of 10 minutes ago and 3 of now: %+v", r)
	}
	for i, got := range all[2:] {
		if got.Err != nil || got.Result.Allowed != (i < 2) || i == 2 && got.Result.RetryAfter != time.Hour {
			t.Errorf("request %d of the key that began: %+v, %v", i, got.Result, got.Err)
		}
	}
	c.expectSizes(t, 1, 1, 1) // the first, the others together, and the one that was denied again
}
