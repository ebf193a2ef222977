package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// site is a database with rows of alice, bob and others under every algorithm.
type site struct {
	pool *pgxpool.Pool
	i    *inspect.Inspector
	l    *limiter.Limiter
}

func newSite(t *testing.T, keys ...string) site {
	t.Helper()
	pool := testworld.NewPool(t)
	s := site{pool, inspect.New(pool), testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})}
	for _, p := range everyTable() {
		use(t, s.l, p, keys...)
	}
	return s
}

// blocked reports whether a key is blocked.
func (s site) blocked(t *testing.T, p limiter.Policy, key string) bool {
	t.Helper()
	return testworld.Must(t)(s.l.Check(t.Context(), p, key, 0)).Reason == limiter.ReasonBlocked
}

// everywhere is a count of n rows under each algorithm.
func everywhere(n int) (text string) {
	for k, p := range everyTable() {
		if k > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%s %s %d", p.Name, p.Algorithm, n)
	}
	return text
}

// TestBlockAndUnblock do under every algorithm what the library does, and touch no other
// key.
func TestBlockAndUnblock(t *testing.T) {
	t.Parallel()
	s := newSite(t, "alice", "alicf", "bob")
	ctx := t.Context()
	both := targets(t, s.i, prefix("alice"), inspect.Filter{})
	check := func(what string, want bool) {
		t.Helper()
		for _, p := range everyTable() {
			if got := s.blocked(t, p, "alice"); got != want {
				t.Errorf("%s: %s: blocked %v", what, p.Name, got)
			}
			if s.blocked(t, p, "bob") || s.blocked(t, p, "alicf") {
				t.Errorf("%s: %s: others are blocked", what, p.Name)
			}
			if level := testworld.Level(t, s.l, p, "alice"); !testworld.Near(level, 4) {
				t.Errorf("%s: %s: level %v", what, p.Name, level)
			}
		}
	}
	tokens := policy("token_bucket", limiter.TokenBucket)
	running := must.OK(s.l.Allow(ctx, tokens, "alice"))(t)
	counts, err := s.i.Block(ctx, both, time.Hour, inspect.Options{})
	if err != nil || render(counts) != everywhere(1) {
		t.Errorf("block: %s, %v", render(counts), err)
	}
	must.OK(s.l.Undo(ctx, tokens, "alice", running))(t) // lifts the block of a denial only
	check("block", true)
	until := testworld.Value[time.Time](t, s.pool, `SELECT blocked_until FROM pglimit_token_bucket_now WHERE key = 'alice'`)
	must.OK(s.i.Block(ctx, both, time.Minute, inspect.Options{}))(t)
	if again := testworld.Value[time.Time](t, s.pool, `SELECT blocked_until FROM pglimit_token_bucket_now WHERE key = 'alice'`); !again.Equal(until) || time.Until(until).Round(time.Minute) != time.Hour {
		t.Errorf("blocked until %v, and after a shorter block until %v", until, again)
	}
	// A block that has ended is none.
	testworld.Exec(t, s.pool, `UPDATE pglimit_leaky_bucket SET blocked_until_us = updated_at_us WHERE key = 'alice'`)
	counts, err = s.i.Unblock(ctx, targets(t, s.i, exact("alice"), inspect.Filter{Algorithm: algorithm.LeakyBucket}), inspect.Options{})
	if err != nil || len(counts) > 0 {
		t.Errorf("unblock of what is not blocked: %s, %v", render(counts), err)
	}
	counts, err = s.i.Unblock(ctx, targets(t, s.i, exact("alice"), inspect.Filter{Policy: "token_bucket"}), inspect.Options{})
	if err != nil || render(counts) != "token_bucket token_bucket 1" || s.blocked(t, policy("token_bucket", limiter.TokenBucket), "alice") || !s.blocked(t, policy("fixed_window", limiter.FixedWindow), "alice") {
		t.Errorf("unblock of one policy: %s, %v", render(counts), err)
	}
	must.Succeed(t, s.l.Block(ctx, policy("token_bucket", limiter.TokenBucket), "bob", time.Hour))
	if counts, err = s.i.Unblock(ctx, both, inspect.Options{}); err != nil || len(counts) != 4 {
		t.Errorf("unblock: %s, %v", render(counts), err)
	}
	if !s.blocked(t, policy("token_bucket", limiter.TokenBucket), "bob") {
		t.Error("unblock of alice unblocked bob")
	}
	must.Succeed(t, s.l.Unblock(ctx, policy("token_bucket", limiter.TokenBucket), "bob"))
	check("unblock", false)
	for _, d := range []time.Duration{0, -1, 1, 200 * 365 * 24 * time.Hour} {
		if _, err := s.i.Block(ctx, both, d, inspect.Options{}); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("block for %v: %v", d, err)
		}
	}
	if _, err := s.i.Block(ctx, []inspect.Target{{Algorithm: "x", Policy: "p", Key: "k"}}, time.Hour, inspect.Options{}); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("an unknown algorithm: %v", err)
	}
}

// TestResetAsTheLibrary: after a Reset of either kind a reservation has no units, settling
// it changes nothing but its own record, and the level is 0.
func TestResetAsTheLibrary(t *testing.T) {
	t.Parallel()
	s := newSite(t, "ours", "theirs", "other")
	for _, p := range everyTable() {
		var rows [2]string
		for n, key := range []string{"ours", "theirs"} {
			var r limiter.Reservation
			if p.Algorithm != limiter.LeakyBucketQueue {
				r = testworld.Reserve(t, s.l, p.Request(key, 3), time.Hour)
			}
			if n == 0 {
				counts, err := s.i.Reset(t.Context(), targets(t, s.i, exact(key), inspect.Filter{Policy: p.Name}), inspect.Options{})
				if err != nil || len(counts) != 1 || counts[0].Rows != 1 || counts[0].Reservations != map[bool]int64{true: 1}[r.ID != ""] {
					t.Errorf("%s: %+v, %v", p.Name, counts, err)
				}
			} else if err := s.l.Reset(t.Context(), p, key); err != nil {
				t.Fatal(err)
			}
			if r.ID != "" {
				settled := testworld.Must(t)(s.l.Settle(t.Context(), r.ID, 1))
				rows[n] = fmt.Sprintf("%v %.3f ", settled.Granted, settled.Level)
			}
			rows[n] += fmt.Sprintf("%.3f ", testworld.Level(t, s.l, p, key))
			rows[n] += testworld.Value[string](t, s.pool, `SELECT coalesce(string_agg(units || state, ''), '') FROM pglimit_reservation WHERE policy = $1 AND key = $2`, p.Name, key)
		}
		if rows[0] != rows[1] {
			t.Errorf("%s: after ours %q, after the library's %q", p.Name, rows[0], rows[1])
		}
		if level := testworld.Level(t, s.l, p, "other"); !testworld.Near(level, 4) {
			t.Errorf("%s: another key's level is %v", p.Name, level)
		}
	}
}

// TestResetSeesWhatIsReservedMeanwhile: a reservation that is made while Reset waits for the
// row loses its units too.
func TestResetSeesWhatIsReservedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(context.Context, *inspect.Inspector, []inspect.Target) ([]inspect.Count, error){
		"reset": func(ctx context.Context, i *inspect.Inspector, all []inspect.Target) ([]inspect.Count, error) {
			return i.Reset(ctx, all, inspect.Options{LockWait: time.Minute})
		},
		"forget": func(ctx context.Context, i *inspect.Inspector, all []inspect.Target) ([]inspect.Count, error) {
			return i.Forget(ctx, all, inspect.Options{LockWait: time.Minute})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "k")
			p := policy("token_bucket", limiter.TokenBucket)
			all := targets(t, s.i, exact("k"), inspect.Filter{Policy: "token_bucket"})
			tx := testworld.Begin(t, s.pool, pgx.TxOptions{})
			r := testworld.Reserve(t, s.l.InTx(tx), p.Request("k", 2), time.Hour)
			type result struct {
				counts []inspect.Count
				err    error
			}
			ended := make(chan result, 1)
			go func() {
				counts, err := act(t.Context(), s.i, all)
				ended <- result{counts, err}
			}()
			testworld.AwaitBlocked(t, s.pool)
			testworld.Commit(t, tx)
			got := testworld.Receive(t, ended, "the change")
			if got.err != nil || render(got.counts) != "token_bucket token_bucket 1 reservations 1" {
				t.Errorf("%s, %v", render(got.counts), got.err)
			}
			if units := testworld.Value[float64](t, s.pool, `SELECT coalesce(sum(units), 0) FROM pglimit_reservation`); units != 0 {
				t.Errorf("reservations hold %v units", units)
			}
			_, err := s.l.Settle(t.Context(), r.ID, 1)
			if gone := errors.Is(err, limiter.ErrNoReservation); gone != (name == "forget") {
				t.Errorf("settle: %v", err)
			}
			if level := testworld.Level(t, s.l, p, "k"); level > 1 {
				t.Errorf("level %v", level)
			}
		})
	}
}

// TestForgetLeavesNoTrace: no table has the key any more, and others have theirs.
func TestForgetLeavesNoTrace(t *testing.T) {
	t.Parallel()
	s := newSite(t, "alice", "bob")
	p := policy("token_bucket", limiter.TokenBucket)
	for _, key := range []string{"alice", "bob"} {
		testworld.Reserve(t, s.l, p.Request(key, 2), time.Hour)
		request := p.Request(key, 1)
		request.IdempotencyKey = "once"
		testworld.Must(t)(s.l.Do(t.Context(), request))
		cancelled := testworld.Reserve(t, s.l, policy("gone", limiter.FixedWindow).Request(key, 2), time.Hour)
		must.Succeed(t, s.l.Cancel(t.Context(), cancelled.ID))
		override(t, s.pool, "token_bucket", key)
		override(t, s.pool, "ghost", key)
		deny(t, s.pool, policy("denied", limiter.TokenBucket), key, 3, 100*time.Hour)
	}
	testworld.Exec(t, s.pool, `DELETE FROM pglimit_fixed_window WHERE policy = 'gone'`)
	testworld.Exec(t, s.pool, `DELETE FROM pglimit_override WHERE policy = 'ghost'`) // the history stays
	version := testworld.Value[int64](t, s.pool, `SELECT version FROM pglimit_policy_version`)
	has := func(key string) string {
		return testworld.Value[string](t, s.pool, `SELECT concat_ws(' ', (SELECT count(*) FROM pglimit_keys WHERE key = $1), (SELECT count(*) FROM pglimit_reservation WHERE key = $1),
			(SELECT count(*) FROM pglimit_denial WHERE key = $1), (SELECT count(*) FROM pglimit_override WHERE key = $1), (SELECT count(*) FROM pglimit_policy_history WHERE key = $1))`, key)
	}
	before := has("bob")
	if before != "6 3 1 1 3" {
		t.Fatalf("bob has %s", before)
	}
	all := must.OK(s.i.Targets(t.Context(), exact("alice"), inspect.Filter{}, 100, true))(t)
	counts, err := s.i.Forget(t.Context(), all, inspect.Options{})
	want := "leaky_bucket leaky_bucket 1; leaky_bucket_queue leaky_bucket_queue 1; denied token_bucket 0 denials 1; token_bucket token_bucket 1 reservations 2; " +
		"fixed_window fixed_window 1; gone fixed_window 0 reservations 1; sliding_window_counter sliding_window_counter 1; sliding_window_log sliding_window_log 1; " +
		"token_bucket  0 overrides 1 history 2; ghost  0 history 2" // the deletions too
	got := render(counts)
	if err != nil || !sameParts(got, want) {
		t.Errorf("forgot %s, %v; want %s", got, err, want)
	}
	if left := has("alice"); left != "0 0 0 0 0" {
		t.Errorf("left is %s", left)
	}
	if after := has("bob"); after != before {
		t.Errorf("bob has %s, had %s", after, before)
	}
	if now := testworld.Value[int64](t, s.pool, `SELECT version FROM pglimit_policy_version`); now <= version {
		t.Errorf("the version went from %d to %d: programs keep the override", version, now)
	}
	if all, err = s.i.Targets(t.Context(), exact("alice"), inspect.Filter{}, 100, true); err != nil || len(all) > 0 {
		t.Errorf("targets afterwards: %v, %v", all, err)
	}
	if counts, err = s.i.Forget(t.Context(), nil, inspect.Options{}); err != nil || counts != nil {
		t.Errorf("nothing to forget: %v, %v", counts, err)
	}
}

// sameParts reports whether two renderings have the same letters: the kinds of what was
// deleted come in any order.
func sameParts(a, b string) bool {
	x, y := []byte(a), []byte(b)
	slices.Sort(x)
	slices.Sort(y)
	return string(x) == string(y)
}

// TestChangesInBatches: transactions lock as many keys as a batch, progress counts them,
// and too many rows are refused before anything changes.
func TestChangesInBatches(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool, statements := traced(t, address)
	i := inspect.New(pool)
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 250, time.Now().UnixMicro())
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "q", 30, time.Now().UnixMicro())
	testworld.InsertRows(t, pool, "pglimit_fixed_window", "q", 30, time.Now().UnixMicro())
	if _, err := i.Targets(t.Context(), prefix("k"), inspect.Filter{}, 309, false); !errors.Is(err, inspect.ErrTooMany) || !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("310 rows at most 309: %v", err)
	}
	all, err := i.Targets(t.Context(), prefix("k"), inspect.Filter{}, 310, false)
	if err != nil || len(all) != 310 {
		t.Fatalf("%d targets, %v", len(all), err)
	}
	slices.Reverse(all) // the order of the caller does not matter
	all = append(all, all[0])
	statements.take()
	var steps []int
	counts, err := i.Block(t.Context(), all, time.Hour, inspect.Options{Batch: 100, Progress: func(done, all int) {
		if all != 310 {
			t.Errorf("progress of %d", all)
		}
		steps = append(steps, done)
	}})
	if err != nil || render(counts) != "p token_bucket 250; q token_bucket 30; q fixed_window 30" || !slices.Equal(steps, []int{100, 200, 250, 280, 310}) {
		t.Errorf("%s, %v; progress %v", render(counts), err, steps)
	}
	for _, s := range statements.take() {
		if keys, ok := s.Args[1].([]string); !ok || len(keys) > 100 || !slices.IsSorted(keys) {
			t.Errorf("a statement has %d keys, not in order: %s", len(keys), s.SQL)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_keys WHERE blocked_until IS NOT NULL`); n != 310 {
		t.Errorf("%d are blocked", n)
	}
}

// TestChangesCancelled: what was done before the context ended is reported.
func TestChangesCancelled(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	i := inspect.New(pool)
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 30, time.Now().UnixMicro())
	ctx, cancel := context.WithCancel(t.Context())
	counts, err := i.Reset(ctx, targets(t, i, prefix("k"), inspect.Filter{}), inspect.Options{Batch: 10, Progress: func(done, _ int) {
		if done == 20 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || render(counts) != "p token_bucket 20" {
		t.Errorf("%s, %v", render(counts), err)
	}
	if left := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_token_bucket`); left != 10 {
		t.Errorf("%d rows are left", left)
	}
}
