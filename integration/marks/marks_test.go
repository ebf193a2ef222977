package marks

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestMarksAreRecordedOnce: 64 callers use up a key over each driver. Each mark is recorded once,
// by the decision that has reached it.
func TestMarksAreRecordedOnce(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	for name, open := range testworld.Drivers(t, address) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(nil)
			for _, p := range marked(20) {
				key := name + testworld.Variant(p)
				together(64, func(int) {
					if _, err := l.Allow(t.Context(), p, key); err != nil {
						t.Errorf("%s: %v", testworld.Variant(p), err)
					}
				})
				expect(t, pool, p, key, most, all)
				first := testworld.Value[float64](t, pool, `SELECT level FROM pglimit_event WHERE policy = $1 AND key = $2 AND mark = 800000`, p.Name, key)
				if first < 15.99 || first >= 17 {
					t.Errorf("%s: the mark of 16 is recorded at a level of %v", testworld.Variant(p), first)
				}
			}
		})
	}
}

// TestMarksOfEachVerb: each verb that consumes records marks, and one that jumps over several
// records all of them.
func TestMarksOfEachVerb(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	ctx := t.Context()
	for name, open := range testworld.Drivers(t, address) {
		l := open(nil)
		verbs := map[string]func(p limiter.Policy, key string) error{
			"charge":   func(p limiter.Policy, key string) error { _, err := l.Charge(ctx, p, key, 100); return err },
			"up to":    func(p limiter.Policy, key string) error { _, err := l.AllowUpTo(ctx, p, key, 50); return err },
			"fraction": func(p limiter.Policy, key string) error { _, err := l.AllowUpTo(ctx, p, key, 50.5); return err },
			"do": func(p limiter.Policy, key string) error {
				in := p.Request(key, 10)
				in.IdempotencyKey = key
				if _, err := l.Do(ctx, in); err != nil {
					return err
				}
				_, err := l.Do(ctx, in)
				return err
			},
			"reserve": func(p limiter.Policy, key string) error {
				_, err := l.Reserve(ctx, p.Request(key, 10), time.Hour)
				return err
			},
			"all": func(p limiter.Policy, key string) error {
				_, err := l.AllowAll(ctx, p.Request(key, 10))
				return err
			},
		}
		for verb, use := range verbs {
			for _, p := range marked(10) {
				if key := name + verb; use(p, key) != nil || len(events(t, pool, p, key)) != 2 {
					t.Errorf("%s, %s: %v, marks %v", key, testworld.Variant(p), use(p, key), events(t, pool, p, key))
				}
			}
		}
	}
}

// TestMarksOfExcess: a Settle of more than was reserved records none. The key's next decision
// does, even if it is a denial.
func TestMarksOfExcess(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	for _, p := range marked(10) {
		r := testworld.Reserve(t, l, p.Request("k", 5), time.Hour)
		testworld.Must(t)(l.Settle(t.Context(), r.ID, 9))
		expect(t, pool, p, "k")
		if r := testworld.Must(t)(l.AllowN(t.Context(), p, "k", 5)); r.Allowed {
			t.Errorf("%v is allowed", p)
		}
		expect(t, pool, p, "k", most)
	}
}

// TestMarksInTx: a transaction that is rolled back records none, and one that commits does.
func TestMarksInTx(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	for _, w := range testworld.Ways(t, address, false) {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			for _, p := range marked(10) {
				for _, commit := range []bool{false, true} {
					tx := w.Start(t)
					testworld.Must(t)(tx.AllowN(t.Context(), p, w.Name, 9))
					tx.End(t, commit)
					if n := len(events(t, pool, p, w.Name)); (n == 1) != commit {
						t.Errorf("%s: %d marks after a transaction that commits: %t", testworld.Variant(p), n, commit)
					}
				}
			}
		})
	}
}

// TestMarksOfEachWindow: the next window records anew, and giving units back does not.
func TestMarksOfEachWindow(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	clock.Set(time.Hour.Microseconds() / 2)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now})
	policies := marked(10)
	for i := range policies {
		if p := &policies[i]; p.Calendar != "" {
			p.Calendar, p.TimeZone = limiter.Hour, ""
		} else {
			p.Period, p.Tick = time.Hour, min(p.Tick, time.Second)
		}
	}
	for i := range policies {
		p := policies[i]
		testworld.Must(t)(l.AllowN(t.Context(), p, "k", 8))
		testworld.Must(t)(l.Refund(t.Context(), p, "k", 5))
		testworld.Must(t)(l.AllowN(t.Context(), p, "k", 5))
		expect(t, pool, p, "k", most)
	}
	clock.Set(5 * time.Hour.Microseconds() / 2)
	for _, p := range policies {
		if r := testworld.Must(t)(l.Check(t.Context(), p, "k", 10)); !r.Allowed {
			t.Errorf("%s is not empty: %v", testworld.Variant(p), r)
		}
		testworld.Must(t)(l.Allow(t.Context(), p, "k"))
		expect(t, pool, p, "k", most)
		testworld.Must(t)(l.AllowN(t.Context(), p, "k", 7))
		expect(t, pool, p, "k", most, most)
	}
}

// TestMarksAreCommittedWithTheUnits: connections are ended at any moment. A key's mark is recorded
// if and only if its units are counted.
func TestMarksAreCommittedWithTheUnits(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	l := testworld.NewLimiter(t, testworld.Connect(t, address, testworld.Setting("application_name", "ended")), nil)
	p := limiter.Policy{Name: "ended", Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour, Marks: "80%"}
	var broken, done atomic.Int64
	together(16, func(i int) {
		for k := range 100 {
			if _, err := l.AllowN(t.Context(), p, fmt.Sprint(i, "/", k), 8); err != nil {
				broken.Add(1)
			}
			if done.Add(1)%40 == 0 {
				testworld.Exec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ended' AND datname = current_database()`)
			}
		}
	})
	for _, q := range []string{
		`SELECT count(*) FROM pglimit_fixed_window AS t WHERE t.level >= 8 AND NOT EXISTS (SELECT FROM pglimit_event AS e WHERE e.policy = t.policy AND e.key = t.key)`,
		`SELECT count(*) FROM pglimit_event AS e WHERE NOT EXISTS (SELECT FROM pglimit_fixed_window AS t WHERE e.policy = t.policy AND e.key = t.key AND t.level >= 8)`,
	} {
		if n := testworld.Value[int](t, pool, q); n > 0 {
			t.Errorf("%d keys have one of units and mark without the other", n)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_event`); n == 0 || broken.Load() == 0 {
		t.Errorf("%d marks, and %d calls were broken", n, broken.Load())
	}
}

// TestMarksAfterALock: a request that has waited for the key's row records the mark that it
// reaches with the units of the transaction before it.
func TestMarksAfterALock(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	l := testworld.NewLimiter(t, testworld.Connect(t, address), nil)
	for _, p := range marked(10) {
		tx := must.OK(pool.Begin(t.Context()))(t)
		testworld.Must(t)(l.InTx(tx).AllowN(t.Context(), p, "k", 7.5))
		answer := testworld.Send(func() (limiter.Result, error) { return l.Allow(t.Context(), p, "k") })
		testworld.AwaitBlocked(t, pool)
		testworld.Commit(t, tx)
		if r := testworld.ResultOf(t, "the request", answer); !r.Allowed {
			t.Errorf("%v is denied: %v", p, r)
		}
		expect(t, pool, p, "k", most)
	}
}

// TestMarksAreNotifiedOnce: sessions that listen hear of a mark once it is committed, and of no
// other decision.
func TestMarksAreNotifiedOnce(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	l := testworld.NewLimiter(t, testworld.Connect(t, address), nil)
	conn := testworld.ConnectOnce(t, address)
	must.OK(conn.Exec(t.Context(), "LISTEN pglimit_event; LISTEN done"))(t)
	p := limiter.Policy{Name: "told", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour, Marks: "50%"}
	for range 20 {
		testworld.Must(t)(l.Allow(t.Context(), p, "k"))
	}
	testworld.Exec(t, testworld.Connect(t, address), "NOTIFY done")
	var heard []string
	for len(heard) == 0 || heard[len(heard)-1] != "done" {
		n := must.OK(conn.WaitForNotification(t.Context()))(t)
		heard = append(heard, n.Channel)
	}
	if fmt.Sprint(heard) != "[pglimit_event done]" {
		t.Errorf("the session heard %v", heard)
	}
}

// TestMarksThatNobodyRecords: requests whose marks would be lost are refused, and nothing is
// counted.
func TestMarksThatNobodyRecords(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	p := limiter.Policy{Name: "refused", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour, Marks: "50%"}
	router := must.OK(limiter.New(pool, &limiter.Config{Sharding: limiter.ShardingRouter}))(t)
	other := p
	other.Name = "other"
	_, one := router.Allow(t.Context(), p, "c")
	_, all := router.AllowAll(t.Context(), p.Request("c", 1), other.Request("c", 1))
	_, any := router.AllowAnySplit(t.Context(), p.Request("c", 1), other.Request("c", 1))
	for what, err := range map[string]error{"one": one, "all": all, "any": any} {
		if !errors.Is(err, limiter.ErrUnsupported) || !strings.Contains(err.Error(), "Marks") {
			t.Errorf("%s by a router: %v", what, err)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_fixed_window`); n != 0 {
		t.Errorf("%d keys were counted", n)
	}
}
