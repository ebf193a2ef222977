package coalesce

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestCoalesceOverSQLDecidesAsMemory: as TestCoalesceDecidesAsMemory.
func TestCoalesceOverSQLDecidesAsMemory(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		address := bed.NewDatabase(t)
		bed.SearchBatches(t, search.Draw{}, 4, func(t *testing.T, config limiter.Config) bed.Door {
			return bed.NewSQLDoorway(t, driver, address, config)
		})
	})
}

// awkward are keys that a careless encoding of arrays would misread.
var awkward = []string{
	`NULL`, `null`, `"`, `""`, `'`, `''`, `\`, `\\`, `\"`, `{`, `}`, `{}`, `{a,b}`, `a,b`, ` `, ` a `, `$1`, "a\nb", "\t", "\x01",
	`"a","b"`, `\x41`, `E'\''`, `--`, `é`, `漢字`, "e\u0301", "👩‍💻", `%s`, `;`, strings.Repeat(`"\`, 512),
}

// TestCoalesceOverSQLAwkwardKeys sends them in one statement and finds each unchanged.
func TestCoalesceOverSQLAwkwardKeys(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		address := bed.NewDatabase(t)
		g := bed.NewSQLDoorway(t, driver, address, limiter.Config{})
		pool := bed.Connect(t, address)
		for _, p := range bed.Variants(10, 1000*time.Hour) {
			g.Shut()
			answers := []<-chan bed.Answer{g.Queue(t.Context(), p.Request("first", 1))}
			for _, key := range awkward {
				answers = append(answers, g.Queue(t.Context(), p.Request(key, 1)), g.Queue(t.Context(), p.Request(key, 1)))
			}
			g.Reopen()
			for i, a := range answers {
				if r := bed.ResultOf(t, fmt.Sprint("request ", i), a); !r.Allowed || !bed.Near(r.Level, float64(1+max(0, i-1)%2)) {
					t.Errorf("%s: request %d: %+v", bed.Variant(p), i, r)
				}
			}
			rows, err := pool.Query(t.Context(), "SELECT key, granted FROM pglimit_"+string(p.Algorithm)+" WHERE policy = $1 AND key <> 'first'", p.Name)
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			for rows.Next() {
				var key string
				var granted float64
				if err := rows.Scan(&key, &granted); err != nil {
					t.Fatal(err)
				}
				if granted != 2 { // of both requests at once: it was a batch
					t.Errorf("%s: %q: the last statement granted %v", bed.Variant(p), key, granted)
				}
				found = append(found, key)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(awkward)
			slices.Sort(want)
			slices.Sort(found)
			if !slices.Equal(found, want) {
				t.Errorf("%s: found %q\nwant %q", bed.Variant(p), found, want)
			}
			if _, err := g.Allow(t.Context(), p, ""); !errors.Is(err, limiter.ErrInvalid) {
				t.Errorf("the empty key: %v", err)
			}
		}
	})
}

// TestCoalesceOverSQLExactCosts: a cost is stored to the last bit, sent alone or in an
// array.
func TestCoalesceOverSQLExactCosts(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		address := bed.NewDatabase(t)
		g := bed.NewSQLDoorway(t, driver, address, limiter.Config{})
		pool := bed.Connect(t, address)
		small := limiter.Policy{Name: "small", Algorithm: limiter.FixedWindow, Limit: 1, Period: 1000 * time.Hour}
		large := limiter.Policy{Name: "large", Algorithm: limiter.FixedWindow, Limit: 1 << 53, Period: 1000 * time.Hour}
		costs := map[string]limiter.Request{}
		for i, cost := range []float64{1e-9, 0.1, 0.1 + 0.2, 1.0 / 3} {
			costs[fmt.Sprint("s", i)] = small.Request(fmt.Sprint("s", i), cost)
		}
		for i, cost := range []float64{1 << 53, 1<<53 - 1, 1e15 + 1, 12345678.9} {
			costs[fmt.Sprint("l", i)] = large.Request(fmt.Sprint("l", i), cost)
		}
		for _, alone := range []bool{false, true} {
			if !alone {
				g.Shut()
			}
			var answers []<-chan bed.Answer
			for _, request := range costs {
				if alone {
					bed.Must(t)(g.Do(t.Context(), request))
					continue
				}
				answers = append(answers, g.Queue(t.Context(), request))
			}
			if !alone {
				g.Reopen()
			}
			for _, a := range answers {
				bed.ResultOf(t, "a request", a)
			}
			for key, request := range costs {
				if got := bed.Value[float64](t, pool, "SELECT cost FROM pglimit_fixed_window WHERE key = $1", key); got != request.Cost {
					t.Errorf("%v is stored as %v", request.Cost, got)
				}
			}
			bed.Exec(t, pool, "DELETE FROM pglimit_fixed_window")
		}
	})
}

// TestCoalesceOverSQLFailsOneBadRequestAlone: as TestCoalesceFailsOneBadRequestAlone.
func TestCoalesceOverSQLFailsOneBadRequestAlone(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		u, err := url.Parse(bed.NewDatabase(t))
		if err != nil {
			t.Fatal(err)
		}
		u.Path = "/" + bed.Value[string](t, bed.Latin1(t), "SELECT current_database()")
		q := u.Query()
		q.Set("client_encoding", "UTF8")
		u.RawQuery = q.Encode()
		failsOneBadRequestAlone(t, bed.NewSQLDoorway(t, driver, u.String(), limiter.Config{}))
	})
}

// TestHeldRowsOverSQLStallNobody: while a transaction has locked a row, other keys get
// their answers, and then the callers that wait for it.
func TestHeldRowsOverSQLStallNobody(t *testing.T) {
	bed.OverDrivers(t, func(t *testing.T, driver string) {
		address := bed.NewDatabase(t)
		for _, most := range []int{4, 0} { // connections
			db := bed.ConnectSQL(t, driver, address)
			db.SetMaxOpenConns(most)
			l := bed.NewSQL(t, db, &limiter.Config{BreakAfter: 1})
			for _, p := range bed.Variants(bed.HeldLimit, 1000*time.Hour) {
				p.Name += fmt.Sprint("-of-", most)
				tx, err := db.Begin()
				if err != nil {
					t.Fatal(err)
				}
				bed.Must(t)(l.InSQLTx(tx).AllowN(t.Context(), p, "m", bed.HeldLimit/2))
				var held []<-chan bed.Answer
				for i := range bed.HeldLimit {
					held = append(held, bed.Request(t.Context(), l, p.Request("m", 1)))
					bed.AwaitWaiting(t, l, i+1)
				}
				for _, key := range bed.Neighbours() {
					bed.ResultOf(t, "a neighbour", bed.Request(t.Context(), l, p.Request(key, 1)))
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				for i, a := range held {
					if r := bed.ResultOf(t, "the key that was held", a); r.Allowed != (i < bed.HeldLimit/2) {
						t.Errorf("%s: request %d: %+v", bed.Variant(p), i, r)
					}
				}
			}
		}
	})
}
