package decide

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// otherClock creates a database whose clock is an expression of the test, in which real is
// the true time. clock_timestamp(), which compares the clocks, draws each of the readings;
// statement_timestamp(), which decides, is half-way from the last to the next.
func otherClock(t *testing.T, expression string) (address string, set func(expression string)) {
	t.Helper()
	address = testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	set = func(expression string) {
		t.Helper()
		testworld.Exec(t, pool, `CREATE OR REPLACE FUNCTION other.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
			AS $$ SELECT `+expression+` FROM pg_catalog.clock_timestamp() AS real $$;
			CREATE OR REPLACE FUNCTION other.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE
			AS $$ SELECT `+strings.ReplaceAll(expression, "nextval('other.readings')", "(SELECT last_value + 0.5 FROM other.readings)")+`
			      FROM pg_catalog.statement_timestamp() AS real $$`)
	}
	testworld.Exec(t, pool, `CREATE SCHEMA other`)
	testworld.Exec(t, pool, `CREATE SEQUENCE other.readings`)
	testworld.Exec(t, pool, `GRANT USAGE ON SCHEMA other TO PUBLIC; GRANT ALL ON SEQUENCE other.readings TO PUBLIC`)
	set(expression)
	testworld.Exec(t, pool, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = other, pg_catalog, public', current_database()); END $$`)
	return address, set
}

// offTheHour waits until no zone's hour is about to begin or has just begun, by this
// machine's clock and by one that far ahead. What follows is in one hour.
func offTheHour(t testing.TB, ahead time.Duration) {
	t.Helper()
	testworld.Eventually(t, "an hour has begun", func(context.Context) (bool, error) {
		for _, at := range []time.Time{time.Now(), time.Now().Add(ahead)} {
			const half = 30 * time.Minute // some zones differ by that much
			if since := at.Sub(at.Truncate(half)); since < 5*time.Second || since > half-40*time.Second {
				return false, nil
			}
		}
		return true, nil
	})
}

var queryName = regexp.MustCompile(`-- name: (\w+)`)

// namesOf returns the names of the statements sent since the last Take.
func namesOf(sent *testworld.Trace) (names []string) {
	for _, together := range sent.Take() {
		for _, q := range together {
			if name := queryName.FindStringSubmatch(q.SQL); name != nil {
				names = append(names, name[1])
			}
		}
	}
	return names
}

// byTheDatabase expects that a decision was made in the period of the database's clock,
// which is about that far ahead of this machine's.
func byTheDatabase(t *testing.T, ahead time.Duration, p limiter.Policy, r limiter.Result) {
	t.Helper()
	if off := time.Until(r.At) - ahead; off.Abs() > 10*time.Minute {
		t.Errorf("decided at %v, which is %v from the database's clock", r.At, off)
	}
	model := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return r.At }})
	if want := testworld.Must(t)(model.Allow(t.Context(), p, "k")); r.ResetAfter != want.ResetAfter {
		t.Errorf("%s, %v ahead: the window ends at %v, want %v", p.Calendar, ahead, r.At.Add(r.ResetAfter), r.At.Add(want.ResetAfter))
	}
}

// spend is a way to use one unit of a key.
type spend func(*limiter.Limiter, limiter.Request) (limiter.Result, error)

// spends are all of them: single ones, which later take one statement, and others.
func spends(t *testing.T, pool *pgxpool.Pool) (single, others map[string]spend) {
	ctx := t.Context()
	plain := limiter.Policy{Name: "plain", Algorithm: limiter.GCRA, Limit: 1000, Period: time.Hour}
	all := func(r limiter.Results, err error) (limiter.Result, error) {
		if err != nil {
			return limiter.Result{}, err
		}
		return r.PerRequest[1], nil
	}
	reserved := func(h limiter.Reservation, err error) (limiter.Result, error) { return h.Result, err }
	each := func(d verbs.Limiter, in limiter.Request) map[string]func() (limiter.Result, error) {
		return map[string]func() (limiter.Result, error){
			"Allow":    func() (limiter.Result, error) { return d.Do(ctx, in) },
			"UpTo":     func() (limiter.Result, error) { return d.AllowUpTo(ctx, in.Policy, in.Key, in.Cost) },
			"Charge":   func() (limiter.Result, error) { return d.Charge(ctx, in.Policy, in.Key, in.Cost) },
			"AllowAll": func() (limiter.Result, error) { return all(d.AllowAll(ctx, plain.Request(in.Key, 1), in)) },
			"Reserve":  func() (limiter.Result, error) { return reserved(d.Reserve(ctx, in, time.Hour)) },
			"once": func() (limiter.Result, error) {
				in.IdempotencyKey = fmt.Sprint(rand.Uint64())
				return d.Do(ctx, in)
			},
		}
	}
	single, others = map[string]spend{}, map[string]spend{}
	for _, name := range []string{"Allow", "UpTo", "Charge", "AllowAll", "Reserve", "once"} {
		outside := func(l *limiter.Limiter, in limiter.Request) (limiter.Result, error) { return each(l, in)[name]() }
		inside := func(l *limiter.Limiter, in limiter.Request) (limiter.Result, error) {
			return testworld.InTxOf(t, pool, l, func(tx *limiter.Tx) (limiter.Result, error) { return each(tx, in)[name]() })
		}
		if name == "Allow" || name == "UpTo" || name == "Charge" {
			single[name], single[name+" in a transaction"] = outside, inside
		} else {
			others[name], others[name+" in a transaction"] = outside, inside
		}
	}
	return single, others
}

// TestCalendarClocksApart: whatever the two clocks read, the database's selects the
// period, for every verb, and after the first request in one statement; as for a router of
// shards, too.
func TestCalendarClocksApart(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-400 * 24 * time.Hour, -3 * time.Hour, -40 * time.Minute, -time.Second, 40 * time.Minute, 3 * time.Hour, 50 * 24 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			address, _ := otherClock(t, fmt.Sprintf("real + interval '%d s'", int(ahead.Seconds())))
			var sent testworld.Trace
			pool := testworld.Connect(t, address, sent.On)
			single, others := spends(t, pool)
			for i, calendar := range limiter.Calendars() {
				sharding := []limiter.Sharding{limiter.ShardingAuto, limiter.ShardingRouter}[i%2]
				p := limiter.Policy{Name: string(calendar), Algorithm: limiter.FixedWindow, Limit: 10, Calendar: calendar, TimeZone: "America/Havana"}
				for way, request := range single {
					l := testworld.NewLimiter(t, pool, &limiter.Config{Sharding: sharding})
					offTheHour(t, ahead)
					sent.Take()
					byTheDatabase(t, ahead, p, testworld.Must(t)(request(l, p.Request(way, 1))))
					first := namesOf(&sent)
					byTheDatabase(t, ahead, p, testworld.Must(t)(request(l, p.Request(way, 1))))
					again := namesOf(&sent)
					// At 40 minutes it depends on the time within the hour.
					surely := calendar != limiter.Hour || ahead.Abs() != 40*time.Minute
					if surely && len(again) != 1 || ahead.Abs() > time.Hour && calendar == limiter.Hour && !slices.Contains(first, "Clock") || ahead.Abs() < time.Minute && len(first) != 1 {
						t.Errorf("%s, %s: first %v, then %v were sent", way, calendar, first, again)
					}
					// Reads do not need the difference of the clocks.
					c := testworld.Must(t)(l.Check(t.Context(), p, way, 0))
					byTheDatabase(t, ahead, p, c)
					if names := namesOf(&sent); len(names) != 1 || c.Level != 2 {
						t.Errorf("Check, %s: level %v; %v were sent", calendar, c.Level, names)
					}
				}
				for way, request := range others {
					l := testworld.NewLimiter(t, pool, &limiter.Config{Sharding: sharding})
					offTheHour(t, ahead)
					r := testworld.Must(t)(request(l, p.Request(way, 1)))
					byTheDatabase(t, ahead, p, r)
					if !r.Allowed || !testworld.Near(testworld.Level(t, l, p, way), 1) {
						t.Errorf("%s, %s: %+v", way, calendar, r)
					}
				}
			}
		})
	}
}

// TestCalendarBatchWithClocksApart: if some keys of a batch have calendars, the keys
// without are decided once, and those with are sent again.
func TestCalendarBatchWithClocksApart(t *testing.T) {
	t.Parallel()
	const ahead = 75 * 24 * time.Hour
	address, _ := otherClock(t, "real + interval '75 days'")
	g := testworld.NewGate(t, address, limiter.Config{})
	plain := limiter.Policy{Name: "plain", Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour}
	policies := append(calendarPolicies(10), plain)
	offTheHour(t, ahead)
	g.Shut()
	first := g.Queue(t.Context(), plain.Request("first", 1)) // it does not know that the clocks differ
	var answers []<-chan testworld.Answer
	for range 3 {
		for _, p := range policies {
			answers = append(answers, g.Queue(t.Context(), p.Request("k", 1)))
		}
	}
	g.Reopen()
	testworld.ResultOf(t, "the first", first)
	for i, a := range answers {
		r := testworld.ResultOf(t, "one of the batch", a)
		p := policies[i%len(policies)]
		if r.Level != float64(1+i/len(policies)) {
			t.Errorf("request %d for %s: %+v", i/len(policies), p.Name, r)
		}
		if p.Calendar != "" {
			byTheDatabase(t, ahead, p, r)
		}
	}
	for _, p := range policies {
		if r := testworld.Must(t)(g.Check(t.Context(), p, "k", 0)); r.Level != 3 {
			t.Errorf("%s in the end: %+v", p.Name, r)
		}
	}
}

// TestCalendarClockThatJumps: if the database's clock is in another period on each
// attempt, the error names both clocks, and nothing was counted. Of a key that was new
// there is a row without a window.
func TestCalendarClockThatJumps(t *testing.T) {
	t.Parallel()
	address, _ := otherClock(t, "real + nextval('other.readings') * interval '100 days'")
	var sent testworld.Trace
	pool := testworld.Connect(t, address)
	g := testworld.NewGate(t, address, limiter.Config{BreakAfter: 1}, sent.On) // the server did answer
	jumps := limiter.Policy{Name: "jumps", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Day}
	plain := limiter.Policy{Name: "plain", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour}
	offTheHour(t, 0) // nor a month, which check requests
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, limiter.ErrMisconfigured) || !strings.Contains(err.Error(), "its clock, at 20") ||
			!strings.Contains(err.Error(), "this machine's is at "+time.Now().UTC().Format("2006-01-")) {
			t.Fatalf("%s: got %v", what, err)
		}
	}
	_, err := g.Allow(t.Context(), jumps, "k")
	check("Allow", err)
	if names := namesOf(&sent); len(names) != 6 {
		t.Errorf("%d statements were sent: %v", len(names), names)
	}
	_, err = g.Charge(t.Context(), jumps, "k", 1)
	check("Fill", err)

	g.Shut()
	first := g.Queue(t.Context(), plain.Request("first", 1))
	with, without := g.Queue(t.Context(), jumps.Request("k", 1)), g.Queue(t.Context(), plain.Request("k", 1))
	g.Reopen()
	testworld.ResultOf(t, "the first", first)
	check("in a batch", (<-with).Err)
	if r := testworld.ResultOf(t, "without a calendar, in a batch", without); !r.Allowed || r.Level != 1 {
		t.Errorf("without a calendar, in a batch: %+v", r)
	}
	if n := testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_fixed_window WHERE policy = 'jumps' AND (level > 0 OR ends_at_us > 0 OR blocked_until_us > 0)"); n != 0 {
		t.Errorf("%d rows have units, a window or a block", n)
	}
}

// TestCalendarClockSetWhileHeld: the database's clock is set to another month while a
// request waits for a locked row. The clocks are compared once the row is free: a
// statement that leaves a row unchanged locks it too.
func TestCalendarClockSetWhileHeld(t *testing.T) {
	t.Parallel()
	address, set := otherClock(t, "real")
	var sent testworld.Trace
	business := testworld.Connect(t, address)
	l := testworld.NewGate(t, address, limiter.Config{BreakAfter: 1}, testworld.FourConnections, sent.On).Limiter
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Month}
	tx := testworld.Begin(t, business, pgx.TxOptions{})
	testworld.Must(t)(l.InTx(tx).AllowN(t.Context(), p, "m", 5))
	held := testworld.Request(t.Context(), l, p.Request("m", 1))
	testworld.AwaitWaiting(t, l, 1)
	set("real + interval '90 days'")
	sent.Take()
	testworld.Eventually(t, "a statement is sent by the new clock", func(context.Context) (bool, error) { return len(sent.Take()) > 0, nil })
	testworld.Commit(t, tx)
	r := testworld.ResultOf(t, "the key that was held", held)
	if names := namesOf(&sent); !slices.Contains(names, "Clock") {
		t.Errorf("the clocks were not compared: %v", names)
	}
	byTheDatabase(t, 90*24*time.Hour, p, r)
	if !r.Allowed || r.Level != 1 {
		t.Errorf("in a separate month: %+v", r)
	}
}

// TestCalendarTurnsBetweenAllowAlls: if the database's clock moves to another period than
// expected between two requests for keys that have room, the second is counted once, and in
// that period.
func TestCalendarTurnsBetweenAllowAlls(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, set := otherClock(t, "real")
	pool := testworld.Connect(t, address)
	for i, algorithm := range []limiter.Algorithm{limiter.TokenBucket, limiter.FixedWindow, limiter.SlidingWindowLog} { // whose table comes before, is the same, comes after
		ahead := time.Duration(i+1) * 60 * 24 * time.Hour
		l := testworld.NewLimiter(t, pool, nil)
		plain := limiter.Policy{Name: "plain", Algorithm: algorithm, Limit: 100, Period: 800_000 * time.Hour}
		month := limiter.Policy{Name: fmt.Sprint("month", i), Algorithm: limiter.FixedWindow, Limit: 100, Calendar: limiter.Month}
		set("real")
		for n := range 4 {
			if n == 2 {
				set(fmt.Sprintf("real + interval '%d s'", int(ahead.Seconds())))
			}
			all := testworld.MustAll(t)(l.AllowAll(ctx, plain.Request("k", 1), month.Request("k", 1)))
			if want := float64(n%2 + 1); !all.Allowed || !testworld.Near(all.PerRequest[1].Level, want) || math.Round(all.PerRequest[0].Level) != float64(n+1) { // the bucket leaks a little
				t.Errorf("%s, request %d: %+v, want level %v in the month", algorithm, n, all, want)
			}
		}
	}
}
