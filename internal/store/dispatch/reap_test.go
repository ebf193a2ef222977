package dispatch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
)

// counting is a store in memory that counts looks at due reservations and fails them with
// err if that is set. It notes when the first Take began, and the latest deadline of what
// follows.
type counting struct {
	*memory.Store
	due, nextDue int
	err          error
	began, ends  time.Time
	slow         time.Duration // lets the second Take's context end
	takes        int
}

func (c *counting) note(ctx context.Context) {
	if c.began.IsZero() {
		c.began = time.Now()
		return
	}
	ends, ok := ctx.Deadline()
	if !ok {
		ends = c.began.Add(1000 * time.Hour)
	}
	if ends.After(c.ends) {
		c.ends = ends
	}
}

func (c *counting) Do(ctx context.Context, op *store.Op) error {
	switch op.Kind {
	case store.Take, store.Settle:
		c.note(ctx)
	case store.NextDue:
		c.nextDue++
	case store.Due:
		c.note(ctx)
		if c.due++; c.err != nil {
			return c.err
		}
	}
	if op.Kind == store.Take {
		if c.takes++; c.takes == 2 && c.slow > 0 {
			time.Sleep(c.slow)
			return store.EndedContext(ctx)
		}
	}
	return c.Store.Do(ctx, op)
}

// take takes, and get reads.
func (s *Reaper) take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	op := &store.Op{Query: *q}
	err := s.Do(ctx, op)
	return op.Outcome, err
}

func (s *Reaper) get(ctx context.Context, q *store.Query) (store.Outcome, error) {
	op := &store.Op{Kind: store.Get, Query: *q}
	err := s.Do(ctx, op)
	return op.Outcome, err
}

// newReaper returns a Reaper over one in memory, and the keys that it says were freed.
func newReaper() (*Reaper, *counting, *[]string) {
	c := &counting{Store: memory.New()}
	freed := new([]string)
	return NewReaper(c, 0, func(_ algorithm.Name, _, key string) { *freed = append(*freed, key) }), c, freed
}

func windowQuery(key string, cost float64, now int64) *store.Query {
	return &store.Query{
		Algorithm: algorithm.FixedWindow, Policy: "p", Key: key,
		Units: cost, Cost: cost, Count: 1, Unit: cost, Room: 10, Now: &now,
		Rules: algorithm.Rules{Burst: 10, Capacity: 10, Tick: 1, Period: 3600e6, Lifetime: 3600e6},
	}
}

// reserve reserves units for a second.
func reserve(t *testing.T, s *Reaper, id, key string, units float64, now int64) {
	t.Helper()
	op := &store.Op{Kind: store.Reserve, Query: *windowQuery(key, units, now), Admission: &store.Admission{ID: id, State: store.Open, TTL: 1e6, Remember: 3600e6}}
	if err := s.Do(t.Context(), op); err != nil || op.Outcome.Granted != 1 {
		t.Fatal(op.Outcome, err)
	}
}

// TestTakeGetsWhatExpired: expired reservations go back before a denial stands, open ones
// do not.
func TestTakeGetsWhatExpired(t *testing.T) {
	s, _, freed := newReaper()
	reserve(t, s, "a", "k", 4, 0)
	reserve(t, s, "b", "k", 6, 5e5)
	if o, err := s.take(t.Context(), windowQuery("k", 1, 9e5)); err != nil || o.Granted != 0 {
		t.Errorf("while both are open: %+v, %v", o, err)
	}
	if o, err := s.take(t.Context(), windowQuery("k", 4, 1e6)); err != nil || o.Granted != 1 {
		t.Errorf("after the first expired: %+v, %v", o, err)
	}
	if o, err := s.take(t.Context(), windowQuery("k", 1, 12e5)); err != nil || o.Granted != 0 {
		t.Errorf("while the second is open: %+v, %v", o, err)
	}
	if len(*freed) != 1 || (*freed)[0] != "k" {
		t.Errorf("freed %v", *freed)
	}
}

// later is a store whose decisions read the clock at a time after their callers did, as
// shared statements do.
type later struct {
	store.Store
	at int64
}

func (s later) Do(ctx context.Context, op *store.Op) error {
	if op.Kind != store.Take {
		return s.Store.Do(ctx, op)
	}
	asked := op.Now
	defer func() { op.Now = asked }()
	op.Now = &s.at
	return s.Store.Do(ctx, op)
}

// TestTakeGetsWhatExpiredMeanwhile: a reservation that expired between the call and its
// statement goes back too.
func TestTakeGetsWhatExpiredMeanwhile(t *testing.T) {
	s, _, _ := newReaper()
	reserve(t, s, "a", "k", 10, 0)
	s.Store = later{s.Store, 2e6}
	if o, err := s.take(t.Context(), windowQuery("k", 10, 9e5)); err != nil || o.Granted != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestTakeGetsABoundedNumberBack: of more expired reservations than one list has, a
// request gets those of one list, and the next request more. The timeout bounds all of that.
func TestTakeGetsABoundedNumberBack(t *testing.T) {
	s, c, _ := newReaper()
	s.timeout = time.Minute
	for i := range 2 * store.MaxDue {
		reserve(t, s, fmt.Sprint(i), "k", 1.0/64, 0)
	}
	for i, want := range []float64{0, 1} {
		c.began, c.ends = time.Time{}, time.Time{}
		o, err := s.take(t.Context(), windowQuery("k", 10, 2e6))
		if err != nil || o.Granted != want || c.due != i+1 {
			t.Errorf("%+v, %v after %d looks", o, err, c.due)
		}
		if late := c.ends.Sub(c.began.Add(s.timeout)); late > 0 {
			t.Errorf("may last %v longer than the timeout", late)
		}
	}
}

// TestRepetitionWithoutTime is an error for which no policy fails open.
func TestRepetitionWithoutTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c, _ := newReaper()
		s.timeout, c.slow = time.Second, 2*time.Second
		reserve(t, s, "a", "k", 10, 0)
		_, err := s.take(t.Context(), windowQuery("k", 1, 2e6))
		if !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, store.ErrAnswering) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestTakeLiftsTheBlockOfItsDenial: the block of a denial because of an expired
// reservation is lifted, and no other.
func TestTakeLiftsTheBlockOfItsDenial(t *testing.T) {
	s, _, _ := newReaper()
	reserve(t, s, "a", "k", 10, 0)
	q := windowQuery("k", 10, 2e6)
	q.BlockFor = 60e6
	if o, err := s.take(t.Context(), q); err != nil || o.Granted != 1 || o.IsBlocked() {
		t.Errorf("%+v, %v", o, err)
	}
	reserve(t, s, "b", "blocked", 10, 0)
	must.Succeed(t, s.Do(t.Context(), &store.Op{Kind: store.Block, Query: *windowQuery("blocked", 1, 0), ForUs: 60e6}))
	if o, err := s.take(t.Context(), windowQuery("blocked", 1, 2e6)); err != nil || !o.Blocked {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestGetSeesWhatExpired: Get gives expired reservations back, but not in a transaction,
// where it locks nothing.
func TestGetSeesWhatExpired(t *testing.T) {
	s, c, _ := newReaper()
	reserve(t, s, "a", "k", 10, 0)
	level := func(s *Reaper) float64 {
		o := must.OK(s.get(t.Context(), windowQuery("k", 1, 2e6)))(t)
		return o.View.Level(&windowQuery("k", 1, 0).Rules, o.UpdatedAt)
	}
	if l := level(s.InTx(c)); l != 10 || c.due != 0 {
		t.Errorf("in a transaction the level is %v after %d looks", l, c.due)
	}
	if l := level(s); l != 0 {
		t.Errorf("the level is %v", l)
	}
}

// TestTakeAllGetsWhatExpired: expired reservations of each key that denied go back.
func TestTakeAllGetsWhatExpired(t *testing.T) {
	s, _, freed := newReaper()
	reserve(t, s, "a", "a", 10, 0)
	reserve(t, s, "b", "b", 10, 0)
	op := &store.Op{Kind: store.TakeAll, Groups: []*store.Group{
		{Query: *windowQuery("a", 1, 2e6), Needs: []float64{1}}, {Query: *windowQuery("b", 1, 2e6), Needs: []float64{1}},
	}}
	if err := s.Do(t.Context(), op); err != nil || !op.Allowed || len(*freed) != 2 {
		t.Errorf("%v, %v, freed %v", op.Allowed, err, *freed)
	}
}

// TestLooksThatFail: the denial stands, except in a transaction, which has failed.
func TestLooksThatFail(t *testing.T) {
	s, c, _ := newReaper()
	reserve(t, s, "a", "k", 10, 0)
	c.err = errors.New("away")
	if o, err := s.take(t.Context(), windowQuery("k", 1, 2e6)); err != nil || o.Granted != 0 {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := s.InTx(c).take(t.Context(), windowQuery("k", 1, 2e6)); err != c.err {
		t.Errorf("in a transaction: %v", err)
	}
}

// TestLooksAreSpared: while no reservation of any key can have expired, denials do not
// look for any. After that they look again. A full queue or an impossible cost never looks.
func TestLooksAreSpared(t *testing.T) {
	synctest.Test(t, testLooksAreSpared)
}

func testLooksAreSpared(t *testing.T) {
	s, c, _ := newReaper()
	q := windowQuery("k", 6, 0)
	q.Now = nil // the watch is about the store's clock
	for looks := range 3 {
		for range 100 {
			must.OK(s.take(t.Context(), q))(t)
		}
		if c.nextDue != looks+1 || c.due != 0 {
			t.Errorf("%d: looked %d times for the next, %d times at the key", looks, c.nextDue, c.due)
		}
		time.Sleep(store.MinTTL)
	}
	for _, q := range []*store.Query{windowQuery("k", 11, 0), windowQuery("k", 0, 0)} {
		if _, err := s.get(t.Context(), q); err != nil || c.due != 0 {
			t.Errorf("cost %v: looked %d times, %v", q.Cost, c.due, err)
		}
	}
}
