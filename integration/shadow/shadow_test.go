package shadow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var (
	bites = limiter.Policy{Name: "bites", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	ghost = limiter.Policy{Name: "ghost", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour, Shadow: true}
)

func level(t *testing.T, l *limiter.Limiter, p limiter.Policy, key string) float64 {
	t.Helper()
	return bed.Must(t)(l.Check(t.Context(), p, key, 0)).Level
}

// TestShadowDecides: over SQL as in memory, a shadow policy lets pass what the same policy
// would deny, and counts, blocks and reports as that would.
func TestShadowDecides(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	for _, p := range bed.Variants(10, time.Hour) {
		at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		now := func() time.Time { return at }
		stored, model := bed.NewLimiter(t, pool, &limiter.Config{Now: now, DisableDenyCache: true}), limiter.NewMemory(&limiter.Config{Now: now})
		p.Name, p.BlockFor, p.Shadow = "ghost", time.Minute, true
		shadowed := 0
		for i, n := range []float64{7, 2, 5, 1, 11, 1} {
			got, want := bed.Must(t)(stored.AllowN(t.Context(), p, bed.Variant(p), n)), bed.Must(t)(model.AllowN(t.Context(), p, bed.Variant(p), n))
			if got.Source != limiter.SourceDatabase || !got.Allowed || got.Granted != n || got.Shadowed != want.Shadowed || got.Reason != want.Reason || !bed.Near(got.Level, want.Level) || got.RetryAfter != want.RetryAfter {
				t.Errorf("%s, request %d: got\n%+v, want\n%+v", bed.Variant(p), i, got, want)
			}
			if got.Shadowed {
				shadowed++
			}
			at = at.Add(time.Second)
		}
		if shadowed == 0 {
			t.Errorf("%s: nothing was shadowed", bed.Variant(p))
		}
	}
}

// TestShadowAll: in an AllowAll, alone and in a transaction, shadow policies are decided one
// by one after the policies that bite, and deny nothing.
func TestShadowAll(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	for i := range 2 {
		key := fmt.Sprint("k", i)
		all := func(requests ...limiter.Request) limiter.Results {
			t.Helper()
			if i == 0 {
				return bed.MustAll(t)(l.AllowAll(t.Context(), requests...))
			}
			tx := bed.Begin(t, pool, pgx.TxOptions{})
			defer bed.Commit(t, tx)
			return bed.MustAll(t)(l.InTx(tx).AllowAll(t.Context(), requests...))
		}
		got := all(ghost.Request(key, 6), bites.Request(key, 8), ghost.Request(key, 5), ghost.Request(key, 3))
		if !got.Allowed || got.DeniedBy != -1 {
			t.Fatalf("%+v", got)
		}
		for j, want := range []struct {
			level    float64
			shadowed bool
		}{{6, false}, {8, false}, {6, true}, {9, false}} {
			if r := got.PerRequest[j]; !r.Allowed || r.Shadowed != want.shadowed || !bed.Near(r.Level, want.level) || r.Source != limiter.SourceDatabase {
				t.Errorf("%s: request %d: %+v", key, j, r)
			}
		}
		got = all(ghost.Request(key, 20), ghost.Request(key, 1), bites.Request(key, 3))
		if got.Allowed || got.DeniedBy != 2 || got.PerRequest[0].Source != limiter.SourceSkipped || got.PerRequest[1].Source != limiter.SourceSkipped || got.PerRequest[0].Shadowed {
			t.Errorf("%s: %+v", key, got)
		}
		if a, b := level(t, l, bites, key), level(t, l, ghost, key); !bed.Near(a, 8) || !bed.Near(b, 9) {
			t.Errorf("%s: levels %v and %v", key, a, b)
		}
	}
}

// TestShadowRollsBack: what a shadow policy counted in a transaction goes with it, and an
// error there stays one.
func TestShadowRollsBack(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	for i := range 2 {
		if r := bed.Must(t)(l.InTx(tx).AllowN(t.Context(), ghost, "k", 6)); !r.Allowed || r.Shadowed != (i == 1) {
			t.Errorf("%+v", r)
		}
	}
	if _, err := tx.Exec(t.Context(), "SELECT 1/0"); err == nil {
		t.Fatal("no error")
	}
	for _, call := range []func() error{
		func() error { _, err := l.InTx(tx).Allow(t.Context(), ghost, "k"); return err },
		func() error { _, err := l.InTx(tx).AllowAll(t.Context(), ghost.Request("k", 1)); return err },
		func() error { _, err := l.InTx(tx).Reserve(t.Context(), ghost.Request("k", 1), time.Hour); return err },
	} {
		if err := call(); err == nil {
			t.Error("a failed transaction went on")
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := level(t, l, ghost, "k"); n != 0 {
		t.Errorf("level %v", n)
	}
}

// TestShadowIsRemembered: remembered denials of a shadow policy let pass, and an Unblock and
// a Reset are seen.
func TestShadowIsRemembered(t *testing.T) {
	t.Parallel()
	l := bed.NewLimiter(t, bed.NewPool(t), &limiter.Config{DenyCacheTTL: time.Hour})
	for i, source := range []limiter.Source{limiter.SourceDatabase, limiter.SourceDatabase, limiter.SourceCache, limiter.SourceCache} {
		if r := bed.Must(t)(l.AllowN(t.Context(), ghost, "k", 6)); !r.Allowed || r.Granted != 6 || r.Shadowed != (i > 0) || r.Source != source || (r.Reason == limiter.ReasonLimit) != (i > 0) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	all := bed.MustAll(t)(l.AllowAll(t.Context(), bites.Request("k", 1), ghost.Request("k", 6)))
	if !all.Allowed || all.PerRequest[1].Source != limiter.SourceCache || !all.PerRequest[1].Shadowed {
		t.Errorf("%+v", all)
	}
	h, err := l.Reserve(t.Context(), ghost.Request("k", 6), time.Hour)
	if err != nil || !h.Result.Shadowed || h.Result.Source != limiter.SourceCache || h.ID == "" {
		t.Errorf("%+v, %v", h, err)
	}
	if r, err := l.Settle(t.Context(), h.ID, 2); err != nil || r.Granted != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := l.Reset(t.Context(), ghost, "k"); err != nil {
		t.Fatal(err)
	}
	if r := bed.Must(t)(l.AllowN(t.Context(), ghost, "k", 6)); r.Shadowed {
		t.Errorf("after a Reset: %+v", r)
	}
}

// TestShadowTogether: concurrent requests of a policy and of its shadow under one name share
// statements. All of the shadow pass, and as many are counted as fit.
func TestShadowTogether(t *testing.T) {
	t.Parallel()
	own := ghost
	own.Name = bites.Name
	var mu sync.Mutex
	most := 0
	l := bed.NewLimiter(t, bed.NewPool(t), &limiter.Config{DisableDenyCache: true, Observe: func(_ context.Context, o limiter.Observation) {
		mu.Lock()
		defer mu.Unlock()
		most = max(most, o.Rows)
	}})
	const callers = 200
	var counted, passed [2]int
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			p := []limiter.Policy{bites, own}[i%2]
			r, err := l.Allow(t.Context(), p, "k")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if r.Allowed {
				passed[i%2]++
			}
			if r.Allowed && !r.Shadowed {
				counted[i%2]++
			}
		})
	}
	all.Wait()
	if counted[0]+counted[1] != 10 || passed[0] != counted[0] || passed[1] != callers/2 {
		t.Errorf("counted %v, passed %v", counted, passed)
	}
	if n := level(t, l, bites, "k"); !bed.Near(n, 10) {
		t.Errorf("level %v", n)
	}
	if most < 2 {
		t.Error("no request shared a statement, or its rows were not observed")
	}
}

// TestShadowWhileAway: while the database is away, a shadow policy lets pass, and one that
// bites does not.
func TestShadowWhileAway(t *testing.T) {
	t.Parallel()
	b := bed.NewBroken(t, limiter.Config{Logger: slog.New(slog.DiscardHandler)})
	bed.MustAll(t)(b.L.AllowAll(t.Context(), ghost.Request("k", 1), bites.Request("k", 1)))
	if b.L.BreakerOpen() {
		t.Error("the breaker is open")
	}
	b.Cut()
	for range 12 {
		if r := bed.Must(t)(b.L.AllowN(t.Context(), ghost, "k", 3)); !r.Allowed || r.Granted != 3 || !r.Shadowed || r.Source != limiter.SourceDegraded {
			t.Errorf("%+v", r)
		}
	}
	if !b.L.BreakerOpen() {
		t.Error("the breaker is closed")
	}
	if all := bed.MustAll(t)(b.L.AllowAll(t.Context(), ghost.Request("k", 1), ghost.Request("l", 2))); !all.Allowed || all.PerRequest[1].Granted != 2 {
		t.Errorf("%+v", all)
	}
	if _, err := b.L.AllowAll(t.Context(), ghost.Request("k", 1), bites.Request("k", 1)); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	h, err := b.L.Reserve(t.Context(), ghost.Request("k", 1), time.Hour)
	if err != nil || !h.Result.Shadowed {
		t.Errorf("%+v, %v", h, err)
	}
	if err := b.L.Cancel(t.Context(), h.ID); err != nil {
		t.Error(err)
	}
}

// TestObserveRows: Observe reports how many requests the statement or transaction decided:
// 1 alone, 0 for a remembered denial, and in a transaction.
func TestObserveRows(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	var seen []string
	l := bed.NewLimiter(t, pool, &limiter.Config{DenyCacheTTL: time.Hour, Observe: func(_ context.Context, o limiter.Observation) {
		seen = append(seen, fmt.Sprint(o.Verb, " ", o.Rows))
		if o.Duration <= 0 || o.Duration > time.Minute || o.Err != nil {
			t.Errorf("%+v", o)
		}
	}})
	ctx := t.Context()
	for range 3 {
		bed.Must(t)(l.AllowN(ctx, bites, "k", 6))
	}
	bed.MustAll(t)(l.AllowAll(ctx, bites.Request("l", 1), ghost.Request("l", 1), bites.Request("l", 1)))
	h := must.OK(l.Reserve(ctx, bites.Request("m", 1), time.Hour))(t)
	bed.Must(t)(l.Settle(ctx, h.ID, 1))
	if err := l.Reset(ctx, bites, "m"); err != nil {
		t.Fatal(err)
	}
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	bed.Must(t)(l.InTx(tx).Allow(ctx, bites, "tx"))
	bed.Commit(t, tx)
	want := []string{"allow 1", "allow 1", "allow 0", "allow_all 2", "allow_all 1", "allow_all 2", "reserve 1", "settle 1", "reset 1", "allow 1"}
	if !slices.Equal(seen, want) {
		t.Errorf("observed %q, want %q", seen, want)
	}
}

// TestDenialLog: counts reach the table in slots of ten minutes, add up there over several
// flushes and processes, and survive an outage in memory.
func TestDenialLog(t *testing.T) {
	t.Parallel()
	url := bed.NewDatabase(t)
	dialer := bed.NewDialer(func() string { return url })
	pool := bed.Connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = dialer.Dial })
	steady := bed.Connect(t, url)
	newLog := func(pool *pgxpool.Pool) *limiter.DenialLog {
		return must.OK(limiter.NewDenialLog(pool, &limiter.DenialLogConfig{Logger: slog.New(slog.DiscardHandler)}))(t)
	}
	first, second := newLog(pool), newLog(steady)
	deny := func(d *limiter.DenialLog, p limiter.Policy, key string, n int) {
		t.Helper()
		l := bed.NewLimiter(t, steady, &limiter.Config{DenialLog: d})
		for range n {
			bed.Must(t)(l.AllowN(t.Context(), p, key, 11))
		}
	}
	flush := func(d *limiter.DenialLog) {
		t.Helper()
		if err := d.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deny(first, bites, "a", 3)
	deny(first, ghost, "b", 2)
	flush(first)
	dialer.Down.Store(true)
	pool.Reset()
	deny(first, bites, "a", 4)
	if err := first.Flush(t.Context()); err == nil {
		t.Fatal("it was written while the database was away")
	}
	dialer.Down.Store(false)
	deny(second, bites, "a", 5)
	var both sync.WaitGroup
	both.Go(func() { flush(first) })
	both.Go(func() { flush(second) })
	both.Wait()
	type sum struct {
		Policy, Key, Algorithm string
		Denials, Shadowed      int64
		Units                  float64
		Slots, Late            bool
	}
	rows, err := steady.Query(t.Context(), `
		SELECT policy, key, algorithm, sum(denials)::bigint, sum(shadowed)::bigint, sum(units), bool_and(slot_us % 600000000 = 0),
		       bool_or(abs(max_us - extract(epoch FROM clock_timestamp()) * 1e6) > 600e6)
		FROM (SELECT *, last_denied_at_us AS max_us FROM pglimit_denial) AS d GROUP BY policy, key, algorithm ORDER BY policy`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sum])
	want := []sum{{"bites", "a", "token_bucket", 12, 0, 132, true, false}, {"ghost", "b", "token_bucket", 2, 2, 22, true, false}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %+v, want %+v", err, got, want)
	}
}

// TestDenialLogOfManyProcesses: several processes add to the same rows at once, without
// deadlocks or losses.
func TestDenialLogOfManyProcesses(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	const processes, keys, rounds = 4, 300, 5
	var all sync.WaitGroup
	for range processes {
		d := must.OK(limiter.NewDenialLog(pool, nil))(t)
		l := limiter.NewMemory(&limiter.Config{DenialLog: d})
		all.Go(func() {
			for range rounds {
				for k := range keys {
					if _, err := l.AllowN(t.Context(), bites, fmt.Sprint(k), 11); err != nil {
						t.Error(err)
					}
				}
				if err := d.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := bed.Value[int](t, pool, `SELECT sum(denials)::int FROM pglimit_denial`); n != processes*keys*rounds {
		t.Errorf("%d denials in the table, want %d", n, processes*keys*rounds)
	}
}
