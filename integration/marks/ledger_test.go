package marks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

var credits = limiter.Policy{Name: "credits", Algorithm: limiter.Balance, Overdraft: 10, Ledger: true}

// entries returns the ledger of a key, the oldest first.
func entries(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string) []policies.LedgerEntry {
	t.Helper()
	live := must.OK(policies.Open(t.Context(), pool, nil))(t)
	defer live.Close()
	all := must.OK(live.Ledger(t.Context(), p.Name, key, policies.LedgerPage{Limit: 10_000}))(t)
	slices.Reverse(all)
	return all
}

// told is a ledger as text: each entry's kind, units, what is left and its lots.
func told(entries []policies.LedgerEntry) string {
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "%s %v=%v", e.Kind, e.Units, e.Left)
		for _, l := range e.Lots {
			fmt.Fprintf(&b, " %d:%v", l.Number, l.Units)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// balanced fails the test unless a key's ledger has what its row has: in sum, of each lot, and of
// what has expired. Each entry goes on from the one before, and its lots have its units.
func balanced(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string) (all []policies.LedgerEntry) {
	t.Helper()
	all = entries(t, pool, p, key)
	sum, expired, lots, number := 0.0, 0.0, map[int64]float64{}, int64(0)
	for _, e := range all {
		if e.Kind == "open" {
			sum, lots = 0, map[int64]float64{}
		}
		if e.Kind == "open" || e.Kind == "reset" {
			expired = 0
		}
		if e.Kind == "expire" {
			expired -= e.Units
		}
		sum += e.Units
		ofLots := 0.0
		for _, l := range e.Lots {
			ofLots += l.Units
			if lots[l.Number] += l.Units; math.Abs(lots[l.Number]) < 1e-9 {
				delete(lots, l.Number)
			}
		}
		if math.Abs(sum-e.Left) > 1e-9 || math.Abs(ofLots-e.Units) > 1e-9 || e.Number <= number {
			t.Errorf("key %s: entry %+v after number %d: the sum of units is %v and that of its lots %v", key, e, number, sum, ofLots)
		}
		number = e.Number
	}
	row := testworld.Value[[]float64](t, pool, `SELECT coalesce((SELECT ARRAY[t.units + t.later - t.debt, t.total_expired, t.debt] FROM pglimit_balance AS t WHERE policy = $1 AND key = $2), '{0,0,0}')`, p.Name, key)
	if opened := slices.ContainsFunc(all, func(e policies.LedgerEntry) bool { return e.Kind == "open" }); math.Abs(row[0]-sum) > 1e-9 || !opened && math.Abs(row[1]-expired) > 1e-9 || math.Abs(row[2]+lots[0]) > 1e-9 {
		t.Errorf("key %s: the balance, the expired and the debt are %v, and of the ledger %v, %v and %v:\n%s", key, row, sum, expired, -lots[0], told(all))
	}
	delete(lots, 0)
	has := testworld.Value[string](t, pool, `SELECT coalesce(string_agg(l.number || ':' || CASE WHEN l.n = 1 THEN t.units ELSE l.has END, ' ' ORDER BY l.number), '')
		FROM pglimit_balance AS t, ROWS FROM (unnest(t.numbers), unnest(t.lefts)) WITH ORDINALITY AS l (number, has, n) WHERE policy = $1 AND key = $2`, p.Name, key)
	var of []string
	for n := range int64(1000) {
		if units, ok := lots[n]; ok {
			of = append(of, fmt.Sprintf("%d:%v", n, units))
		}
	}
	if got := strings.Join(of, " "); got != has {
		t.Errorf("key %s: the lots are %s, and of the ledger %s:\n%s", key, has, got, told(all))
	}
	return all
}

// TestLedgerOfEachVerb: what each verb enters, with lots, notes and the IDs of reservations.
func TestLedgerOfEachVerb(t *testing.T) {
	t.Parallel()
	pool, clock, p, ctx := testworld.NewPool(t), new(conformance.Clock), credits, t.Context()
	hour := time.Hour.Microseconds()
	clock.Set(100 * hour)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now})
	ends := func(hours int64) time.Time { return conformance.Epoch.Add(time.Duration(hours) * time.Hour) }
	var want strings.Builder
	expect := func(entered string) {
		t.Helper()
		want.WriteString(entered)
		if got := told(balanced(t, pool, p, "k")); got != want.String() {
			t.Fatalf("got\n%s, want\n%s", got, want.String())
		}
	}
	reserved := func(r limiter.Reservation, err error) limiter.Reservation {
		t.Helper()
		must.Succeed(t, err)
		return r
	}
	grant := func(units float64, o limiter.GrantOptions) {
		t.Helper()
		testworld.Must(t)(l.Grant(ctx, p, "k", units, o))
	}
	testworld.Must(t)(l.AllowN(ctx, p, "k", 4)) // of the overdraft
	expect("spend -4=-4 0:-4\n")
	grant(10, limiter.GrantOptions{Expires: ends(101), Source: "gift", Note: "welcome"})
	expect("grant 10=6 1:6 0:4\n")
	grant(20, limiter.GrantOptions{Source: "invoice 7", IdempotencyKey: "invoice 7", Note: "paid"})
	grant(20, limiter.GrantOptions{Source: "invoice 7", IdempotencyKey: "invoice 7"}) // again
	expect("grant 20=26 2:20\n")
	order := limiter.Request{Policy: p, Key: "k", Cost: 8, Note: "order 1", IdempotencyKey: "order 1"}
	spent := testworld.Must(t)(l.Do(ctx, order))
	testworld.Must(t)(l.Do(ctx, order)) // again
	expect("spend -8=18 1:-6 2:-2\n")
	testworld.Must(t)(l.AllowN(ctx, p, "k", 1000)) // denied
	expect("")
	testworld.Must(t)(l.AllowUpTo(ctx, p, "k", 3))
	expect("spend -3=15 2:-3\n")
	testworld.Must(t)(l.Charge(ctx, p, "k", 16))
	expect("charge -16=-1 2:-15 0:-1\n")
	testworld.Must(t)(l.Refund(ctx, p, "k", 3))
	expect("refund 3=2 3:2 0:1\n")
	testworld.Must(t)(l.Undo(ctx, p, "k", spent))
	expect("undo 8=10 1:8\n")
	held := reserved(l.Reserve(ctx, limiter.Request{Policy: p, Key: "k", Cost: 9, Note: "work"}, 24*time.Hour))
	expect("reserve -9=1 1:-8 3:-1\n")
	testworld.Must(t)(l.Settle(ctx, held.ID, 9))
	expect("settle 0=1\n")
	held = reserved(l.ReserveUpTo(ctx, limiter.Request{Policy: p, Key: "k", Cost: 5, Note: "work"}, 24*time.Hour))
	expect("reserve -5=-4 3:-1 0:-4\n")
	must.Succeed(t, l.Cancel(ctx, held.ID))
	expect("cancel 5=1 3:1 0:4\n")
	grant(6, limiter.GrantOptions{Expires: ends(110), Priority: -1})
	grant(2, limiter.GrantOptions{Expires: ends(110), Priority: -2})
	expect("grant 6=7 4:6\ngrant 2=9 5:2\n")
	first := reserved(l.Reserve(ctx, p.Request("k", 3), 4*time.Hour))
	expect("reserve -3=6 5:-2 4:-1\n")
	clock.Set(110 * hour)
	testworld.Must(t)(l.AllowN(ctx, p, "k", 100)) // denied; the reservation and the lots have expired
	all := balanced(t, pool, p, "k")
	if got := told(all[len(all)-3:]); got != "expire -5=1 4:-5\nreturn 3=4 5:2 4:1\nexpire -3=1 5:-2 4:-1\n" {
		t.Errorf("an expired reservation of expired lots entered\n%s", got)
	}
	want.Reset()
	want.WriteString(told(all))
	testworld.Must(t)(l.Settle(ctx, first.ID, 2)) // late
	expect("settle -2=-1 3:-1 0:-1\n")
	must.Succeed(t, l.Reset(ctx, p, "k"))
	expect("reset 1=0 0:1\n")
	grant(5, limiter.GrantOptions{})
	expect("grant 5=5 1:5\n")

	notes, ids, keys := map[string]int{}, map[string][]string{}, 0
	for _, e := range balanced(t, pool, p, "k") {
		if notes[e.Note]++; e.Reservation != "" {
			ids[e.Reservation] = append(ids[e.Reservation], e.Kind)
		}
		if e.IdempotencyKey != "" {
			keys++
		}
	}
	if notes["welcome"] != 1 || notes["paid"] != 1 || notes["order 1"] != 1 || notes["work"] != 4 || keys != 2 {
		t.Errorf("the notes are %v, and %d entries have an idempotency key", notes, keys)
	}
	if got := ids[held.ID]; !slices.Equal(got, []string{"reserve", "cancel"}) || !slices.Equal(ids[first.ID], []string{"reserve", "return", "settle"}) || len(ids) != 3 {
		t.Errorf("the reservations have %v", ids)
	}
}

// turn makes a round of calls of all verbs in a random order.
func turn(ctx context.Context, l *limiter.Limiter, p limiter.Policy, key string, r *rand.Rand) error {
	var errs []error
	note := func(_ limiter.Result, err error) { errs = append(errs, err) }
	request := func(units float64) limiter.Request {
		return limiter.Request{Policy: p, Key: key, Cost: units, Note: "n"}
	}
	calls := []func(){
		func() {
			o := limiter.GrantOptions{Priority: r.IntN(3)}
			if r.IntN(2) == 0 {
				o.Expires = time.Now().Add(time.Duration(1+r.IntN(50)) * time.Millisecond)
			}
			if _, err := l.Grant(ctx, p, key, float64(1+r.IntN(9)), o); !errors.Is(err, limiter.ErrInvalid) { // its end is past
				errs = append(errs, err)
			}
		},
		func() { note(l.AllowN(ctx, p, key, float64(1+r.IntN(9)))) },
		func() { note(l.AllowUpTo(ctx, p, key, float64(1+r.IntN(20)))) },
		func() { note(l.Charge(ctx, p, key, float64(1+r.IntN(4)))) },
		func() { note(l.Refund(ctx, p, key, float64(1+r.IntN(9)))) },
		func() {
			result, err := l.AllowN(ctx, p, key, 3)
			note(result, err)
			note(l.Undo(ctx, p, key, result))
		},
		func() {
			once := request(2)
			once.IdempotencyKey = fmt.Sprint(r.IntN(20))
			note(l.Do(ctx, once))
		},
		func() {
			_, err := l.AllowAll(ctx, request(1), request(2), p.Request(key+" too", 1))
			errs = append(errs, err)
		},
		func() {
			_, err := l.AllowAnySplit(ctx, request(4), p.Request(key+" too", 4))
			errs = append(errs, err)
		},
		func() {
			held, err := l.Reserve(ctx, request(float64(1+r.IntN(9))), time.Hour)
			if errs = append(errs, err); held.ID == "" {
				return
			}
			if r.IntN(3) == 0 {
				errs = append(errs, l.Cancel(ctx, held.ID))
				return
			}
			note(l.Settle(ctx, held.ID, float64(r.IntN(12))))
		},
	}
	r.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for _, call := range calls {
		call()
	}
	return errors.Join(errs...)
}

// TestLedgerIsTheBalance: callers of all verbs at once, over each driver. Whatever they change, the
// sums of the entries are what the row has.
func TestLedgerIsTheBalance(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	for name, open := range testworld.Drivers(t, address) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(nil)
			for round := range 3 {
				together(6, func(i int) {
					if err := turn(t.Context(), l, credits, name, rand.New(rand.NewPCG(uint64(round), uint64(i)))); err != nil {
						t.Error(err)
					}
				})
				if all := balanced(t, pool, credits, name); len(all) < 20 {
					t.Errorf("there are %d entries", len(all))
				}
				balanced(t, pool, credits, name+" too")
			}
		})
	}
}

// TestLedgerSwitched: a ledger that begins, or goes on after changes without entries, begins with
// what there is. Without Ledger nothing is entered, and a rollback leaves no entry.
func TestLedgerSwitched(t *testing.T) {
	t.Parallel()
	pool, p, ctx := testworld.NewPool(t), credits, t.Context()
	l := testworld.NewLimiter(t, pool, nil)
	off := p
	off.Ledger = false
	testworld.Must(t)(l.Grant(ctx, off, "k", 5, limiter.GrantOptions{}))
	testworld.Must(t)(l.Grant(ctx, off, "k", 7, limiter.GrantOptions{}))
	if got := entries(t, pool, p, "k"); len(got) != 0 {
		t.Errorf("without a ledger there are %v", got)
	}
	testworld.Must(t)(l.AllowN(ctx, p, "k", 6))
	want := "open 12=12 1:5 2:7\nspend -6=6 1:-5 2:-1\n"
	for _, change := range []func() error{
		func() error { _, err := l.AllowN(ctx, off, "k", 2); return err },
		func() error { _, err := l.Charge(ctx, off, "k", 2); return err },
		func() error { _, err := l.Refund(ctx, off, "k", 2); return err },
		func() error { _, err := l.Grant(ctx, off, "k", 2, limiter.GrantOptions{}); return err },
		func() error {
			held, err := l.Reserve(ctx, off.Request("k", 2), time.Hour)
			return errors.Join(err, l.Cancel(ctx, held.ID))
		},
	} {
		must.Succeed(t, change())
		use := must.OK(l.Usage(ctx, p, "k"))(t)
		testworld.Must(t)(l.AllowN(ctx, p, "k", 1))
		got := balanced(t, pool, p, "k")
		if e := got[len(got)-2]; e.Kind != "open" || e.Units != use.Result.Remaining-p.Overdraft {
			t.Errorf("after a change without an entry there is %+v, of %v", e, use)
		}
	}
	if got := told(balanced(t, pool, p, "k")); !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	before := len(balanced(t, pool, p, "k"))
	tx := must.OK(pool.Begin(ctx))(t)
	testworld.Must(t)(l.InTx(tx).AllowN(ctx, p, "k", 1))
	must.Succeed(t, tx.Rollback(ctx))
	must.Succeed(t, l.Reset(ctx, p, "none")) // of a key without a row
	if after := len(balanced(t, pool, p, "k")); after != before {
		t.Errorf("a rollback left %d entries", after-before)
	}
	swept := testworld.NewJanitor(t, pool, &janitor.Config{Now: func() time.Time { return time.Now().AddDate(11, 0, 0) }})
	must.OK(swept.Sweep(ctx))(t)
	if left := len(entries(t, pool, p, "k")); left != 0 {
		t.Errorf("after eleven years %d entries are left", left)
	}
}

// TestFunctionsRefuseLedgers: the SQL functions that consume, grant or refund under a policy with a
// ledger fail, and change nothing.
func TestFunctionsRefuseLedgers(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, ledger) VALUES ('credits', 'balance', true)`)
	for _, call := range []string{
		`allow('credits', 'k', 1)`, `allow_up_to('credits', 'k', 1)`, `charge('credits', 'k', 1)`, `grant('credits', 'k', 1)`, `refund('credits', 'k', 1)`,
		`reserve('credits', 'k', 1, 60)`, `allow_all(ARRAY['credits'], ARRAY['k'], ARRAY[1])`, `allow_any(ARRAY['credits'], ARRAY['k'], 1)`,
	} {
		_, err := pool.Exec(t.Context(), `SELECT pglimit.`+call)
		var of *pgconn.PgError
		if !errors.As(err, &of) || of.Code != "0A000" || !strings.Contains(of.Message, "ledger") {
			t.Errorf("%s: %v", call, err)
		}
	}
	if rows := testworld.Value[int64](t, pool, `SELECT count(*) FROM pglimit_balance`); rows != 0 {
		t.Errorf("there are %d rows", rows)
	}
}
