package marks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
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

// summed is every algorithm that has sums, in each of its forms.
func summed(limit float64, by limiter.Calendar) (all []limiter.Policy) {
	for _, p := range marked(limit) {
		p.Marks, p.UsageBy = "", by
		all = append(all, p)
	}
	return all
}

// sums returns the sums of a key, the oldest first.
func sums(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string) []float64 {
	t.Helper()
	return testworld.Value[[]float64](t, pool, `SELECT coalesce(array_agg(units ORDER BY at_us), '{}') FROM pglimit_usage WHERE policy = $1 AND key = $2`, p.Name, key)
}

// expectSums fails the test unless a key has these sums, but for the last digits.
func expectSums(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string, want ...float64) {
	t.Helper()
	got := sums(t, pool, p, key)
	same := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		same = same && math.Abs(got[i]-want[i]) < 1e-6
	}
	if !same {
		t.Errorf("%s, key %s: the sums are %v, not %v", testworld.Variant(p), key, got, want)
	}
}

// spent adds up what callers were answered.
type spent struct {
	sync.Mutex
	units float64
}

func (s *spent) add(units float64) {
	s.Lock()
	defer s.Unlock()
	s.units += units
}

// use makes a round of calls of all verbs that change units, and returns what their answers add up
// to.
func use(ctx context.Context, l *limiter.Limiter, p limiter.Policy, key, id string) (units float64, err error) {
	var errs []error
	answer := func(sign float64) func(limiter.Result, error) limiter.Result {
		return func(r limiter.Result, err error) limiter.Result {
			errs = append(errs, err)
			units += sign * r.Granted
			return r
		}
	}
	took, back := answer(1), answer(-1)
	undone := took(l.AllowN(ctx, p, key, 2.5))
	took(l.Allow(ctx, p, key))
	took(l.AllowUpTo(ctx, p, key, 7))
	took(l.AllowUpTo(ctx, p, key, 1.5))
	took(l.Charge(ctx, p, key, 3))
	once := p.Request(key, 2)
	once.IdempotencyKey = id
	took(l.Do(ctx, once))
	if r, err := l.Do(ctx, once); err != nil || !r.Replayed { // the first was denied
		took(r, err)
	}
	for _, requests := range [][]limiter.Request{{p.Request(key, 4)}, {p.Request(key, 1), p.Request(key, 2), p.Request(key+" too", 1)}} {
		results, err := l.AllowAll(ctx, requests...)
		for _, r := range results.PerRequest {
			took(r, err)
		}
	}
	either, err := l.AllowAnySplit(ctx, p.Request(key, 3), p.Request(key+" too", 3))
	for _, r := range either.PerRequest {
		took(r, err)
	}
	back(l.Refund(ctx, p, key, 1))
	back(l.Undo(ctx, p, key, undone))
	for _, actual := range []float64{0, 3, 6, -1} {
		r, err := l.Reserve(ctx, p.Request(key, 5), time.Hour)
		switch errs = append(errs, err); {
		case !r.Result.Allowed:
		case actual < 0:
			errs = append(errs, l.Cancel(ctx, r.ID))
		default:
			took(l.Settle(ctx, r.ID, actual))
		}
	}
	return units, errors.Join(errs...)
}

// TestUsageIsWhatWasAnswered: callers of all verbs at once, over each driver, many of them denied.
// A key's sum is what their answers granted, less what they gave back.
func TestUsageIsWhatWasAnswered(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	for name, open := range testworld.Drivers(t, address) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(nil)
			for _, p := range summed(100, limiter.Day) {
				var all spent
				key := name + testworld.Variant(p)
				together(8, func(i int) {
					units, err := use(t.Context(), l, p, key, fmt.Sprint(i))
					if all.add(units); err != nil {
						t.Errorf("%s: %v", testworld.Variant(p), err)
					}
				})
				total := 0.0
				for _, key := range []string{key, key + " too"} {
					for _, s := range sums(t, pool, p, key) { // two if midnight comes
						total += s
					}
				}
				if math.Abs(total-all.units) > 1e-6 || all.units < 50 {
					t.Errorf("%s: the sum is %v, and the answers are %v", testworld.Variant(p), total, all.units)
				}
			}
		})
	}
}

// TestUsageOfEachHour: a sum is of the hour of the decision's time, which never moves back. Units
// that Refund and Undo give back leave the hour in which they do, those of a reservation the hour
// in which it was made.
func TestUsageOfEachHour(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now})
	hour := time.Hour.Microseconds()
	clock.Set(100*hour - 1)
	for _, p := range summed(100, limiter.Hour) {
		testworld.Must(t)(l.AllowN(t.Context(), p, "k", 10))
	}
	reserved := map[string]string{}
	for _, p := range summed(100, limiter.Hour) {
		reserved[testworld.Variant(p)] = testworld.Reserve(t, l, p.Request("k", 20), 24*time.Hour).ID
		expectSums(t, pool, p, "k", 30)
	}
	clock.Set(100 * hour)
	var undone []limiter.Result
	for _, p := range summed(100, limiter.Hour) {
		undone = append(undone, testworld.Must(t)(l.AllowN(t.Context(), p, "k", 4)))
		expectSums(t, pool, p, "k", 30, 4)
	}
	clock.Set(99 * hour) // a clock that is behind counts as the key's last decision did
	for _, p := range summed(100, limiter.Hour) {
		testworld.Must(t)(l.AllowN(t.Context(), p, "k", 3))
		expectSums(t, pool, p, "k", 30, 7)
	}
	clock.Set(101*hour + 1)
	for i, p := range summed(100, limiter.Hour) {
		refunded := testworld.Must(t)(l.Refund(t.Context(), p, "k", 2)).Granted
		expectSums(t, pool, p, "k", 30, 7, -refunded)
		back := testworld.Must(t)(l.Undo(t.Context(), p, "k", undone[i])).Granted
		expectSums(t, pool, p, "k", 30, 7, -refunded-back)
		testworld.Must(t)(l.Settle(t.Context(), reserved[testworld.Variant(p)], 5))
		expectSums(t, pool, p, "k", 15, 7, -refunded-back)
		if refunded == 0 || back == 0 {
			t.Errorf("%s gave %v and %v back", testworld.Variant(p), refunded, back)
		}
	}
}

// TestUsageOfReservations: a reservation counts what it was settled with, once, however it ended
// before and whatever a Reset forgot.
func TestUsageOfReservations(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	clock.Set(100 * time.Hour.Microseconds())
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now})
	for _, p := range summed(100, limiter.Day) {
		clock.Set(100 * time.Hour.Microseconds())
		late := testworld.Reserve(t, l, p.Request("late", 10), time.Minute)
		swept := testworld.Reserve(t, l, p.Request("swept", 10), time.Minute)
		forgotten := testworld.Reserve(t, l, p.Request("forgotten", 10), time.Hour)
		must.Succeed(t, l.Reset(t.Context(), p, "forgotten"))
		expectSums(t, pool, p, "forgotten", 10)
		clock.Set(100*time.Hour.Microseconds() + 2*time.Minute.Microseconds())
		testworld.Must(t)(l.AllowN(t.Context(), p, "late", 100)) // which is denied, and ends what has expired
		testworld.Must(t)(l.Settle(t.Context(), forgotten.ID, 4))
		testworld.Must(t)(l.Settle(t.Context(), forgotten.ID, 4))
		expectSums(t, pool, p, "forgotten", 4)
		must.OK(testworld.NewJanitor(t, pool, &janitor.Config{Now: clock.Now}).Sweep(t.Context()))(t)
		expectSums(t, pool, p, "swept", 0)
		testworld.Must(t)(l.Settle(t.Context(), swept.ID, 12))
		expectSums(t, pool, p, "swept", 12)
		before := sums(t, pool, p, "late")[0]
		testworld.Must(t)(l.Settle(t.Context(), late.ID, 3))
		expectSums(t, pool, p, "late", before+3)
	}
}

// TestUsageInTx: a transaction that is rolled back counts nothing, and one that commits counts its
// units.
func TestUsageInTx(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	for _, w := range testworld.Ways(t, address, false) {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			for _, p := range summed(10, limiter.Day) {
				tx := w.Start(t)
				testworld.Must(t)(tx.AllowN(t.Context(), p, w.Name, 9))
				testworld.Must(t)(tx.Refund(t.Context(), p, w.Name, 2))
				tx.End(t, false)
				expectSums(t, pool, p, w.Name)
				tx = w.Start(t)
				testworld.Must(t)(tx.AllowN(t.Context(), p, w.Name, 5))
				tx.End(t, true)
				expectSums(t, pool, p, w.Name, 5)
			}
		})
	}
}

// TestUsageIsCommittedWithTheUnits: connections are ended at any moment, so that callers get no
// answer. The sum of each key is what its row counts.
func TestUsageIsCommittedWithTheUnits(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	l := testworld.NewLimiter(t, testworld.Connect(t, address, testworld.Setting("application_name", "ended")), nil)
	p := limiter.Policy{Name: "ended", Algorithm: limiter.FixedWindow, Limit: 1e6, Period: 1000 * time.Hour, UsageBy: limiter.Hour}
	var broken, done atomic.Int64
	together(16, func(i int) {
		for range 25 {
			key := fmt.Sprint(i % 4)
			r, err := l.AllowN(t.Context(), p, key, 8)
			_, refused := l.Refund(t.Context(), p, key, 3)
			reserved, unreserved := l.Reserve(t.Context(), p.Request(key, 10), time.Hour)
			if unreserved == nil {
				_, unreserved = l.Settle(t.Context(), reserved.ID, 7)
			}
			_, kept := l.Undo(t.Context(), p, key, r)
			if errors.Join(err, refused, unreserved, kept) != nil {
				broken.Add(1)
			}
			if done.Add(1)%40 == 0 {
				testworld.Exec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ended' AND datname = current_database()`)
			}
		}
	})
	rows := testworld.Value[string](t, pool, `SELECT coalesce(string_agg(format('%s: %s units, a sum of %s', t.key, t.level, u.units), E'\n'), '')
		FROM pglimit_fixed_window AS t LEFT JOIN (SELECT u.policy, u.key, sum(u.units) AS units FROM pglimit_usage AS u GROUP BY u.policy, u.key) AS u USING (policy, key)
		WHERE t.level IS DISTINCT FROM u.units OR t.level < 100`)
	if rows != "" {
		t.Errorf("these keys differ:\n%s", rows)
	}
	if broken.Load() == 0 {
		t.Errorf("no call was broken")
	}
}

// TestUsageOfTheSharedRow: keys that share a row under RestLimit have one sum, under the key "".
func TestUsageOfTheSharedRow(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "shared", Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour, MaxKeys: 1, RestLimit: 10, UsageBy: limiter.Day, Marks: "50%"}
	for _, key := range []string{"a", "b", "c"} {
		testworld.Must(t)(l.AllowN(t.Context(), p, key, 2))
	}
	expectSums(t, pool, p, "a", 2)
	expectSums(t, pool, p, "", 4)
}

// TestUsageIsForgotten: the janitor deletes a sum once its time is over, and not before. A policy
// without UsageBy has none.
func TestUsageIsForgotten(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now})
	hour := time.Hour.Microseconds()
	clock.Set(100*hour + 5)
	p := limiter.Policy{Name: "kept", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour, UsageBy: limiter.Hour, UsageFor: 2 * time.Hour}
	short, none := p, p
	short.UsageFor, none.UsageFor, none.UsageBy = time.Hour, 0, ""
	testworld.Must(t)(l.Allow(t.Context(), p, "k"))
	testworld.Must(t)(l.Allow(t.Context(), short, "short"))
	testworld.Must(t)(l.Allow(t.Context(), none, "none"))
	sweeper := testworld.NewJanitor(t, pool, &janitor.Config{Now: clock.Now})
	for _, at := range []struct {
		us   int64
		left string
	}{{102*hour - 1, "k short"}, {102 * hour, "k"}, {103*hour - 1, "k"}, {103 * hour, ""}} {
		clock.Set(at.us)
		must.OK(sweeper.Sweep(t.Context()))(t)
		if left := testworld.Value[string](t, pool, `SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM pglimit_usage`); left != at.left {
			t.Errorf("at %d the sums of %q are left, not of %q", at.us, left, at.left)
		}
	}
}

// TestUsageSince: Policies read the sums of a key by hour and by day, also where keys are hashed.
func TestUsageSince(t *testing.T) {
	t.Parallel()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	secret := []byte("a secret of sixteen bytes")
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, KeySecret: secret})
	p := limiter.Policy{Name: "read", Algorithm: limiter.TokenBucket, Limit: 1000, Period: time.Hour, UsageBy: limiter.Hour}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for i, at := range []time.Time{day.Add(-time.Second), day, day.Add(59 * time.Minute), day.Add(23 * time.Hour), day.Add(24 * time.Hour)} {
		clock.Set(at.Sub(conformance.Epoch).Microseconds())
		testworld.Must(t)(l.AllowN(t.Context(), p, "k", float64(int(1)<<i)))
	}
	live := must.OK(policies.Open(t.Context(), pool, &policies.Config{KeySecret: secret, DisableListen: true}))(t)
	defer live.Close()
	for _, c := range []struct {
		since time.Time
		by    limiter.Calendar
		want  string
	}{
		{day.Add(time.Minute), limiter.Hour, "[{2026-03-01 00:00:00 +0000 UTC 6} {2026-03-01 23:00:00 +0000 UTC 8} {2026-03-02 00:00:00 +0000 UTC 16}]"},
		{day.Add(time.Minute), limiter.Day, "[{2026-03-01 00:00:00 +0000 UTC 14} {2026-03-02 00:00:00 +0000 UTC 16}]"},
		{time.Time{}, limiter.Day, "[{2026-02-28 00:00:00 +0000 UTC 1} {2026-03-01 00:00:00 +0000 UTC 14} {2026-03-02 00:00:00 +0000 UTC 16}]"},
		{day.Add(100 * time.Hour), limiter.Hour, "[]"},
	} {
		if got := fmt.Sprint(must.OK(live.UsageSince(t.Context(), p.Name, "k", c.since, c.by))(t)); got != c.want {
			t.Errorf("since %v by %s: %s, not %s", c.since, c.by, got, c.want)
		}
	}
	if _, err := live.UsageSince(t.Context(), p.Name, "k", day, limiter.Month); !errors.Is(err, limiter.ErrInvalid) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := live.UsageSince(ctx, p.Name, "k", day, limiter.Day); err == nil {
		t.Error("a context that has ended is no error")
	}
}

// TestUsageThatNobodyRecords: requests whose units would be missing in a sum are refused, and
// nothing is counted.
func TestUsageThatNobodyRecords(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "refused", Algorithm: limiter.FixedWindow, Limit: 10, Period: time.Hour, UsageBy: limiter.Hour}
	testworld.StorePolicy(t, pool, p, false)
	_, routed := must.OK(limiter.New(pool, &limiter.Config{Sharding: limiter.ShardingRouter}))(t).Allow(t.Context(), p, "c")
	for what, err := range map[string]error{"a router": routed} {
		if !errors.Is(err, limiter.ErrUnsupported) || !strings.Contains(err.Error(), "UsageBy") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, call := range []string{
		`pglimit.allow('refused', 'k')`, `pglimit.charge('refused', 'k', 1)`, `pglimit.reserve('refused', 'k', 1, 60)`, `pglimit.allow_up_to('refused', 'k', 2)`,
		`pglimit.allow_all(ARRAY['refused', 'refused'], ARRAY['k', 'l'])`, `pglimit.allow_any(ARRAY['refused', 'refused'], ARRAY['k', 'l'], 1)`, `pglimit.refund('refused', 'k', 1)`,
		`pglimit.reserve_all(ARRAY['refused'], ARRAY['k'], ttl_s => 60)`, `pglimit.allow_all(ARRAY['refused'], ARRAY['k'], idempotency_key => 'x')`,
	} {
		var answer *pgconn.PgError
		if _, err := pool.Exec(t.Context(), "SELECT "+call); !errors.As(err, &answer) || answer.Code != "0A000" || !strings.Contains(answer.Message, "usage_by") {
			t.Errorf("%s: %v", call, err)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_fixed_window`); n != 0 {
		t.Errorf("%d keys were counted", n)
	}
	r := testworld.Reserve(t, l, p.Request("k", 5), time.Minute)
	testworld.Exec(t, pool, `SELECT pglimit.settle($1, 3)`, r.ID) // which needs no policy
	expectSums(t, pool, p, "k", 3)
}
