package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// overDoors runs a test with a gate of each driver to one database. name is the
// driver's.
func overDoors(t *testing.T, address string, f func(t *testing.T, name string, open func(limiter.Config) *testworld.Gate)) {
	for _, name := range append([]string{"pgxpool"}, testworld.SQLDrivers...) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, name, func(config limiter.Config) *testworld.Gate {
				if name == "pgxpool" {
					return testworld.NewGate(t, address, config)
				}
				return testworld.NewSQLGate(t, name, address, config)
			})
		})
	}
}

// TestBatchDecidesAsMemory sends random requests, equal and unequal, for a few keys under a
// few plans while a statement is in flight. Each gets the answer that memory gives, one
// after the other.
func TestBatchDecidesAsMemory(t *testing.T) {
	t.Parallel()
	overDoors(t, testworld.NewDatabase(t), func(t *testing.T, _ string, open func(limiter.Config) *testworld.Gate) {
		testworld.SearchBatches(t, search.Draw{}, 6, func(_ *testing.T, config limiter.Config) *testworld.Gate { return open(config) })
	})
}

// TestBatchWithABadRequest: a key that the database cannot store fails alone, in the statement
// or transaction that it shares with others.
func TestBatchWithABadRequest(t *testing.T) {
	t.Parallel()
	overDoors(t, testworld.Latin1(t), func(t *testing.T, name string, open func(limiter.Config) *testworld.Gate) {
		g, bucket := open(limiter.Config{}), bucket
		bucket.Name = name
		keys := []string{"first", "a", "not in Latin-1: 猫", "z", "a"}
		for verb, ask := range map[string]func(context.Context, limiter.Policy, string, float64) (limiter.Result, error){"AllowN": g.AllowN, "Charge": g.Charge} {
			g.Shut()
			var answers []<-chan testworld.Answer
			for _, key := range keys {
				answers = append(answers, g.Send(func() (limiter.Result, error) { return ask(t.Context(), bucket, key, 1) }))
			}
			g.Reopen()
			for i, a := range answers {
				got := <-a
				if bad := i == 2; bad != errors.Is(got.Err, limiter.ErrInvalid) || !bad && got.Err != nil {
					t.Errorf("%s of %q: %+v, %v", verb, keys[i], got.Result, got.Err)
				}
			}
		}
		expectLevels(t, g.Limiter, bucket, map[string]float64{"first": 2, "a": 4, "z": 2})
	})
}

// TestCloseDrains closes with requests in flight and in the queue, and one that waits for a
// locked row.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	c := newHeld(t)
	tx := c.hold(t, bucket, "held")
	held := c.wait(t.Context(), t, bucket.Request("held", 1))
	c.Shut()
	var answers []<-chan testworld.Answer
	for i := range 5 {
		answers = append(answers, c.Queue(t.Context(), bucket.Request(fmt.Sprint(i), 1)))
	}
	var ended atomic.Bool
	closed := make(chan bool, 1)
	go func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		closed <- ended.Load()
	}()
	testworld.Eventually(t, "the limiter is closed", func(context.Context) (bool, error) {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Allow(gone, bucket, "late")
		return errors.Is(err, limiter.ErrClosed), nil
	})
	c.Reopen()
	for _, a := range answers {
		testworld.ResultOf(t, "a request that was queued", a)
	}
	ended.Store(true)
	testworld.Commit(t, tx)
	testworld.ResultOf(t, "the key that was held", held)
	if !<-closed {
		t.Error("Close returned while a caller waited for a locked row")
	}
}

// awkward are keys that a careless encoding of arrays would misread.
var awkward = []string{
	`NULL`, `null`, `"`, `""`, `'`, `''`, `\`, `\\`, `\"`, `{`, `}`, `{}`, `{a,b}`, `a,b`, ` `, ` a `, `$1`, "a\nb", "\t", "\x01",
	`"a","b"`, `\x41`, `E'\''`, `--`, `é`, `漢字`, "e\u0301", "👩‍💻", `%s`, `;`, strings.Repeat(`"\`, 512),
}

// TestBatchOfAwkwardKeys sends them in one statement and finds each unchanged.
func TestBatchOfAwkwardKeys(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	overDoors(t, address, func(t *testing.T, name string, open func(limiter.Config) *testworld.Gate) {
		g := open(limiter.Config{})
		for _, p := range testworld.Variants(10, 1000*time.Hour) {
			p.Name += name
			g.Shut()
			answers := []<-chan testworld.Answer{g.Queue(t.Context(), p.Request("first", 1))}
			for _, key := range awkward {
				answers = append(answers, g.Queue(t.Context(), p.Request(key, 1)), g.Queue(t.Context(), p.Request(key, 1)))
			}
			g.Reopen()
			for i, a := range answers {
				if r := testworld.ResultOf(t, fmt.Sprint("request ", i), a); !r.Allowed || !testworld.Near(r.Level, float64(1+max(0, i-1)%2)) {
					t.Errorf("%s: request %d: %+v", testworld.Variant(p), i, r)
				}
			}
			if testworld.Citus() {
				continue // there a shard's only key shares no statement
			}
			// granted is of both requests at once: it was a batch.
			rows := must.OK(pool.Query(t.Context(), "SELECT key FROM "+testworld.TableOf(p.Algorithm)+" WHERE policy = $1 AND key <> 'first' AND granted = 2", p.Name))(t)
			found, err := pgx.CollectRows(rows, pgx.RowTo[string])
			want := slices.Clone(awkward)
			slices.Sort(want)
			slices.Sort(found)
			if err != nil || !slices.Equal(found, want) {
				t.Errorf("%s: found %q, %v\nwant %q", testworld.Variant(p), found, err, want)
			}
		}
	})
}

// TestBatchOfExactCosts: a cost is stored to the last bit, sent alone or in an array.
func TestBatchOfExactCosts(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	overDoors(t, address, func(t *testing.T, name string, open func(limiter.Config) *testworld.Gate) {
		g := open(limiter.Config{})
		costs := []float64{1e-9, 0.1, 0.1 + 0.2, 1.0 / 3, 1 << 53, 1<<53 - 1, 1e15 + 1, 12345678.9}
		for _, together := range []bool{true, false} {
			if together {
				g.Shut()
			}
			var answers []<-chan testworld.Answer
			for i, cost := range costs {
				p := limiter.Policy{Name: "small", Algorithm: limiter.FixedWindow, Limit: 1, Period: 1000 * time.Hour}
				if cost > 1 {
					p.Name, p.Limit = "large", 1<<53
				}
				request := p.Request(fmt.Sprint(name, i, together), cost)
				if together {
					answers = append(answers, g.Queue(t.Context(), request))
				} else {
					testworld.Must(t)(g.Do(t.Context(), request))
				}
			}
			if together {
				g.Reopen()
			}
			for _, a := range answers {
				testworld.ResultOf(t, "a request", a)
			}
			for i, cost := range costs {
				if got := testworld.Value[float64](t, pool, "SELECT cost FROM pglimit_fixed_window WHERE key = $1", fmt.Sprint(name, i, together)); got != cost {
					t.Errorf("%v is stored as %v", cost, got)
				}
			}
		}
	})
}
