//go:build unix

package history

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

var (
	operations = flag.Int("operations", bed.Size(1_200, 100_000), "the least number of operations")
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
	url := bed.NewDatabase(t)
	pool := bed.Connect(t, url)
	if err := migrations.UpFunctions(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	sum := &summary{verbs: map[model.Verb]int{}}
	began := time.Now()
	a := newAudience(t, url, seed)
	for round := 0; sum.operations < *operations && !t.Failed(); round++ {
		scenes := drawRound(seed, round)
		store(t, pool, scenes)
		all := a.see(t, round)
		for _, s := range scenes {
			mine := slices.DeleteFunc(slices.Clone(all), func(r record) bool { return r.Scene != s.number })
			checking := time.Now()
			if slices.ContainsFunc(mine, func(r record) bool { return r.Op.Verb == model.Wait && r.Out.Lost }) {
				sum.spoiled++ // a turn that a Wait abandons goes to a later one, unseen
				continue
			}
			for _, check := range []func(*scene, []record) error{check, checkCached} {
				switch err := check(s, mine); {
				case err == errUndecided:
					sum.undecided++
				case err != nil:
					t.Errorf("-seed %d: %v", seed, err)
				}
			}
			sum.add(mine, time.Since(checking))
		}
	}
	if 100*sum.undecided > max(100, sum.histories) {
		t.Errorf("%d of %d histories are undecided", sum.undecided, sum.histories)
	}
	t.Logf("seed %d, %s, %v in all: %s", seed, sum, time.Since(began).Round(time.Millisecond), map[bool]string{true: "NOT LINEARIZABLE", false: "all linearizable"}[t.Failed()])
}

// audience has the processes that play, and the ground that they share.
type audience struct {
	url      string
	seed     uint64
	ground   *ground
	children []*child
}

func newAudience(t *testing.T, url string, seed uint64) *audience {
	t.Helper()
	g, file, err := newGround(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := &audience{url: url, seed: seed, ground: g}
	for range processes {
		c, err := startChild(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
		a.children = append(a.children, c)
	}
	return a
}

// see lets all processes play a round, and returns its operations.
func (a *audience) see(t *testing.T, round int) (all []record) {
	t.Helper()
	a.ground.clear()
	a.ground.move(func(int64) int64 { return start() })
	parts, errs := make([][]record, processes), make([]error, processes)
	var playing sync.WaitGroup
	for i, c := range a.children {
		playing.Go(func() { parts[i], errs[i] = c.play(order{a.url, i, a.seed, round}) })
	}
	playing.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(parts...)
}

// store stores the policies of scenes for the SQL functions.
func store(t *testing.T, pool *pgxpool.Pool, scenes []*scene) {
	t.Helper()
	policies, err := limiter.OpenPolicies(t.Context(), pool, &limiter.PoliciesConfig{DisableListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = policies.Close() }()
	var edit limiter.PolicyEdit
	for _, s := range scenes {
		for _, k := range s.keys {
			edit.Set = append(edit.Set, limiter.StoredPolicy{Policy: k.plans[0]})
		}
	}
	if _, err := policies.Apply(t.Context(), edit); err != nil {
		t.Fatal(err)
	}
}

// summary counts what was checked.
type summary struct {
	operations, histories, undecided, spoiled, lost, cached, steps int
	verbs                                                          map[model.Verb]int
	checking                                                       time.Duration
}

func (s *summary) add(all []record, checking time.Duration) {
	s.operations += len(all)
	s.histories++
	s.checking += checking
	for i := range all {
		r := &all[i]
		verb := r.Op.Verb
		if r.Op.SQL {
			verb = "SQL " + verb
		}
		s.verbs[verb]++
		for _, step := range r.Op.Steps {
			s.verbs["Tx "+step.Verb]++
			s.steps++
		}
		if r.Out.Lost {
			s.lost++
		}
		if r.cached() {
			s.cached++
		}
	}
}

func (s *summary) String() string {
	var verbs []string
	for _, v := range slices.Sorted(maps.Keys(s.verbs)) {
		verbs = append(verbs, fmt.Sprintf("%s %d", v, s.verbs[v]))
	}
	return fmt.Sprintf("%d operations in %d histories (%d steps in transactions, %d answers lost, %d remembered denials; %d histories undecided, %d more not checked, since a Wait ended in mid-sleep): %s; checked in %v",
		s.operations, s.histories, s.steps, s.lost, s.cached, s.undecided, s.spoiled, strings.Join(verbs, ", "), s.checking.Round(time.Millisecond))
}
