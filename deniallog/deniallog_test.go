package deniallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// written has what a Log wrote in a test: a line for each row of a statement.
type written struct {
	mu         sync.Mutex
	lines      []string
	reasons    []string
	statements int
	err        error
}

func (w *written) write(_ context.Context, p db.DenialsAddParams) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statements++
	if w.err != nil {
		return w.err
	}
	for i := range p.Keys {
		w.lines = append(w.lines, fmt.Sprint(p.Policies[i], "/", p.Keys[i], "/", p.Algorithms[i], " ", p.Denials[i], " ", p.Shadowed[i], " ", p.Units[i]))
		w.reasons = append(w.reasons, fmt.Sprint(p.Keys[i], ": ", p.Denials[i], " ", p.Blocked[i], " ", p.AboveBurst[i], " ", p.Overloaded[i],
			", last ", p.LastDeniedAtUs[i]/1e6, ", retry ", p.RetryAtUs[i]/1e6))
	}
	return nil
}

// fail sets the error of later statements.
func (w *written) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// sent returns the number of statements.
func (w *written) sent() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statements
}

// next flushes and returns the lines since the last call.
func (w *written) next(t *testing.T, d *Log) []string {
	t.Helper()
	must.Succeed(t, d.Flush(t.Context()))
	lines := w.lines
	w.lines = nil
	return lines
}

func newTestLog(t *testing.T, config *Config) (*Log, *written) {
	t.Helper()
	w := new(written)
	d := must.OK(newLog(w.write, config))(t)
	return d, w
}

// deny makes a request that is denied, of two units.
func deny(t *testing.T, l *limiter.Limiter, name, key string) {
	t.Helper()
	if r, err := l.AllowN(t.Context(), limiter.Policy{Name: name, Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}, key, 2); err != nil || r.Allowed {
		t.Fatalf("%+v, %v", r, err)
	}
}

// TestBounded: denials of too many keys are counted together for each policy, also
// after a failed flush, and rows are written in lock order.
func TestBounded(t *testing.T) {
	t.Parallel()
	d, w := newTestLog(t, &Config{Keys: 3, Logger: slog.New(slog.DiscardHandler)})
	l := limiter.NewMemory(&limiter.Config{DenialLog: d})
	round := func() {
		for _, key := range []string{"c", "a", "b", "d", "e", "a"} {
			deny(t, l, "p", key)
		}
		deny(t, l, "q", "a")
	}
	round()
	want := []string{"p//token_bucket 2 0 4", "p/a/token_bucket 2 0 4", "p/b/token_bucket 1 0 2", "p/c/token_bucket 1 0 2", "q//token_bucket 1 0 2"}
	if got := w.next(t, d); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	w.err = errors.New("away")
	round()
	if err := d.Flush(t.Context()); !errors.Is(err, w.err) {
		t.Error(err)
	}
	deny(t, l, "p", "z")
	deny(t, l, "p", "b")
	w.err = nil
	want = []string{"p//token_bucket 3 0 6", "p/a/token_bucket 2 0 4", "p/b/token_bucket 2 0 4", "p/c/token_bucket 1 0 2", "q//token_bucket 1 0 2"}
	if got := w.next(t, d); !slices.Equal(got, want) {
		t.Errorf("after a failure wrote %q, want %q", got, want)
	}
}

// TestReasons: a denial is counted by its reason, with the time from which the
// request fits.
func TestReasons(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now, pass := func() time.Time { return at }, func(d time.Duration) { at = at.Add(d) }
	start := now().Unix()
	d, w := newTestLog(t, nil)
	stored := must.OK(policies.New())(t)
	must.OK(stored.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "p", Key: "rule", Match: policies.MatchPrefix, Blocked: true}}}))(t)
	l := limiter.NewMemory(&limiter.Config{Now: now, DenialLog: d, MaxKeys: 3, Policies: stored})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Minute}
	for _, c := range []struct {
		policy func(*limiter.Policy)
		key    string
		cost   float64
	}{
		{func(*limiter.Policy) {}, "limited", 3}, {func(*limiter.Policy) {}, "limited", 2}, {func(*limiter.Policy) {}, "limited", 1},
		{func(*limiter.Policy) {}, "never", 4}, {func(*limiter.Policy) {}, "limited", 9},
		{func(p *limiter.Policy) { p.BlockFor = time.Hour }, "blocked", 3}, {func(p *limiter.Policy) { p.BlockFor = time.Hour }, "blocked", 1}, {func(p *limiter.Policy) { p.BlockFor = time.Hour }, "blocked", 1},
		{func(*limiter.Policy) {}, "third", 1}, {func(*limiter.Policy) {}, "overload", 1}, {func(*limiter.Policy) {}, "rule-1", 9},
	} {
		p := p
		c.policy(&p)
		if _, err := l.AllowN(t.Context(), p, c.key, c.cost); (err != nil) != (c.key == "overload") {
			t.Fatalf("%s: %v", c.key, err)
		}
		pass(time.Second)
	}
	if _, err := l.Charge(t.Context(), p, "overload", 1); !errors.Is(err, limiter.ErrOverloaded) {
		t.Error(err)
	}
	must.Succeed(t, l.Block(t.Context(), p, "third", 2*time.Hour))
	must.OK(l.Allow(t.Context(), p, "third"))(t)
	w.next(t, d)
	want := []string{
		fmt.Sprint("blocked: 2 1 0 0, last ", start+7, ", retry ", start+6+3600),
		fmt.Sprint("limited: 3 0 1 0, last ", start+4, ", retry ", start+60),
		fmt.Sprint("never: 1 0 1 0, last ", start+3, ", retry 0"),
		fmt.Sprint("overload: 1 0 0 1, last ", start+9, ", retry 0"),
		fmt.Sprint("rule-1: 1 1 0 0, last ", start+10, ", retry 0"),
		fmt.Sprint("third: 1 1 0 0, last ", start+11, ", retry ", start+11+7200),
	}
	if !slices.Equal(w.reasons, want) {
		t.Errorf("wrote\n%s\nwant\n%s", strings.Join(w.reasons, "\n"), strings.Join(want, "\n"))
	}
}

// TestBoundedByMinute: several flushes of a minute together write the counts of at
// most Keys keys. Those that were counted in it are counted on.
func TestBoundedByMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, w := newTestLog(t, &Config{Keys: 2})
		l := limiter.NewMemory(&limiter.Config{DenialLog: d})
		for _, c := range []struct {
			after time.Duration
			keys  string
			want  []string
		}{
			{0, "a", []string{"p/a/token_bucket 1 0 2"}},
			{5 * time.Second, "ab", []string{"p/a/token_bucket 1 0 2", "p/b/token_bucket 1 0 2"}},
			{50 * time.Second, "cba", []string{"p//token_bucket 1 0 2", "p/a/token_bucket 1 0 2", "p/b/token_bucket 1 0 2"}},
			{5 * time.Second, "cd", []string{"p//token_bucket 2 0 4"}},
			{time.Second, "cda", []string{"p//token_bucket 1 0 2", "p/c/token_bucket 1 0 2", "p/d/token_bucket 1 0 2"}},
		} {
			time.Sleep(c.after)
			for _, key := range c.keys {
				deny(t, l, "p", string(key))
			}
			if got := w.next(t, d); !slices.Equal(got, c.want) {
				t.Errorf("after %q wrote %q, want %q", c.keys, got, c.want)
			}
		}
	})
}

// TestStatements: a flush writes many counts by several statements, and keeps those of the
// statements that failed.
func TestStatements(t *testing.T) {
	t.Parallel()
	d, w := newTestLog(t, &Config{Logger: slog.New(slog.DiscardHandler)})
	d.write = func(ctx context.Context, p db.DenialsAddParams) error {
		if w.statements == 1 {
			w.statements++
			return errors.New("away")
		}
		return w.write(ctx, p)
	}
	l := limiter.NewMemory(&limiter.Config{DenialLog: d})
	for i := range 2*denialsOfOne + 1 {
		deny(t, l, "p", fmt.Sprintf("%05d", i))
	}
	if err := d.Flush(t.Context()); err == nil || len(w.lines) != denialsOfOne {
		t.Errorf("%d lines, %v", len(w.lines), err)
	}
	if err := d.Flush(t.Context()); err != nil || len(w.lines) != 2*denialsOfOne+1 {
		t.Errorf("%d lines, %v", len(w.lines), err)
	}
	if !slices.IsSorted(w.lines) || len(slices.Compact(w.lines)) != 2*denialsOfOne+1 {
		t.Error("not in order, or twice")
	}
}

// TestLockedRows: counts whose rows others have locked are set aside. All others are
// written, and those after their locks are gone.
func TestLockedRows(t *testing.T) {
	t.Parallel()
	d, w := newTestLog(t, &Config{Logger: slog.New(slog.DiscardHandler)})
	locked := []string{"00003", "01004"}
	d.write = func(ctx context.Context, p db.DenialsAddParams) error {
		if slices.ContainsFunc(p.Keys, func(key string) bool { return slices.Contains(locked, key) }) {
			w.statements++
			return &pgconn.PgError{Code: "57014"}
		}
		return w.write(ctx, p)
	}
	l := limiter.NewMemory(&limiter.Config{DenialLog: d})
	for i := range 2 * denialsOfOne {
		deny(t, l, "p", fmt.Sprintf("%05d", i))
	}
	if err := d.Flush(t.Context()); err == nil || len(w.lines) != 2*denialsOfOne-2 || w.statements > 45 {
		t.Errorf("%d lines by %d statements, %v", len(w.lines), w.statements, err)
	}
	locked, w.lines = nil, nil
	if got := w.next(t, d); !slices.Equal(got, []string{"p/00003/token_bucket 1 0 2", "p/01004/token_bucket 1 0 2"}) {
		t.Errorf("then wrote %q", got)
	}
}

// TestPolicies: made-up names of policies do not fill the memory.
func TestPolicies(t *testing.T) {
	t.Parallel()
	d, w := newTestLog(t, &Config{Keys: 2})
	l := limiter.NewMemory(&limiter.Config{DenialLog: d})
	for i := range 10 {
		deny(t, l, fmt.Sprint("p", i), "k")
	}
	want := []string{"other//token_bucket 6 0 12", "p0/k/token_bucket 1 0 2", "p1/k/token_bucket 1 0 2", "p2//token_bucket 1 0 2", "p3//token_bucket 1 0 2"}
	if got := w.next(t, d); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

// TestSecret: with a KeySecret the HMAC is written, as the limiter stores it. A limiter with
// another refuses the log.
func TestSecret(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte{7}, 32)
	d, w := newTestLog(t, &Config{KeySecret: secret, Logger: slog.New(slog.DiscardHandler)})
	deny(t, limiter.NewMemory(&limiter.Config{DenialLog: d, KeySecret: secret}), "p", "alice")
	want := []string{"p/" + keys.Stored("alice", secret) + "/token_bucket 1 0 2"}
	if got := w.next(t, d); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
	w.fail(errors.New("away"))
	l := limiter.NewMemory(&limiter.Config{DenialLog: d, KeySecret: secret})
	deny(t, l, "p", "alice")
	if err := d.Flush(t.Context()); err == nil {
		t.Error("no error")
	}
	w.fail(nil)
	deny(t, l, "p", "alice") // before and after the failure it is one key
	want = []string{"p/" + keys.Stored("alice", secret) + "/token_bucket 2 0 4"}
	if got := w.next(t, d); !slices.Equal(got, want) {
		t.Errorf("after a failure wrote %q, want %q", got, want)
	}
	other, _ := newTestLog(t, nil)
	for _, c := range []*limiter.Config{{DenialLog: d}, {DenialLog: other, KeySecret: secret}} {
		if _, err := limiter.NewMemory(c).Allow(t.Context(), limiter.PerHour("p", 1), "k"); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "Config.DenialLog") {
			t.Error(err)
		}
	}
}

// TestIgnored: what is no denial of a request is not counted, nor anything by no log.
func TestIgnored(t *testing.T) {
	t.Parallel()
	d, w := newTestLog(t, nil)
	in := limiter.PerHour("p", 1).Request("k", 1)
	for _, o := range []limiter.Observation{
		{Verb: limiter.VerbCheck, Result: limiter.Result{Reason: limiter.ReasonLimit}},
		{Verb: limiter.VerbUsage, Result: limiter.Result{Reason: limiter.ReasonBlocked}},
		{Verb: limiter.VerbCharge, Result: limiter.Result{Reason: limiter.ReasonOverload}},
		{Verb: limiter.VerbAllow, Result: limiter.Result{Allowed: true}},
	} {
		o.Request = in
		d.Observe(t.Context(), o)
	}
	if got := w.next(t, d); len(got) > 0 {
		t.Errorf("wrote %q", got)
	}
	var none *Log
	deny(t, limiter.NewMemory(&limiter.Config{DenialLog: none}), "p", "k")
}

// TestRun: Run flushes about once each interval, and once more when its context ends.
// It warns once a minute.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		d, w := newTestLog(t, &Config{Interval: 20 * time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		l := limiter.NewMemory(&limiter.Config{DenialLog: d})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		deny(t, l, "p", "k")
		synctest.Wait()
		if err := d.Run(ctx); err == nil {
			t.Error("Run runs twice")
		}
		time.Sleep(17 * time.Second)
		synctest.Wait()
		if w.sent() != 0 {
			t.Error("too early")
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if w.sent() != 1 {
			t.Errorf("%d statements after an interval", w.sent())
		}
		w.fail(errors.New("away"))
		deny(t, l, "p", "k")
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if n := strings.Count(logged.String(), "level=WARN"); n != 1 || w.sent() < 3 {
			t.Errorf("%d warnings of %d statements: %s", n, w.sent(), &logged)
		}
		w.fail(nil)
		deny(t, l, "p", "k")
		cancel()
		if err := <-ended; err != nil || !reflect.DeepEqual(w.lines, []string{"p/k/token_bucket 1 0 2", "p/k/token_bucket 2 0 4"}) {
			t.Errorf("%v, wrote %q", err, w.lines)
		}
	})
}

// TestRunEnds: the flush at the end takes 5 seconds at most.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := newTestLog(t, &Config{Logger: slog.New(slog.DiscardHandler)})
		d.write = func(ctx context.Context, _ db.DenialsAddParams) error { <-ctx.Done(); return ctx.Err() }
		deny(t, limiter.NewMemory(&limiter.Config{DenialLog: d}), "p", "k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		if err := d.Run(ctx); err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestConfig: a field that is not valid is named.
func TestConfig(t *testing.T) {
	t.Parallel()
	for field, config := range map[string]*Config{
		"deniallog.Config.Interval 1ns":   {Interval: 1},
		"deniallog.Config.Interval -1s":   {Interval: -time.Second},
		"deniallog.Config.Interval 10m1s": {Interval: 10*time.Minute + time.Second},
		"deniallog.Config.Keys -1":        {Keys: -1},
		"deniallog.Config.KeySecret of 0": {KeySecret: []byte{}},
	} {
		if _, err := newLog(nil, config); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(nil, nil); !errors.Is(err, limiter.ErrInvalid) {
		t.Error(err)
	}
}

// TestAllocates: a denial of a known key costs no allocation.
func TestAllocates(t *testing.T) {
	d, _ := newTestLog(t, nil)
	o := limiter.Observation{
		Verb: limiter.VerbAllow, Request: limiter.Policy{Name: "p", Algorithm: limiter.GCRA}.Request("k", 1),
		Result: limiter.Result{Reason: limiter.ReasonLimit, At: time.Now()},
	}
	observe := func() { d.Observe(t.Context(), o) }
	observe()
	if n := testing.AllocsPerRun(100, observe); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
