package keys

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// functionsWorld is a world with the SQL functions, and the calls of them by a policy's name.
type functionsWorld struct {
	*world
	*testworld.Functions
}

func newFunctionsWorld(t *testing.T) functionsWorld {
	t.Parallel()
	w := &world{T: t, clock: newClock(), pool: testworld.FunctionsPool(t)}
	w.Limiter = w.another()
	w.janitor = testworld.NewJanitor(t, w.pool, &janitor.Config{Now: w.now})
	stored := map[string]limiter.Policy{}
	return functionsWorld{w, &testworld.Functions{Limiter: w.Limiter, Q: w.pool, Now: w.now, ByName: true, Store: func(p limiter.Policy) {
		if stored[p.Name] != p {
			testworld.StorePolicy(t, w.pool, p, true)
			stored[p.Name] = p
		}
	}}}
}

// asks makes a request by a function and expects a reason; "" is a grant.
func (w functionsWorld) asks(p limiter.Policy, key string, want limiter.Reason) {
	w.Helper()
	if r := testworld.Must(w.T)(w.Functions.AllowN(w.Context(), p, key, 1)); r.Reason != want || r.Allowed != (want == "") {
		w.Errorf("the answer for %s is %+v, want reason %q", key, r, want)
	}
}

// TestFunctionsFlood: eight connections make up 300 keys each, and half of them are the library's. At
// no moment are there more rows than the policy allows, and a known key goes on.
func TestFunctionsFlood(t *testing.T) {
	for _, library := range []bool{false, true} {
		t.Run(fmt.Sprint(library), func(t *testing.T) {
			w, p := newFunctionsWorld(t), hour(limiter.TokenBucket, 50)
			p.Limit = 1e6
			w.asks(p, "known", "")
			var granted, denied atomic.Int64
			var flood, watched sync.WaitGroup
			for i := range 8 {
				var ask verbs.Limiter = w.Functions
				if library && i%2 == 0 {
					ask = w.another()
				}
				flood.Go(func() {
					for k := range 300 { // each key in two connections
						switch r := testworld.Must(t)(ask.AllowN(t.Context(), p, fmt.Sprint("made-up", i/2, k), 1)); {
						case r.Allowed:
							granted.Add(1)
						case r.Reason == limiter.ReasonKeys:
							denied.Add(1)
						default:
							t.Errorf("a new key is answered %+v", r)
						}
					}
				})
			}
			ended := make(chan struct{})
			watched.Go(func() {
				for {
					if rows, count := rowsAndCount(t, w.pool, p); rows > count || count > p.MaxKeys {
						t.Errorf("%d rows, and the count is %d of %d", rows, count, p.MaxKeys)
					}
					w.asks(p, "known", "")
					select {
					case <-ended:
						return
					default:
					}
				}
			})
			flood.Wait()
			close(ended)
			watched.Wait()
			rows, count := rowsAndCount(t, w.pool, p)
			if rows > count || count > p.MaxKeys || !library && rows != p.MaxKeys || rows < p.MaxKeys/2 {
				t.Errorf("at the end %d rows, and the count is %d of %d", rows, count, p.MaxKeys)
			}
			if granted.Load() < rows-1 || denied.Load() == 0 {
				t.Errorf("%d requests were granted, %d denied, and %d keys have rows", granted.Load(), denied.Load(), rows)
			}
		})
	}
}

// TestFunctionsAlike: the functions answer as the library in a transaction, for keys that have a
// row, that get one, and that get none.
func TestFunctionsAlike(t *testing.T) {
	for _, a := range limiter.Algorithms() {
		if a == limiter.Attempts || a == limiter.GCRA { // which has the rows of token_bucket
			continue
		}
		t.Run(string(a), func(t *testing.T) {
			for name, change := range map[string]func(p *limiter.Policy){
				"denied": func(*limiter.Policy) {},
				"shadow": func(p *limiter.Policy) { p.Shadow = true },
				"rest":   func(p *limiter.Policy) { p.RestLimit = 5 },
				"burst": func(p *limiter.Policy) {
					if p.RestLimit, p.BlockFor = 0.5, time.Minute; a == limiter.TokenBucket || a == limiter.LeakyBucket {
						p.Burst, p.RestLimit = 250, 7
					}
				},
			} {
				t.Run(name, func(t *testing.T) {
					w := newFunctionsWorld(t)
					p, other := hour(a, 3), limiter.Policy{Name: "other", Algorithm: limiter.TokenBucket, Limit: 2, Period: time.Hour}
					change(&p)
					w.alike(p, other)
				})
			}
		})
	}
}

func (w functionsWorld) alike(p, other limiter.Policy) {
	ctx, twin := w.Context(), p
	twin.Name = "twin" // the library's, with the same numbers
	w.Store(p)
	request := func(p limiter.Policy, key string, cost, floor float64) limiter.Request {
		in := p.Request(key, cost)
		in.Floor = floor
		return in
	}
	one := func(op func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error)) func(l verbs.Limiter, p limiter.Policy) ([]limiter.Result, error) {
		return func(l verbs.Limiter, p limiter.Policy) ([]limiter.Result, error) {
			r, err := op(l, p)
			return []limiter.Result{r}, err
		}
	}
	allow := func(key string, cost, floor float64) func(l verbs.Limiter, p limiter.Policy) ([]limiter.Result, error) {
		return one(func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error) {
			return l.Do(ctx, request(p, key, cost, floor))
		})
	}
	all := func(with bool, keys ...string) func(l verbs.Limiter, p limiter.Policy) ([]limiter.Result, error) {
		return func(l verbs.Limiter, p limiter.Policy) ([]limiter.Result, error) {
			var requests []limiter.Request
			for _, k := range keys {
				requests = append(requests, p.Request(k, 1))
			}
			if with {
				o := other
				o.Name += p.Name
				requests = append(requests, o.Request("a", 1))
			}
			got, err := l.AllowAll(ctx, requests...)
			return got.PerRequest, err
		}
	}
	for i, f := range []func(l verbs.Limiter, p limiter.Policy) ([]limiter.Result, error){
		allow("k1", 1, 0),
		all(true, "k1", "k2"),
		all(true, "k1", "k3", "k4"), // the permit of k3 comes back
		one(func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error) { return l.Charge(ctx, p, "k3", 2) }),
		allow("k4", 2, 0),
		allow("k4", 2, 0.5),
		one(func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error) {
			return l.AllowUpTo(ctx, p, "k5", 9)
		}),
		allow("k6", 1, 0),
		allow("k6", 6, 0),
		allow("k6", 600, 0),
		allow("k2", 93, 0),
		allow("k2", 93, 0),
		one(func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error) { return l.Charge(ctx, p, "k7", 1) }),
		one(func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error) {
			if p.Algorithm == limiter.LeakyBucketQueue {
				return limiter.Result{}, nil
			}
			made, err := l.Reserve(ctx, p.Request("k7", 1), time.Hour)
			return made.Result, err
		}),
		all(true, "k1", "k7"),
		all(false, "k1", "k8"),
		all(false, "k8"),
		one(func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error) { return l.Check(ctx, p, "k8", 1) }),
		one(func(l verbs.Limiter, p limiter.Policy) (limiter.Result, error) { return l.Check(ctx, p, "k1", 1) }),
	} {
		tx := testworld.Begin(w.T, w.pool, pgx.TxOptions{})
		library, err := f(w.InTx(tx), twin)
		testworld.Commit(w.T, tx)
		functions, err2 := f(w.Functions, p)
		if got, want := fmt.Sprint(told(functions, p.Shadow), err2), fmt.Sprint(told(library, p.Shadow), err); got != want {
			w.Errorf("step %d: the functions say\n%s\nand the library\n%s", i, got, want)
		}
		w.forward(time.Second)
	}
	rows, count := rowsAndCount(w.T, w.pool, p)
	if r, c := rowsAndCount(w.T, w.pool, twin); rows != r || count != c || rows != 3 || count != 3 {
		w.Errorf("%d rows, and the count is %d; of the library %d and %d", rows, count, r, c)
	}
}

// told are the fields that both have.
func told(all []limiter.Result, shadow bool) (lines []string) {
	for _, r := range all {
		if r.Source == limiter.SourceSkipped || !r.Allowed && r.Reason == "" && r.ResetAfter == limiter.Never {
			r = limiter.Result{} // not decided
		}
		if shadow { // the functions let it pass at once
			r.Delay = 0
		}
		lines = append(lines, fmt.Sprintf("\nallowed %v granted %v remaining %v level %v retry %v reset %v delay %v reason %q shadowed %v",
			r.Allowed, r.Granted, r.Remaining, r.Level, r.RetryAfter, r.ResetAfter, r.Delay, r.Reason, r.Shadowed))
	}
	return lines
}

// TestFunctionsRollBack: a rollback gives the row and the permit back. Until the end the count is
// locked, and another transaction's new key waits for it; a known key
// does not.
func TestFunctionsRollBack(t *testing.T) {
	w, p := newFunctionsWorld(t), hour(limiter.SlidingWindowLog, 3)
	w.asks(p, "first", "")
	w.asks(p, "known", "")
	for _, commit := range []bool{false, true} {
		tx := testworld.Begin(t, w.pool, pgx.TxOptions{})
		in := *w.Functions
		in.Q = tx
		for _, c := range []struct {
			key  string
			want limiter.Reason
		}{{"in-tx", ""}, {"first", ""}, {"another", limiter.ReasonKeys}, {"in-tx", ""}} {
			if r := testworld.Must(t)(in.AllowN(t.Context(), p, c.key, 1)); r.Reason != c.want {
				t.Errorf("in the transaction %s: %+v, want %q", c.key, r, c.want)
			}
		}
		if commit {
			var waits sync.WaitGroup
			waits.Go(func() { w.asks(p, "another", limiter.ReasonKeys) })
			testworld.AwaitBlocked(t, w.pool)
			known := testworld.Begin(t, w.pool, pgx.TxOptions{})
			for _, sql := range []string{`SET LOCAL lock_timeout = '2s'`, `SELECT pglimit.allow('bounded', 'known')`} {
				if _, err := known.Exec(t.Context(), sql); err != nil {
					t.Error(err)
				}
			}
			must.Succeed(t, known.Rollback(t.Context()))
			testworld.Commit(t, tx)
			waits.Wait()
			w.expect(p, 3, 3)
		} else if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		} else {
			w.expect(p, 2, 2)
		}
	}
}

// TestFunctionsOneNewKey: two transactions add the same key. The second, which waited, gives its
// permit back.
func TestFunctionsOneNewKey(t *testing.T) {
	w := newFunctionsWorld(t)
	for _, most := range []int64{3, 2} {
		p := hour(limiter.FixedWindow, most)
		p.Name += fmt.Sprint(most)
		w.asks(p, "first", "")
		tx := testworld.Begin(t, w.pool, pgx.TxOptions{})
		in := *w.Functions
		in.Q = tx
		testworld.Must(t)(in.AllowN(t.Context(), p, "new", 1))
		var waits sync.WaitGroup
		waits.Go(func() { w.asks(p, "new", "") })
		testworld.AwaitBlocked(t, w.pool)
		testworld.Commit(t, tx)
		waits.Wait()
		w.expect(p, 2, 2)
	}
}

// TestFunctionsAllowAll: a flood of new keys that another limit denies takes no permits, and leaves
// no rows. If expired reservations are what denies, it is decided after they have ended.
func TestFunctionsAllowAll(t *testing.T) {
	w, p := newFunctionsWorld(t), hour(limiter.TokenBucket, 3)
	address := limiter.Policy{Name: "address", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Hour}
	ask := func(want limiter.Reason, keys ...string) {
		t.Helper()
		requests := []limiter.Request{address.Request("a", 1)}
		for _, k := range keys {
			requests = append(requests, p.Request(k, 1))
		}
		all := must.OK(w.Functions.AllowAll(t.Context(), requests...))(t)
		if all.Allowed != (want == "") || !all.Allowed && all.PerRequest[all.DeniedBy].Reason != want {
			t.Errorf("%v: %+v, want %q", keys, all, want)
		}
	}
	w.Store(address)
	testworld.Must(t)(w.Functions.Charge(t.Context(), address, "a", 3))
	must.OK(w.Functions.Reserve(t.Context(), address.Request("a", 2), time.Second))(t)
	ask(limiter.ReasonLimit, "k1", "k2")
	w.expect(p, 0, -1)
	w.forward(2 * time.Second)
	ask("", "k1", "k2")
	w.expect(p, 2, 2)
	ask(limiter.ReasonKeys, "k3", "k4")
	w.expect(p, 2, 2)
	ask("", "k3")
	for i := range 20 {
		ask(limiter.ReasonLimit, fmt.Sprint("made-up", i))
	}
	w.expect(p, 3, 3)
}

// TestFunctionsDue: a row that is due stays while its key is used.
func TestFunctionsDue(t *testing.T) {
	w, p := newFunctionsWorld(t), hour(limiter.LeakyBucket, 1)
	p.Period = time.Second
	for range 30 {
		w.asks(p, "k", "")
		w.forward(50 * time.Second)
		w.sweep()
		w.expect(p, 1, 1)
		w.asks(p, "another", limiter.ReasonKeys)
	}
	w.forward(12 * time.Minute)
	w.sweep()
	w.expect(p, 0, 0)
}

// TestFunctionsBlock: a key that gets no row is not blocked. A reset makes the janitor wait
// before it counts, since processes of the library know the row.
func TestFunctionsBlock(t *testing.T) {
	w, p := newFunctionsWorld(t), hour(limiter.SlidingWindowCounter, 1)
	w.Store(p)
	if err := w.Functions.Block(t.Context(), p, "first", time.Hour); err != nil {
		t.Error(err)
	}
	w.asks(p, "first", limiter.ReasonBlocked)
	var pg *pgconn.PgError
	if err := w.Functions.Block(t.Context(), p, "new", time.Hour); !errors.As(err, &pg) || pg.Code != "54000" || pg.Hint == "" ||
		pg.Message != "pglimit: policy 'bounded' has rows for all of its 1 keys, and this key has none to block" {
		t.Errorf("block of a key without a row: %v", err)
	}
	w.expect(p, 1, 1)
	w.allow(w.world.Limiter, p, "first", limiter.ReasonBlocked)
	testworld.Exec(t, w.pool, `UPDATE pglimit_key_count SET taken_at_us = 0, counted_at_us = 0`)
	if err := w.Functions.Reset(t.Context(), p, "first"); err != nil {
		t.Error(err)
	}
	if !testworld.Value[bool](t, w.pool, `SELECT taken_at_us > 0 FROM pglimit_key_count`) {
		t.Error("the count does not say that a key was reset")
	}
}

// TestFunctionsOfAskers: the functions of askers keep the bound, and reserve is denied. Denials of
// keys without a row are counted together.
func TestFunctionsOfAskers(t *testing.T) {
	w, p := newFunctionsWorld(t), hour(limiter.TokenBucket, 1)
	w.Store(p)
	testworld.Exec(t, w.pool, `UPDATE pglimit_policy SET count_denials = true`)
	for _, c := range []struct{ call, want string }{
		{"allow('bounded', 'first')", "t 1 "},
		{"allow('bounded', 'first', 2)", "t 2 "},
		{"allow('bounded', 'new')", "f 0 keys"},
		{"allow_up_to('bounded', 'newer', 3)", "f 0 keys"},
		{"charge('bounded', 'newest', 3)", "t 0 "},
		{"reserve('bounded', 'last', 1, 60)", "f 0 keys"},
		{"reserve_up_to('bounded', 'last', 2, 60)", "f 0 keys"},
		{"reserve('bounded', 'first', 1, 60)", "t 1 "},
	} {
		for _, schema := range []string{"pglimit", "pglimit_ask"} {
			got := testworld.Value[string](t, w.pool, `SELECT concat(left(allowed::text, 1), ' ', granted, ' ', reason) FROM `+schema+"."+c.call)
			if got != c.want {
				t.Errorf("%s.%s: %q, want %q", schema, c.call, got, c.want)
			}
		}
	}
	w.expect(p, 1, 1)
	if got := testworld.Value[string](t, w.pool, `SELECT string_agg(DISTINCT concat(key, '|', blocked, above_burst), ',') || sum(denials) FROM pglimit_denial`); got != "|008" {
		t.Errorf("the denials are %s", got)
	}
}

// TestChecksTakeNone: a Check of a key without a row takes no permit, however many there are.
func TestChecksTakeNone(t *testing.T) {
	w, p := newFunctionsWorld(t), hour(limiter.TokenBucket, 2)
	w.Store(p)
	processes := []verbs.Limiter{w.another(), w.another(), w.Functions}
	looks := func(want limiter.Reason) {
		t.Helper()
		for i := range 5 {
			for _, l := range processes {
				r := testworld.Must(t)(l.Check(t.Context(), p, fmt.Sprint("new", i), 1))
				if l != verbs.Limiter(w.Functions) && r.Reason != want { // functions look at the key alone
					t.Errorf("%+v, want reason %q", r, want)
				}
			}
			w.forward(6 * time.Second)
		}
	}
	looks("")
	w.expect(p, 0, 0)
	w.fill(w.another(), p, 1)
	w.expect(p, 1, 1)
	looks("")
	w.expect(p, 1, 1)
	w.fill(w.another(), p, 2)
	looks(limiter.ReasonKeys)
	w.expect(p, 2, 2)
}
