//go:build unix

// Package history checks that the answers of several processes can be put in one order in
// which each follows from those before it: that the limiter is linearizable. A process is a
// Limiter with a pool and a clock of its own, which shares nothing with the others but the
// database.
package history

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/integration/testworld"
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
	g := &ground{}
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
	for round := 0; sum["operations"] < *operations && !t.Failed(); round++ {
		scenes := drawRound(seed, round)
		store(t, pool, scenes)
		g.begin(start())
		all := play(scenes, seed, of)
		for _, s := range scenes {
			mine := slices.DeleteFunc(slices.Clone(all), func(r record) bool { return r.Scene != s.number })
			before := time.Now()
			if slices.ContainsFunc(mine, func(r record) bool { return r.Op.Verb == model.Wait && r.Out.Lost }) {
				sum["histories not checked"]++ // a turn that a Wait abandons goes to a later one, unseen
				continue
			}
			for _, check := range []func(*scene, []record) error{check, checkCached} {
				switch err := check(s, mine); {
				case err == errUndecided:
					sum["undecided"]++
				case err != nil:
					t.Errorf("-seed %d: %v", seed, err)
				}
			}
			sum.add(mine)
			checking += time.Since(before)
		}
	}
	if 100*sum["undecided"] > max(100, sum["histories"]) {
		t.Errorf("%d of %d histories are undecided", sum["undecided"], sum["histories"])
	}
	t.Logf("seed %d: %v; checked in %v, %v in all", seed, sum, checking.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// store stores the policies of scenes for the SQL functions.
func store(t *testing.T, pool *pgxpool.Pool, scenes []*scene) {
	t.Helper()
	live, err := policies.Open(t.Context(), pool, &policies.Config{DisableListen: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = live.Close() }()
	var edit policies.Edit
	for _, s := range scenes {
		for _, plans := range s.plans {
			edit.Set = append(edit.Set, policies.Stored{Policy: plans[0]})
		}
	}
	if _, err := live.Apply(t.Context(), edit); err != nil {
		t.Fatal(err)
	}
}

// summary counts what was checked.
type summary map[string]int

func (s summary) add(all []record) {
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
		if r.Out.Lost {
			s["lost answers"]++
		}
		if r.cached() {
			s["remembered denials"]++
		}
	}
}
