package contest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
	"golang.org/x/sync/errgroup"
)

const (
	// holdMost is the longest time that a row stays locked. It is well below the timeout
	// of requests.
	holdMost = 5 * time.Second
	// holdAnswers is the number of requests for other keys that must be answered before
	// a row is unlocked.
	holdAnswers = 10
)

// heldCallers returns how many workers may request the key of the locked row at once: a
// quarter, and never all, because they wait and other keys need workers too.
func heldCallers(workers int) int { return min(workers/2, max(1, workers/4)) }

// holding is the state of the row that a transaction has locked.
type holding struct {
	most    time.Duration
	callers chan struct{} // one for each worker that requests the key of the locked row
	now     atomic.Pointer[heldRow]
	over    atomic.Bool // no row will be locked any more
}

// heldRow is a locked row. It counts the answers for other keys meanwhile.
type heldRow struct {
	request
	holding *holding
	mu      sync.Mutex
	called  bool // a worker requests its key, or no more may
	others  int64
	enough  chan struct{}
}

// enter lets a worker request the key of the locked row, unless too many do.
func (h *holding) enter() (leave func(), ok bool) {
	select {
	case h.callers <- struct{}{}:
		return func() { <-h.callers }, true
	default:
		return nil, false
	}
}

// begin records that a request for s begins. It returns the row that is locked then, or
// nil.
func (h *holding) begin(s subject) *heldRow {
	row := h.now.Load()
	if row != nil && row.subject == s {
		row.see(func() { row.called = true })
	}
	return row
}

// answered records the answer to a request for s that began while the row was locked.
func (r *heldRow) answered(s subject) {
	if r != nil && r.subject.kind != s.kind && r.holding.now.Load() == r {
		r.see(func() { r.others++ })
	}
}

// see changes the counts. It unlocks the row when they are sufficient.
func (r *heldRow) see(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.called && r.others >= holdAnswers
	change()
	if !before && r.called && r.others >= holdAnswers {
		close(r.enough)
	}
}

// seen returns how many requests for other keys were answered.
func (r *heldRow) seen() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others
}

// hold locks rows in transactions, one after the other, until until; at least one. It
// keeps each locked until requests for its key have begun and requests for others were
// answered.
func (c *Contest) hold(ctx context.Context, until time.Time) error {
	defer c.holding.over.Store(true)
	books := tallies{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tallies.add(books)
	}()
	failures := 0
	for done := false; ctx.Err() == nil && (!done || time.Now().Before(until)); {
		s := c.groups.of(heldKind)
		t := books.of(s)
		t.requests++
		t.asked++
		commit := rand.IntN(2) == 0
		row := &heldRow{request: s, holding: &c.holding, enough: make(chan struct{})}
		stalled := false
		var r limiter.Result
		err := c.holder.InTx(ctx, commit, func(tx verbs.Limiter) (err error) {
			if r, err = tx.AllowN(ctx, s.policy, s.key, 1); err == nil {
				stalled = c.whileHeld(ctx, row)
			}
			return err
		})
		c.count(row, stalled, err == nil)
		switch fateOf(err) {
		case answered:
			done, failures = true, 0
		case undone:
			continue
		case hopeless:
			return err
		default:
			t.Add(0, 1)
			if failures++; failures >= maxFailures {
				return fmt.Errorf("%d transactions in a row failed, the last: %w", failures, err)
			}
			continue
		}
		switch {
		case !r.Allowed:
			s.usedUp()
		case commit:
			t.Add(1, 1)
		default:
			t.rolledBack++
		}
	}
	return nil
}

// whileHeld returns when row was locked for long enough. stalled reports whether no
// other key was answered meanwhile.
func (c *Contest) whileHeld(ctx context.Context, row *heldRow) (stalled bool) {
	c.holding.now.Store(row)
	defer c.holding.now.Store(nil)
	if callers := c.holding.callers; len(callers) == cap(callers) { // their requests may have begun just before
		row.see(func() { row.called = true })
	}
	most := time.NewTimer(c.holding.most)
	defer most.Stop()
	select {
	case <-row.enough:
		return false
	case <-ctx.Done():
		return false
	case <-most.C:
		return row.seen() == 0
	}
}

// count adds a locked row to the report's counts.
func (c *Contest) count(row *heldRow, stalled, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meanwhile += row.seen()
	if stalled {
		c.stalls++
	}
	if whole {
		c.rowsHeld++
	}
}

const (
	maxChecked = 100 // keys of reservations, and sets, whose counts are read at the end
	tolerance  = 0.5 // units that may have leaked; all costs are whole
	// agreeWithin is the time for requests in flight of disconnected clients, after which
	// the keys of a set must agree.
	agreeWithin = 2 * time.Second
	agreeEvery  = 20 * time.Millisecond
)

// counted is keys to check: one of reservations, or a set.
type counted struct {
	keys    []subject
	tallies []*tally
}

// checkCounted compares what the database counts for some keys of AllowAll and of Reserve
// with what their clients were answered. It begins when no worker sends any more.
func (c *Contest) checkCounted(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	until := time.Now().Add(agreeWithin)
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(len(c.clients))
	for i, one := range c.toCheck() {
		all.Go(func() error { return c.check(ctx, c.clients[i%len(c.clients)], one, until) })
	}
	return all.Wait()
}

// toCheck chooses the keys to check.
func (c *Contest) toCheck() (all []counted) {
	sets, reserved := map[string]*counted{}, 0
	for s, t := range c.tallies {
		switch {
		case s.kind == reservedKind && reserved < maxChecked:
			reserved++
			all = append(all, counted{[]subject{s}, []*tally{t}})
		case t.set != "":
			set := sets[t.set]
			if set == nil {
				set = &counted{}
				sets[t.set] = set
			}
			set.keys, set.tallies = append(set.keys, s), append(set.tallies, t)
		}
	}
	for _, set := range sets {
		if len(all) < reserved+maxChecked {
			all = append(all, *set)
		}
	}
	return all
}

// check reads the counts of keys, and records what is wrong. Keys of a set have until then
// to agree.
func (c *Contest) check(ctx context.Context, to Client, one counted, until time.Time) error {
	levels := make([]float64, len(one.keys))
	for {
		for i, s := range one.keys {
			level, err := level(ctx, to, one.tallies[i], s)
			if err != nil {
				return err
			}
			levels[i] = level
		}
		if one.agree(levels) || time.Now().After(until) {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(agreeEvery):
		}
	}
	for i, t := range one.tallies {
		account := t.Account
		if r := c.reservations[one.keys[i]]; r != nil {
			account = r.account
		}
		if _, _, err := account.Judge(levels[i], tolerance); err != nil {
			t.wrong("%v", err)
		}
		if t.alike && !one.agree(levels) {
			t.wrong("%.2f units are counted, but the keys that were always requested with it have another count", levels[i])
		}
	}
	return nil
}

// agree reports whether the keys that are only requested together have the same level.
func (one counted) agree(levels []float64) bool {
	of := -1
	for i, t := range one.tallies {
		switch {
		case !t.alike:
		case of < 0:
			of = i
		case levels[i] < levels[of]-tolerance || levels[i] > levels[of]+tolerance:
			return false
		}
	}
	return true
}

// level returns the units counted for a key.
func level(ctx context.Context, to Client, t *tally, s subject) (float64, error) {
	for failures := 1; ; failures++ {
		u, err := to.Usage(ctx, t.plans[0], s.key)
		if err == nil {
			return u.Result.Level, nil
		}
		if failures >= maxFailures || fateOf(err) == hopeless || ctx.Err() != nil {
			return 0, fmt.Errorf("read a key's usage: %w", err)
		}
	}
}
