//go:build unix

// Package history checks that the answers of several processes can be put in one order in
// which each follows from those before it: that the limiter is linearizable. A process is a
// Limiter with a pool and a clock of its own, which shares nothing with the others but the
// database.
package history

import (
	"context"
	"errors"
	"flag"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/policies"
)

func TestMain(m *testing.M) { testworld.Main(m, 2) }

var (
	operations = flag.Int("operations", testworld.Size(1_200, 100_000), "the least number of operations")
	seedFlag   = flag.Uint64("seed", 0, "of the histories; 0 draws one")
)

// TestAnswersAreThoseOfOneOrder: the answers of clients in several processes to all verbs,
// under all algorithms, can be put in one order, which keeps to the order of calls and
// returns, and in which each answer follows from those before it, in all of its fields.
// Some callers leave and some connections break: such a call may have happened at any time
// after it was made, or not at all.
func TestAnswersAreThoseOfOneOrder(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	url := testworld.NewDatabase(t)
	pool := testworld.Connect(t, url)
	if err := migrations.Functions.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	sum, checking := summary{}, time.Duration(0)
	began := time.Now()
	var mu sync.Mutex
	var playing sync.WaitGroup
	rounds := 0
	next := func() (round int, more bool) {
		mu.Lock()
		defer mu.Unlock()
		rounds++
		return rounds - 1, sum["operations"] < *operations && !t.Failed()
	}
	for range worlds {
		g := &ground{counts: summary{}}
		g.begin(start()) // a limiter reads the clock when it is made
		of := make([]*process, processes)
		for i := range of {
			p, err := newProcess(url, i, g)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.close)
			of[i] = p
		}
		playing.Go(func() {
			for round, more := next(); more; round, more = next() {
				scenes := drawRound(seed, round)
				if err := store(t.Context(), pool, scenes); err != nil {
					t.Error(err)
				}
				g.begin(start())
				all := play(scenes, seed, of)
				for _, s := range scenes {
					mine := slices.DeleteFunc(slices.Clone(all), func(r record) bool { return r.Scene != s.number })
					before := time.Now()
					found := judge(s, mine)
					mu.Lock()
					sum.add(mine, found)
					for _, f := range found {
						if f != errUndecided && f != errUnchecked {
							t.Errorf("-seed %d: %v", seed, f)
						}
					}
					checking += time.Since(before)
					mu.Unlock()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for fault, n := range g.counts {
				sum[fault] += n
			}
		})
	}
	playing.Wait()
	if 100*sum["undecided"] > max(200, sum["histories"]) {
		t.Errorf("%d of %d histories are undecided", sum["undecided"], sum["histories"])
	}
	t.Logf("seed %d: %v; checked in %v, %v in all", seed, sum, checking.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// judge returns what the checks of a scene's history find.
func judge(s *scene, all []record) (found []error) {
	if slices.ContainsFunc(all, func(r record) bool { return r.Op.Verb == model.Wait && r.Out.Lost }) {
		return []error{errUnchecked} // a turn that a Wait abandons goes to a later one, unseen
	}
	all, err := askedApart(all)
	if err = errors.Join(err, checkKeys(s, all)); err != nil {
		return []error{err}
	}
	parts := [][]record{all}
	if s.Bounded { // no operation has two keys
		parts = make([][]record, len(s.plans))
		for _, r := range all {
			parts[r.Op.Key] = append(parts[r.Op.Key], r)
		}
	}
	for _, part := range parts {
		for _, check := range []func(*scene, []record) error{check, checkCached, checkBalances} {
			if err := check(s, part); err != nil {
				found = append(found, err)
			}
		}
	}
	return found
}

// store stores the policies of scenes that use SQL functions. It tries again after a crash.
func store(ctx context.Context, pool *pgxpool.Pool, scenes []*scene) (err error) {
	var edit policies.Edit
	for _, s := range scenes {
		for _, plans := range s.plans {
			if s.SQL {
				edit.Set = append(edit.Set, policies.Stored{Policy: plans[0]})
			}
		}
	}
	if len(edit.Set) == 0 {
		return nil
	}
	for range 100 {
		var live *policies.Policies
		if live, err = policies.Open(ctx, pool, &policies.Config{DisableListen: true}); err == nil {
			_, err = live.Apply(ctx, edit)
			_ = live.Close()
		}
		if err == nil || !*crashes {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

func (s summary) add(all []record, found []error) {
	if slices.Contains(found, errUnchecked) {
		s["histories not checked"]++
		return
	}
	if slices.Contains(found, errUndecided) {
		s["undecided"]++
	}
	s["histories"]++
	for i := range all {
		r := &all[i]
		verb := string(r.Op.Verb)
		if r.Op.SQL {
			verb = "SQL " + verb
		}
		s["operations"]++
		s[verb]++
		for _, step := range r.Op.Steps {
			s["Tx "+string(step.Verb)]++
		}
		if r.Op.Floor > 0 {
			s["with a floor"]++
		}
		if r.Op.Estimate && r.Op.Verb == model.Reserve && r.Out.Result.Allowed && r.Out.Result.Granted != r.Op.Units {
			s["corrected estimates"]++
		}
		if r.Out.Result.Reason == limiter.ReasonKeys {
			s["keys beyond the bound"]++
		}
		if r.Out.Lost {
			s["lost answers"]++
		}
		if r.cached() {
			s["remembered denials"]++
		}
	}
}
