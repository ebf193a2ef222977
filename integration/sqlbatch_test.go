package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// sqlDoorway is a doorway over database/sql: its one connection is the gate,
// which the test takes.
type sqlDoorway struct {
	*limiter.Limiter
	t     testing.TB
	db    *sql.DB
	taken *sql.Conn
	asked int // since the gate was closed
	first int // who waits when the first ask has arrived: it, or nobody
}

func newSQLDoorway(t testing.TB, driver, address string, config limiter.Config) *sqlDoorway {
	t.Helper()
	g := &sqlDoorway{t: t, db: connectSQL(t, driver, address)}
	g.db.SetMaxOpenConns(1)
	config.BatchStatements, config.DenyCacheTTL, config.Timeout = 1, -1, time.Minute
	g.Limiter = newSQL(t, g.db, &config)
	return g
}

// idle opens so many connections and leaves them to the pool.
func idle(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	var conns []*sql.Conn
	for range n {
		c, err := db.Conn(t.Context())
		if err == nil {
			err = c.PingContext(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func (g *sqlDoorway) close() {
	var err error
	if g.taken, err = g.db.Conn(context.Background()); err != nil {
		g.t.Fatal(err)
	}
	g.asked = 0
}

func (g *sqlDoorway) open() {
	if err := g.taken.Close(); err != nil {
		g.t.Fatal(err)
	}
}

// ask asks on a goroutine of its own and returns once the ask is in its place.
func (g *sqlDoorway) ask(ctx context.Context, ask limiter.Ask) <-chan answer {
	before := g.db.Stats().WaitCount
	answers := meanwhile(ctx, g.Limiter, ask)
	if g.asked == 0 {
		for g.db.Stats().WaitCount == before {
			runtime.Gosched()
		}
		g.first = g.Waiting()
	}
	for g.Waiting() < g.first+g.asked {
		runtime.Gosched()
	}
	g.asked++
	return answers
}

// TestSQLBatchesDecideAsMemory: as TestBatchesDecideAsMemory.
func TestSQLBatchesDecideAsMemory(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		address := newDatabase(t)
		for _, base := range variants(10, 10*time.Second) {
			t.Run(variant(base), func(t *testing.T) {
				clock := new(conformance.Clock)
				g := newSQLDoorway(t, driver, address, limiter.Config{Now: clock.Now})
				histories, variantName := 0, base.Name
				rapid.Check(t, func(rt *rapid.T) {
					histories++
					base.Name = fmt.Sprintf("%s-%d", variantName, histories)
					batchesDecideAsMemory(rt, g, clock, base, 1)
				})
			})
		}
	})
}

// awkward are keys that a careless array would read as something else.
var awkward = []string{
	`NULL`, `null`, `"`, `""`, `'`, `''`, `\`, `\\`, `\"`, `{`, `}`, `{}`, `{a,b}`, `a,b`, ` `, ` a `, `$1`, "a\nb", "\t", "\x01",
	`"a","b"`, `\x41`, `E'\''`, `--`, `é`, `漢字`, "e\u0301", "👩‍💻", `%s`, `;`, strings.Repeat(`"\`, 512),
}

// TestSQLAwkwardKeys sends them in one statement and finds each as it is.
func TestSQLAwkwardKeys(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		address := newDatabase(t)
		g := newSQLDoorway(t, driver, address, limiter.Config{})
		pool := connect(t, address)
		for _, p := range variants(10, 1000*time.Hour) {
			g.close()
			answers := []<-chan answer{g.ask(t.Context(), p.Ask("first", 1))}
			for _, key := range awkward {
				answers = append(answers, g.ask(t.Context(), p.Ask(key, 1)), g.ask(t.Context(), p.Ask(key, 1)))
			}
			g.open()
			for i, a := range answers {
				if r := soon(t, fmt.Sprint("ask ", i), a); !r.Allowed || !near(r.Level, float64(1+max(0, i-1)%2)) {
					t.Errorf("%s: ask %d: %+v", variant(p), i, r)
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
				if granted != 2 { // of both asks at once: so it was a batch
					t.Errorf("%s: %q: the last statement granted %v", variant(p), key, granted)
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
				t.Errorf("%s: found %q\nwant %q", variant(p), found, want)
			}
			if _, err := g.Allow(t.Context(), p, ""); !errors.Is(err, limiter.ErrInvalid) {
				t.Errorf("the empty key: %v", err)
			}
		}
	})
}

// TestSQLExactCosts: what is sent, alone or in an array, is stored to the last bit.
func TestSQLExactCosts(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		address := newDatabase(t)
		g := newSQLDoorway(t, driver, address, limiter.Config{})
		pool := connect(t, address)
		small := limiter.Policy{Name: "small", Algorithm: limiter.FixedWindow, Limit: 1, Period: 1000 * time.Hour}
		large := limiter.Policy{Name: "large", Algorithm: limiter.FixedWindow, Limit: 1 << 53, Period: 1000 * time.Hour}
		costs := map[string]limiter.Ask{}
		for i, cost := range []float64{1e-9, 0.1, 0.1 + 0.2, 1.0 / 3} {
			costs[fmt.Sprint("s", i)] = small.Ask(fmt.Sprint("s", i), cost)
		}
		for i, cost := range []float64{1 << 53, 1<<53 - 1, 1e15 + 1, 12345678.9} {
			costs[fmt.Sprint("l", i)] = large.Ask(fmt.Sprint("l", i), cost)
		}
		for _, alone := range []bool{false, true} {
			if !alone {
				g.close()
			}
			var answers []<-chan answer
			for _, ask := range costs {
				if alone {
					must(t)(g.Do(t.Context(), ask))
					continue
				}
				answers = append(answers, g.ask(t.Context(), ask))
			}
			if !alone {
				g.open()
			}
			for _, a := range answers {
				soon(t, "an ask", a)
			}
			for key, ask := range costs {
				if got := one[float64](t, pool, "SELECT cost FROM pglimit_fixed_window WHERE key = $1", key); got != ask.Cost {
					t.Errorf("%v is stored as %v", ask.Cost, got)
				}
			}
			exec(t, pool, "DELETE FROM pglimit_fixed_window")
		}
	})
}

// TestSQLOneBadAskFailsAlone: as TestOneBadAskFailsAlone.
func TestSQLOneBadAskFailsAlone(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		u, err := url.Parse(newDatabase(t))
		if err != nil {
			t.Fatal(err)
		}
		u.Path = "/" + one[string](t, latin1(t), "SELECT current_database()")
		q := u.Query()
		q.Set("client_encoding", "UTF8")
		u.RawQuery = q.Encode()
		g := newSQLDoorway(t, driver, u.String(), limiter.Config{})
		p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
		g.close()
		var answers []<-chan answer
		keys := []string{"first", "a", "not in Latin-1: 猫", "z", "a"}
		for _, key := range keys {
			answers = append(answers, g.ask(t.Context(), p.Ask(key, 1)))
		}
		g.open()
		for i, a := range answers {
			got := <-a
			if bad := i == 2; bad != errors.Is(got.err, limiter.ErrInvalid) || bad == got.Allowed {
				t.Errorf("%q: %+v, %v", keys[i], got.Result, got.err)
			}
		}
	})
}

// TestSQLHeldRowsStallNobody: while a transaction holds a row, other keys have
// their answers, and then those who wait for it.
func TestSQLHeldRowsStallNobody(t *testing.T) {
	overDrivers(t, func(t *testing.T, driver string) {
		address := newDatabase(t)
		for _, most := range []int{4, 0} { // connections
			db := connectSQL(t, driver, address)
			db.SetMaxOpenConns(most)
			l := newSQL(t, db, &limiter.Config{BreakAfter: 1})
			for _, p := range variants(heldLimit, 1000*time.Hour) {
				p.Name += fmt.Sprint("-of-", most)
				tx, err := db.Begin()
				if err != nil {
					t.Fatal(err)
				}
				must(t)(l.InSQLTx(tx).AllowN(t.Context(), p, "m", heldLimit/2))
				var held []<-chan answer
				for i := range heldLimit {
					held = append(held, meanwhile(t.Context(), l, p.Ask("m", 1)))
					waiting(t, l, i+1)
				}
				for _, key := range neighbours() {
					soon(t, "a neighbour", meanwhile(t.Context(), l, p.Ask(key, 1)))
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				for i, a := range held {
					if r := soon(t, "the key that was held", a); r.Allowed != (i < heldLimit/2) {
						t.Errorf("%s: ask %d: %+v", variant(p), i, r)
					}
				}
			}
		}
	})
}
