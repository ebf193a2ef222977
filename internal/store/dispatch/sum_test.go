package dispatch

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
)

// TestSumsShareARow: requests of different costs are one row of their sum, and each is
// answered as if it had been decided alone.
func TestSumsShareARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		var all []<-chan reply
		costs := []float64{1, 0.5, 1.25}
		for _, cost := range costs {
			all = append(all, take(t.Context(), s, query("k", cost)))
		}
		f.open()
		f.open()
		if got := f.statements(); !slices.Equal(got, []string{"alone k 2.75"}) {
			t.Errorf("sent %q", got)
		}
		level := 0.0
		for i, c := range all {
			r := <-c
			level += costs[i]
			if got := r.View.Level(nil, r.UpdatedAt); r.Granted != 1 || got != level {
				t.Errorf("request %d was granted %v at level %v", i, r.Granted, got)
			}
		}
	})
}

// TestSumsOfABalanceShareARow: a balance has more units than its overdraft, so that the sum of
// any costs is one row. If it does not fit, each request is answered as if alone.
func TestSumsOfABalanceShareARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		spend := func(key string, cost float64) <-chan reply {
			q := query(key, cost)
			q.Algorithm, q.Capacity = algorithm.Balance, 0
			return take(t.Context(), s, q)
		}
		grant := store.Op{Kind: store.Grant, Query: *query("k", 100), Lot: &store.Granting{Ends: algorithm.Never}}
		grant.Algorithm = algorithm.Balance
		must.Succeed(t, f.memory.Do(t.Context(), &grant))
		costs, granted := []float64{40, 30, 50, 20}, []float64{1, 1, 0, 1}
		spend("first of its queue", 1)
		f.statements()
		var all []<-chan reply
		for _, cost := range costs {
			all = append(all, spend("k", cost))
		}
		for range 6 {
			f.open()
		}
		if got := f.statements(); !slices.Equal(got, []string{"alone k 140", "alone k 70", "alone k 70", "alone k 20"}) {
			t.Errorf("sent %q", got)
		}
		level := -100.0
		for i, c := range all {
			r := <-c
			if r.err != nil {
				t.Fatal(r.err)
			}
			level += costs[i] * granted[i]
			if got := r.View.Level(nil, r.UpdatedAt); r.err != nil || r.Granted != granted[i] || got != level {
				t.Errorf("request %d was granted %v at level %v, not at %v: %v", i, r.Granted, got, level, r.err)
			}
		}
	})
}

// TestSumThatDoesNotFit: those that do not fit even first are denied with the sum; the
// others are asked again, in order of arrival and before later ones.
func TestSumThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		used := take(t.Context(), s, query("k", 1.5))
		f.open()
		f.open()
		<-used
		f.statements()
		take(t.Context(), s, query("first", 1)) // is in flight
		f.statements()
		var all []<-chan reply
		for _, cost := range []float64{1.75, 0.5, 0.25} {
			all = append(all, take(t.Context(), s, query("k", cost)))
		}
		f.open()                                       // the sum is at the gate
		later := take(t.Context(), s, query("k", 0.8)) // would fit before the others
		for range 3 {
			f.open()
		}
		if got := f.statements(); !slices.Equal(got, []string{"alone k 2.5", "alone k 0.75", "alone k 0.8"}) {
			t.Errorf("sent %q", got)
		}
		for i, c := range append(all, later) {
			if r := <-c; r.err != nil || (r.Granted == 1) != (i == 1 || i == 2) {
				t.Errorf("request %d: %+v", i, r)
			}
		}
	})
}

// TestSumOfALog: a log tells when one cost fits, so that each denial is decided alone.
func TestSumOfALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		ask := func(cost float64) <-chan reply {
			q := query("k", cost)
			q.Algorithm = algorithm.SlidingWindowLog
			q.Now = &f.now
			return take(t.Context(), s, q)
		}
		f.open()
		var used []<-chan reply
		for _, cost := range []float64{1, 2} {
			used = append(used, ask(cost))
			f.open()
			f.set(func() { f.now += 1000 })
		}
		sent := ask(0.25)
		half, more := ask(0.5), ask(1.5)
		for range 4 {
			f.open()
		}
		if r := <-sent; r.Granted != 0 {
			t.Errorf("%+v", r)
		}
		first, second := (<-used[0]).UpdatedAt, (<-used[1]).UpdatedAt
		for need, want := range map[float64]int64{0.5: first, 1.5: second} {
			answer := half
			if need > 1 {
				answer = more
			}
			q := query("k", need)
			if r := <-answer; r.Granted != 0 || r.View.FitsAt(&q.Rules, r.UpdatedAt, 3, need)-q.Period != want {
				t.Errorf("%v would fit at %v, not %v", need, r.View.FitsAt(&q.Rules, r.UpdatedAt, 3, need)-q.Period, want)
			}
		}
		shut(s)
	})
}

// TestSumOfABlockedLog: each request for a blocked log learns when its own cost fits.
func TestSumOfABlockedLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		log := func(cost float64) *store.Query {
			q := query("k", cost)
			q.Algorithm, q.Now = algorithm.SlidingWindowLog, &f.now
			return q
		}
		f.open()
		var entries []int64
		for _, cost := range []float64{1, 2} {
			used := take(t.Context(), s, log(cost))
			f.open()
			entries = append(entries, (<-used).UpdatedAt)
			f.set(func() { f.now += 1000 })
		}
		must.Succeed(t, f.memory.Do(t.Context(), &store.Op{Kind: store.Block, Query: *log(1), ForUs: 1e6}))
		sent := take(t.Context(), s, log(0.25))
		costs, leaves := []float64{1, 1.5, 0.5}, []int{0, 1, 0}
		var answers []<-chan reply
		for _, cost := range costs {
			answers = append(answers, take(t.Context(), s, log(cost)))
		}
		for range 5 {
			f.open()
		}
		<-sent
		for i, answer := range answers {
			q := log(costs[i])
			if r := <-answer; !r.Blocked || r.View.FitsAt(&q.Rules, r.UpdatedAt, 3, q.Cost) != entries[leaves[i]]+q.Period {
				t.Errorf("%v: %+v, would fit at %v", q.Cost, r, r.View.FitsAt(&q.Rules, r.UpdatedAt, 3, q.Cost))
			}
		}
		shut(s)
	})
}

// TestSumThatRoundsElsewhere: the sum does not fit though its parts would, since adding to a
// large level rounds. They are not asked for together again.
func TestSumThatRoundsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		large := func(cost float64) *store.Query {
			q := query("k", cost)
			q.Algorithm, q.Burst, q.Capacity, q.Room = algorithm.FixedWindow, 1e15, 1e15+11.25, 1e15+11.25
			return q
		}
		f.open()
		used := take(t.Context(), s, large(1e15))
		f.open()
		<-used
		sent := take(t.Context(), s, query("other", 1))
		a, b := take(t.Context(), s, large(1.3)), take(t.Context(), s, large(10))
		for range 4 {
			select {
			case f.gate <- struct{}{}:
			default:
			}
			synctest.Wait()
		}
		<-sent
		select {
		case r := <-a:
			if r2 := <-b; r.Granted != 1 || r2.Granted != 1 {
				t.Errorf("%+v, %+v", r, r2)
			}
		default:
			t.Errorf("no answer after %q", f.statements())
		}
		close(f.gate)
		shut(s)
	})
}

// TestSumLeavesOutWhoLeft: a caller that left is not in the sum.
func TestSumLeavesOutWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		goes, stays := take(ctx, s, query("k", 2)), take(t.Context(), s, query("k", 1))
		cancel()
		<-goes
		f.open()
		f.open()
		if got := f.statements(); !slices.Equal(got, []string{"alone k"}) {
			t.Errorf("sent %q", got)
		}
		if r := <-stays; r.Granted != 1 {
			t.Errorf("%+v", r)
		}
	})
}

// TestStepsShareARow: requests for as many steps as fit are one row with single requests.
func TestStepsShareARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		var all []<-chan reply
		for _, steps := range []float64{1, 4, 2} {
			q := query("k", 1)
			q.Units, q.Count = steps, steps
			all = append(all, take(t.Context(), s, q))
		}
		f.open()
		f.open()
		if got := f.statements(); !slices.Equal(got, []string{"alone k 7"}) {
			t.Errorf("sent %q", got)
		}
		for i, want := range []float64{1, 2, 0} {
			if r := <-all[i]; r.Granted != want {
				t.Errorf("request %d: %+v", i, r)
			}
		}
	})
}

// TestSumsDecideAsIfAlone: requests of any costs and steps, sent while a statement was in
// flight, get what they would get one after the other.
func TestSumsDecideAsIfAlone(t *testing.T) {
	for seed := range uint64(600) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			s, f, _ := inFlight(t, func(o *Options) { o.Statements = 1 })
			alone := memory.New()
			algorithms := append(algorithm.Tables[:], algorithm.Balance)
			a := algorithms[int(seed)%len(algorithms)]
			for i := range 2 * 2 {
				granted := store.Op{Kind: store.Grant, Query: *query(fmt.Sprint(i%2), 4), Lot: &store.Granting{Ends: algorithm.Never}}
				granted.Algorithm, granted.Now = algorithm.Balance, &f.now
				must.Succeed(t, []*memory.Store{alone, f.memory}[i/2].Do(t.Context(), &granted))
			}
			var queries []*store.Query
			var answers []<-chan reply
			for i := range 2 + r.IntN(12) {
				q := query(fmt.Sprint(r.IntN(2)), []float64{0.25, 0.5, 1, 1.5, 2.75}[r.IntN(5)])
				q.Algorithm = a
				if r.IntN(4) == 0 {
					q.Cost, q.Unit, q.Count = 0.25, 0.25, float64(1+r.IntN(6))
					q.Units = q.Cost * q.Count
				}
				if i < 2 || r.IntN(6) == 0 {
					q.BlockFor = []int64{0, 60e6}[r.IntN(2)]
				}
				if q.BlockFor > 0 {
					q.Count, q.Units = 1, q.Cost // see Query.Shared
				}
				queries = append(queries, q)
				answers = append(answers, take(t.Context(), s, q))
			}
			close(f.gate)
			for i, q := range queries {
				got := <-answers[i]
				want, err := decide(alone, q, &f.now)
				if err != nil || got.err != nil {
					t.Fatal(err, got.err)
				}
				level := func(o store.Outcome) float64 { return o.View.Level(&q.Rules, o.UpdatedAt) }
				fits := func(o store.Outcome) int64 {
					return o.View.FitsAt(&q.Rules, o.UpdatedAt, q.Room, q.Rest(o.Granted*q.Cost))
				}
				if got.Granted != want.Granted || got.Blocked != want.Blocked || math.Abs(level(got.Outcome)-level(want)) > 1e-9 ||
					want.Granted < q.Count && fits(got.Outcome) != fits(want) {
					t.Fatalf("seed %d, %s, request %d of %v in steps of %v: got %+v at level %v, fits at %v; alone %+v at %v, fits at %v", seed, a, i, q.Units, q.Cost,
						got.Outcome, level(got.Outcome), fits(got.Outcome), want, level(want), fits(want))
				}
			}
			shut(s)
		})
	}
}

// TestRows: a request learns how many requests its statement decided.
func TestRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, first := inFlight(t, nil)
		queries := []*store.Query{query("a", 1), query("a", 1), query("a", 0.5), query("b", 1), query("c", 1)}
		var all []<-chan reply
		for _, q := range queries {
			all = append(all, take(t.Context(), s, q))
		}
		f.open()
		f.open()
		<-first
		for i, c := range all {
			if r := <-c; r.err != nil || r.rows != 5 {
				t.Errorf("request %d: %v, %d rows, want 5", i, r.err, r.rows)
			}
		}
		// Of a sum that does not fit, the first is denied with it, the others later.
		used := query("s", 2.5)
		one := take(t.Context(), s, used)
		f.open()
		if r := <-one; r.rows != 1 {
			t.Errorf("alone: %d rows", r.rows)
		}
		blocker := take(t.Context(), s, query("first", 1))
		queries = []*store.Query{query("s", 1), query("s", 0.5), query("s", 0.25)}
		all = nil
		for _, q := range queries {
			all = append(all, take(t.Context(), s, q))
		}
		for range 3 {
			f.open()
		}
		<-blocker
		if a, b := <-all[0], <-all[1]; a.rows != 3 || b.rows != 1 {
			t.Errorf("%d and %d rows, want 3 and 1", a.rows, b.rows)
		}
		f.open()
		<-all[2]
		shut(s)
	})
}
