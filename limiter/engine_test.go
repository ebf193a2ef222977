package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
)

// spy is a store in memory that records its calls and fails with err if that is set.
type spy struct {
	store.Store
	mu    sync.Mutex
	calls []string
	err   error
}

func (s *spy) note(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
	return s.err
}

// set makes later calls fail, and forgets those before.
func (s *spy) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.err = nil, err
}

// sent returns the calls.
func (s *spy) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// kindNames are the names of kinds in calls.
var kindNames = map[store.Kind]string{
	store.Take: "take", store.TakeAll: "take all", store.GetAll: "take all", store.TakeAny: "take any", store.Get: "get", store.GetUsage: "usage", store.Charge: "charge", store.Refund: "refund",
	store.Undo: "undo", store.Reserve: "reserve", store.Settle: "settle", store.Block: "block", store.Unblock: "unblock", store.Reset: "reset", store.Estimate: "estimate",
}

func (s *spy) Do(ctx context.Context, op *store.Op) error {
	if op.Merges && op.Kind != store.Take { // left by the Allow that had the op before
		return fmt.Errorf("%s merges", kindNames[op.Kind])
	}
	if name, ok := kindNames[op.Kind]; ok {
		if err := s.note(name); err != nil {
			return err
		}
	}
	return s.Store.Do(ctx, op)
}

// watched returns a Limiter over a spy. It remembers denials if remembers is true.
func watched(t *testing.T, remembers bool, config *Config) (*Limiter, *spy) {
	t.Helper()
	s := &spy{Store: memory.New()}
	c := config.withDefaults()
	e := newEngine(&c, SourceDatabase)
	e.store, e.unbounded = s, s
	var err error
	if e.local, err = newLocal(&c, localKeys(config)); err != nil {
		t.Fatal(err)
	}
	if remembers {
		if e.denied, err = newDenials(c.DenyCacheKeys, c.DenyCacheTTL, c.clock()); err != nil {
			t.Fatal(err)
		}
	}
	return &Limiter{engine: e, inTx: func(db.DBTX) store.Store { return s }}, s
}

// verbCalls calls each method once, for the key k of p.
var verbCalls = []struct {
	name  string
	call  func(ctx context.Context, e *engine, p Policy) error
	verb  Verb
	opens bool // FailOpen may apply
}{
	{"Do", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.Do(ctx, p.Request("k", 1))
		return err
	}, VerbAllow, true},
	{"AllowUpTo", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.AllowUpTo(ctx, p, "k", 1)
		return err
	}, VerbAllowUpTo, true},
	{"Check", func(ctx context.Context, e *engine, p Policy) error { _, err := e.Check(ctx, p, "k", 1); return err }, VerbCheck, true},
	{"Charge", func(ctx context.Context, e *engine, p Policy) error { _, err := e.Charge(ctx, p, "k", 1); return err }, VerbCharge, true},
	{"Refund", func(ctx context.Context, e *engine, p Policy) error { _, err := e.Refund(ctx, p, "k", 1); return err }, VerbRefund, true},
	{"Undo", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.Undo(ctx, p, "k", Result{Granted: 1, grant: algorithm.Grant{Made: true, At: 1, EndsAt: 1}})
		return err
	}, VerbUndo, true},
	{"AllowAll", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.AllowAll(ctx, p.Request("k", 1), p.Request("l", 1))
		return err
	}, VerbAllowAll, true},
	{"AllowAny", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.AllowAny(ctx, p.Request("k", 1), p.Request("m", 1))
		return err
	}, VerbAllowAny, true},
	{"Reserve", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.Reserve(ctx, p.Request("k", 1), time.Hour)
		return err
	}, VerbReserve, false},
	{"ReserveUpTo", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.ReserveUpTo(ctx, p.Request("k", 1), time.Hour)
		return err
	}, VerbReserveUpTo, false},
	{"Usage", func(ctx context.Context, e *engine, p Policy) error { _, err := e.Usage(ctx, p, "k"); return err }, VerbUsage, false},
	{"Settle", func(ctx context.Context, e *engine, p Policy) error {
		_, err := e.Settle(ctx, "token_bucket:0123456789ABCDEF:p:aw", 1)
		return err
	}, VerbSettle, false},
	{"Cancel", func(ctx context.Context, e *engine, p Policy) error {
		return e.Cancel(ctx, "token_bucket:0123456789ABCDEF:p:aw")
	}, VerbCancel, false},
	{"Reset", func(ctx context.Context, e *engine, p Policy) error { return e.Reset(ctx, p, "k") }, VerbReset, false},
	{"Block", func(ctx context.Context, e *engine, p Policy) error { return e.Block(ctx, p, "k", time.Second) }, VerbBlock, false},
	{"Unblock", func(ctx context.Context, e *engine, p Policy) error { return e.Unblock(ctx, p, "k") }, VerbUnblock, false},
}

// TestEngineRefuses: an invalid request does not reach the store, and after Close no call
// does. FailOpen does not apply.
func TestEngineRefuses(t *testing.T) {
	l, s := watched(t, true, nil)
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 1, Period: time.Hour, OnError: FailOpen}
	for _, v := range verbCalls[:10] {
		if err := v.call(t.Context(), l.engine, Policy{Name: "p", OnError: FailOpen}); !errors.Is(err, ErrInvalid) || len(s.calls) != 0 {
			t.Errorf("%s: %v, sent %v", v.name, err, s.calls)
		}
	}
	_ = l.Close()
	for _, v := range verbCalls {
		for name, e := range map[string]*engine{"": l.engine, "in a transaction ": l.InTx(nil).engine} {
			if err := v.call(t.Context(), e, p); !errors.Is(err, ErrClosed) || len(s.calls) != 0 {
				t.Errorf("%s%s: %v, sent %v", name, v.name, err, s.calls)
			}
		}
	}
}

// TestEngineObserves: Observe sees each call of each method once, with its verb, error and
// rows; an AllowAll once for each request.
func TestEngineObserves(t *testing.T) {
	var all []Observation
	l, s := watched(t, false, &Config{Observe: func(_ context.Context, o Observation) { all = append(all, o) }})
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 100, Period: time.Hour}
	for _, fails := range []error{nil, fmt.Errorf("%w: away", ErrUnavailable)} {
		s.err = fails
		for _, v := range verbCalls {
			all = nil
			err := v.call(t.Context(), l.engine, p)
			want, rows := 1, 1
			if v.verb == VerbAllowAll {
				want, rows = 2, 2
			}
			if v.verb == VerbAllowAny {
				want = 2
			}
			if err != nil { // Settle and Cancel find no reservation
				rows = 0
			}
			if len(all) != want || all[0].Verb != v.verb || all[0].Err != err || all[0].Rows != rows || all[0].Waiting != 0 ||
				all[0].Request.Key != "k" || all[0].Request.Policy.Name != "p" || all[0].Request.Policy.Algorithm != TokenBucket {
				t.Errorf("%s: %v, observed %+v", v.name, err, all)
			}
		}
	}
}

// TestObserveRefused: Observe sees calls that fail before they begin, and an Undo that has
// nothing to give back, once each.
func TestObserveRefused(t *testing.T) {
	var all []Observation
	l, _ := watched(t, false, &Config{Observe: func(_ context.Context, o Observation) { all = append(all, o) }})
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 100, Period: time.Hour}
	queue := Policy{Name: "q", Algorithm: LeakyBucketQueue, Limit: 100, Period: time.Hour}
	for _, c := range []struct {
		call func(ctx context.Context) error
		verb Verb
		key  string
		err  error
	}{
		{func(ctx context.Context) error { return l.Block(ctx, p, "k", 0) }, VerbBlock, "k", ErrInvalid},
		{func(ctx context.Context) error { _, err := l.Reserve(ctx, p.Request("k", 1), 0); return err }, VerbReserve, "k", ErrInvalid},
		{func(ctx context.Context) error { _, err := l.ReserveUpTo(ctx, p.Request("k", 1), 1); return err }, VerbReserveUpTo, "k", ErrInvalid},
		{func(ctx context.Context) error { _, err := l.Undo(ctx, queue, "k", Result{}); return err }, VerbUndo, "k", ErrUnsupported},
		{func(ctx context.Context) error { _, err := l.Undo(ctx, p, "k", Result{}); return err }, VerbUndo, "k", nil},
		{func(ctx context.Context) error {
			_, err := l.Settle(ctx, "token_bucket:0123456789ABCDEF:p:aw", -1)
			return err
		}, VerbSettle, "", ErrInvalid},
		{func(ctx context.Context) error { return l.Cancel(ctx, "none") }, VerbCancel, "", ErrInvalid},
		{func(ctx context.Context) error { _, err := l.AllowAll(ctx, p.Request("k", -1)); return err }, VerbAllowAll, "k", ErrInvalid},
		{func(ctx context.Context) error { _, err := l.WaitAll(ctx, p.Request("k", -1)); return err }, VerbWaitAll, "k", ErrInvalid},
		{func(ctx context.Context) error { return l.Wait(ctx, p, "k", 1) }, VerbWait, "k", ErrUnsupported},
	} {
		all = nil
		err := c.call(t.Context())
		if !errors.Is(err, c.err) || len(all) != 1 || all[0].Verb != c.verb || all[0].Request.Key != c.key || all[0].Err != err {
			t.Errorf("%s: %v, observed %+v", c.verb, err, all)
		}
	}
}

// TestObserveDuration: Duration is the time until the answer, without the sleep of a Wait.
func TestObserveDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []Observation
		l, s := watched(t, true, &Config{DenyCacheTTL: time.Hour, Observe: func(_ context.Context, o Observation) { all = append(all, o) }})
		s.Store = slow{memory.New()}
		p := Policy{Name: "p", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Minute, Burst: 2}
		for range 2 {
			must.Succeed(t, l.Wait(t.Context(), p, "k", 1))
		}
		for range 2 {
			must.OK(l.AllowN(t.Context(), p, "k", 2))(t)
		}
		var took []time.Duration
		var rows []int
		for _, o := range all {
			took, rows = append(took, o.Duration), append(rows, o.Rows)
		}
		if !slices.Equal(took, []time.Duration{time.Second, time.Second, time.Second, 0}) || !slices.Equal(rows, []int{1, 1, 1, 0}) {
			t.Errorf("took %v, %v rows", took, rows)
		}
	})
}

// slow is a store whose Take takes a second.
type slow struct{ store.Store }

func (s slow) Do(ctx context.Context, op *store.Op) error {
	if op.Kind == store.Take {
		time.Sleep(time.Second)
	}
	return s.Store.Do(ctx, op)
}

// TestObserveAllocates: to be observed costs no allocation.
func TestObserveAllocates(t *testing.T) {
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 1 << 40, Period: time.Hour}
	count := func(config *Config) float64 {
		l := NewMemory(config)
		return testing.AllocsPerRun(1000, func() {
			must.OK(l.Allow(context.Background(), p, "k"))(t)
		})
	}
	var n int
	if without, with := count(nil), count(&Config{Observe: func(_ context.Context, o Observation) { n += o.Rows }}); with > without {
		t.Errorf("%v allocations, %v without Observe", with, without)
	}
}

// TestEngineFailsOpen: FailOpen applies to a store that fails, only for decisions, and not
// in a transaction or for a caller whose context has ended.
func TestEngineFailsOpen(t *testing.T) {
	l, s := watched(t, true, &Config{MisconfiguredFailsOpen: true})
	s.err = fmt.Errorf("%w: away", ErrUnavailable)
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 100, Period: time.Hour, OnError: FailOpen}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, v := range verbCalls {
		if err := v.call(t.Context(), l.engine, p); (err == nil) != v.opens {
			t.Errorf("%s: %v", v.name, err)
		}
		if err := v.call(t.Context(), l.InTx(nil).engine, p); err == nil {
			t.Errorf("%s passed in a transaction", v.name)
		}
		if err := v.call(gone, l.engine, p); err == nil {
			t.Errorf("%s passed after its context had ended", v.name)
		}
	}
	if r, err := l.Allow(t.Context(), p, "k"); err != nil || !r.Allowed || r.Source != SourceDegraded || r.Granted != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	// An AllowAll does only if all its policies do.
	closes := p
	closes.Name, closes.OnError = "closes", FailClosed
	for _, last := range []Policy{p, closes} {
		all, err := l.AllowAll(t.Context(), p.Request("k", 2), last.Request("l", 3))
		if opens := last == p; opens != (err == nil) || opens != all.Allowed || opens && (all.DeniedBy != -1 || all.PerRequest[1].Granted != 3 || all.PerRequest[1].Source != SourceDegraded) {
			t.Errorf("AllowAll with %s: %+v, %v", last.Name, all, err)
		}
	}
	// Not for an overload, a locked row or a statement that is late while others are answered.
	for _, away := range []error{store.ErrLocked, store.ErrOverloaded, store.ErrBusy, store.ErrOwners, fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrAnswering), fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrStarved)} {
		s.err = store.TimedOut(away, time.Second)
		if r, err := l.Allow(t.Context(), p, "k"); !errors.Is(err, away) || r.Allowed {
			t.Errorf("%v: %+v, %v", away, r, err)
		}
	}
	p.OnError = FailClosed
	s.err = fmt.Errorf("%w: 5 wait", ErrOverloaded)
	if r, err := l.Allow(t.Context(), p, "k"); !errors.Is(err, ErrOverloaded) || r.Reason != ReasonOverload || r.Allowed {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestEngineMisconfigured: FailOpen does not apply to ErrMisconfigured, unless the limiter is
// configured so. It is logged once for all verbs.
func TestEngineMisconfigured(t *testing.T) {
	for _, cause := range []error{fmt.Errorf("%w: a grant is missing", ErrMisconfigured), fmt.Errorf("%w: no table", ErrNotMigrated)} {
		for _, opens := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var logged bytes.Buffer
				l, s := watched(t, true, &Config{MisconfiguredFailsOpen: opens, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
				s.err = cause
				p := Policy{Name: "p", Algorithm: GCRA, Limit: 100, Period: time.Hour, OnError: FailOpen}
				for _, v := range verbCalls {
					if err := v.call(t.Context(), l.engine, p); (err == nil) != (opens && v.opens) || err != nil && !errors.Is(err, ErrMisconfigured) {
						t.Errorf("%s: %v", v.name, err)
					}
					if err := v.call(t.Context(), l.InTx(nil).engine, p); !errors.Is(err, ErrMisconfigured) {
						t.Errorf("%s in a transaction: %v", v.name, err)
					}
				}
				if n := strings.Count(logged.String(), "level=ERROR"); n != 1 {
					t.Errorf("%d errors logged: %s", n, &logged)
				}
				logged.Reset()
				time.Sleep(time.Minute)
				_, _ = l.Allow(t.Context(), p, "k")
				if want := fmt.Sprintf("since_last=%d", 2*len(verbCalls)); strings.Count(logged.String(), "level=ERROR") != 1 || !strings.Contains(logged.String(), want) {
					t.Errorf("after a minute: %s, want %s", &logged, want)
				}
			})
		}
	}
}

// meanwhile is a store whose first op waits: a function runs first, and then Known is asked, as a
// dispatcher asks before it sends.
type meanwhile struct {
	store.Store
	first func()
}

func (m *meanwhile) Do(ctx context.Context, op *store.Op) error {
	if first := m.first; first != nil {
		m.first = nil
		if first(); op.Known != nil && op.Known() {
			return store.ErrKnown
		}
	}
	return m.Store.Do(ctx, op)
}

// TestEngineLooksAgain: a denial that comes to be known while a call waits answers the call, of one
// request or several.
func TestEngineLooksAgain(t *testing.T) {
	t.Parallel()
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 1, Period: time.Hour}
	for _, v := range verbCalls {
		if v.name != "Reserve" && v.name != "AllowAll" {
			continue
		}
		l, s := watched(t, true, &Config{})
		l.store = &meanwhile{s, func() {
			_, first := l.Allow(t.Context(), p, "k")
			_, denied := l.Allow(t.Context(), p, "k")
			if s.calls = nil; first != nil || denied != nil {
				t.Error(first, denied)
			}
		}}
		l.unbounded = l.store
		if err := v.call(t.Context(), l.engine, p); err != nil || len(s.calls) != 0 {
			t.Errorf("%s: %v, sent %v", v.name, err, s.calls)
		}
	}
}

// TestEngineRemembers: a denial answers later requests without the store, until a call
// gives something back.
func TestEngineRemembers(t *testing.T) {
	now, _ := manualClock()
	l, s := watched(t, true, &Config{Now: now})
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 1, Period: time.Hour}
	deny := func() {
		t.Helper()
		for range 2 {
			must.OK(l.Allow(t.Context(), p, "k"))(t)
		}
		s.calls = nil
		if r, err := l.Allow(t.Context(), p, "k"); err != nil || r.Allowed || r.Source != SourceCache || len(s.calls) != 0 {
			t.Fatalf("%+v, %v, sent %v", r, err, s.calls)
		}
	}
	for _, v := range verbCalls {
		deny()
		forgets := slices.Contains([]string{"Refund", "Undo", "Reset", "Block", "Unblock"}, v.name)
		s.err = errors.Join(v.call(t.Context(), l.engine, p)) // Settle and Cancel find no reservation
		s.err, s.calls = nil, nil
		r, err := l.Allow(t.Context(), p, "k")
		if err != nil || (len(s.calls) > 0) != forgets {
			t.Errorf("after %s: %+v, %v, sent %v", v.name, r, err, s.calls)
		}
		_ = l.Reset(t.Context(), p, "k")
	}
	for name, cancel := range map[string]func(context.Context, string) error{"Cancel": l.Cancel, "Cancel in a transaction": l.InTx(nil).Cancel} {
		_ = l.Reset(t.Context(), p, "k")
		reservation, err := l.Reserve(t.Context(), p.Request("k", 1), time.Hour)
		if err != nil || !reservation.Result.Allowed {
			t.Fatal(reservation, err)
		}
		deny()
		must.Succeed(t, cancel(t.Context(), reservation.ID))
		if r, err := l.Allow(t.Context(), p, "k"); err != nil || !r.Allowed {
			t.Errorf("after %s: %+v, %v", name, r, err)
		}
	}
	deny()
	if r, err := l.InTx(nil).Allow(t.Context(), p, "k"); err != nil || r.Source == SourceCache {
		t.Errorf("in a transaction: %+v, %v", r, err)
	}
	if r, err := l.Do(t.Context(), Request{Policy: p, Key: "k", Cost: 1, IdempotencyKey: "i"}); err != nil || r.Source == SourceCache {
		t.Errorf("under an idempotency key: %+v, %v", r, err)
	}
	// The denial of an AllowAll is that of the sum for its key: less may fit.
	two := Policy{Name: "two", Algorithm: FixedWindow, Limit: 2, Period: time.Hour}
	must.OK(l.Charge(t.Context(), two, "k", 1))(t)
	for _, source := range []Source{SourceDatabase, SourceCache} {
		all, err := l.AllowAll(t.Context(), two.Request("k", 1), p.Request("l", 1), two.Request("k", 1))
		if err != nil || all.Allowed || all.DeniedBy != 2 || all.PerRequest[2].Source != source {
			t.Errorf("want a denial from %s: %+v, %v", source, all, err)
		}
	}
	if r, err := l.Allow(t.Context(), two, "k"); err != nil || !r.Allowed {
		t.Errorf("one of the two: %+v, %v", r, err)
	}
}

// TestEngineKeepsItsQueries: a query that a statement in flight may still read is not
// reused.
func TestEngineKeepsItsQueries(t *testing.T) {
	l, s := watched(t, false, nil)
	s.err = ErrUnavailable
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 1, Period: time.Hour, OnError: FailOpen}
	for range 100 {
		c := l.call(verbTake, p.Request("k", 1))
		must.OK(l.decide(t.Context(), c))(t)
		if again := l.call(verbTake, p.Request("other", 1)); again == c {
			t.Fatal("the query was used again")
		}
	}
}
