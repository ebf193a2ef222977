package share

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// heldLimit is how much a key may use in these tests. Its period is longer than a test.
const heldLimit = 10

// neighbours are the keys before and after locked keys in the lock order.
var neighbours = []string{"a0", "z0", "a1", "z1", "a2", "z2", "a3", "z3", "a4", "z4", "a5", "z5", "a6", "z6", "a7", "z7", "a8", "z8", "a9", "z9"}

// newHeld creates callers with four connections, one of which waits for locked rows. Its
// breaker opens after one failure: a locked row is not a failure of the server.
func newHeld(t *testing.T) *callers {
	t.Helper()
	return newCallers(t, testworld.NewDatabase(t), limiter.Config{BreakAfter: 1}, testworld.FourConnections)
}

// hold uses half of each key's limit, in a transaction that stays open.
func (c *callers) hold(t *testing.T, p limiter.Policy, keys ...string) pgx.Tx {
	t.Helper()
	tx := testworld.Begin(t, c.business, pgx.TxOptions{})
	for _, key := range keys {
		testworld.Must(t)(c.InTx(tx).AllowN(t.Context(), p, key, heldLimit/2))
	}
	return tx
}

// update uses half of each key's limit, then updates the keys' rows with plain SQL in a
// transaction that stays open.
func (c *callers) update(t *testing.T, p limiter.Policy, keys ...string) pgx.Tx {
	t.Helper()
	testworld.Commit(t, c.hold(t, p, keys...))
	return update(t, c.business, p, keys...)
}

// wait requests a locked key while nothing else is in flight, and returns once the request
// waits.
func (c *callers) wait(ctx context.Context, t *testing.T, request limiter.Request) <-chan testworld.Answer {
	t.Helper()
	n := c.Waiting() + 1
	a := testworld.Request(ctx, c.Limiter, request)
	testworld.AwaitWaiting(t, c.Limiter, n)
	return a
}

// stallsNobody expects that a transaction that has locked the rows of keys delays no
// request for another key, and that each request for a locked key gets its answer when the
// transaction commits. lone: nothing else is in flight at first.
func (c *callers) stallsNobody(t *testing.T, p limiter.Policy, tx pgx.Tx, keys []string, lone bool) {
	t.Helper()
	ctx := t.Context()
	held := map[string][]<-chan testworld.Answer{}
	var free []<-chan testworld.Answer
	c.Shut()
	if !lone {
		free = append(free, c.Queue(ctx, p.Request("first", 1)))
	}
	for _, key := range keys {
		held[key] = append(held[key], c.Queue(ctx, p.Request(key, 1)))
	}
	for i, key := range neighbours {
		free = append(free, c.Queue(ctx, p.Request(key, 1)))
		if i%7 == 0 {
			for _, key := range keys {
				held[key] = append(held[key], c.Queue(ctx, p.Request(key, 1)))
			}
		}
	}
	c.Reopen()
	for _, a := range free {
		if r := testworld.ResultOf(t, "a neighbour", a); !r.Allowed || !testworld.Near(r.Level, 1) {
			t.Errorf("a neighbour: %+v", r)
		}
	}

	// New requests for locked keys no longer share statements with others.
	c.sent.Take()
	for _, key := range keys {
		for range 3 {
			held[key] = append(held[key], c.wait(ctx, t, p.Request(key, 1)))
		}
	}
	free = nil
	for range 5 {
		for _, key := range neighbours {
			free = append(free, testworld.Request(ctx, c.Limiter, p.Request(key, 1)))
		}
	}
	for _, a := range free {
		if r := testworld.ResultOf(t, "a neighbour once more", a); !r.Allowed {
			t.Errorf("a neighbour once more: %+v", r)
		}
	}
	for _, named := range keysSent(c.sent) {
		if len(named) > 1 && slices.ContainsFunc(keys, func(key string) bool { return slices.Contains(named, key) }) {
			t.Errorf("of %v some were in a statement with others: %v", keys, named)
		}
	}
	for _, key := range keys {
		for i, a := range held[key] {
			select {
			case got := <-a:
				t.Errorf("request %d for %s, whose row is locked: %+v, %v", i, key, got.Result, got.Err)
			default:
			}
		}
	}

	testworld.Commit(t, tx)
	levels := map[string]float64{}
	for _, key := range keys {
		for i, a := range held[key] {
			r := testworld.ResultOf(t, "a key that was held", a)
			if r.Allowed != (i < heldLimit/2) || !testworld.Near(r.Remaining, float64(max(0, heldLimit/2-1-i))) {
				t.Errorf("request %d of %d for %s: %+v", i, len(held[key]), key, r)
			}
		}
		levels[key] = heldLimit
	}
	for _, key := range neighbours {
		levels[key] = 6
	}
	expectLevels(t, c.Limiter, p, levels)
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d callers wait in the end", n)
	}
}

// keysSent returns the keys of each statement that was sent since the last Take.
func keysSent(sent *testworld.Trace) (all [][]string) {
	for _, together := range sent.Take() {
		for _, q := range together {
			var keys []string
			for _, arg := range q.Arguments {
				if words, ok := arg.([]string); ok && len(words) > len(keys) {
					keys = words
				}
			}
			all = append(all, keys)
		}
	}
	return all
}

// TestHeldRowsStallNobody: while a transaction has locked rows, all other keys get their
// answers. Then the callers of the locked keys get theirs, each once and in order of
// arrival.
func TestHeldRowsStallNobody(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name string
		hold func(*callers, *testing.T, limiter.Policy, ...string) pgx.Tx
		keys []string
		lone bool // the very first request is for a locked key
	}{
		{"alone", (*callers).hold, []string{"m"}, true},
		{"alone, by an update", (*callers).update, []string{"m"}, true},
		{"in a batch", (*callers).update, []string{"m"}, false},
		{"two not there yet", (*callers).hold, []string{"m", "n"}, false},
		{"more than wait at once", (*callers).update, []string{"m", "n", "o", "p", "q"}, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := newHeld(t)
			for _, p := range testworld.Variants(heldLimit, 1000*time.Hour) {
				t.Run(testworld.Variant(p), func(t *testing.T) {
					c.stallsNobody(t, p, s.hold(c, t, p, s.keys...), s.keys, s.lone)
				})
			}
		})
	}
}

// TestHeldRowsOverSQLStallNobody: as TestHeldRowsStallNobody.
func TestHeldRowsOverSQLStallNobody(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		address := testworld.NewDatabase(t)
		for _, most := range []int{4, 0} { // connections
			db := testworld.ConnectSQL(t, driver, address)
			db.SetMaxOpenConns(most)
			l := testworld.NewSQL(t, db, &limiter.Config{BreakAfter: 1})
			for _, p := range testworld.Variants(heldLimit, 1000*time.Hour) {
				p.Name += fmt.Sprint("-of-", most)
				tx := must.OK(db.Begin())(t)
				testworld.Must(t)(l.InSQLTx(tx).AllowN(t.Context(), p, "m", heldLimit/2))
				var held []<-chan testworld.Answer
				for i := range heldLimit {
					held = append(held, testworld.Request(t.Context(), l, p.Request("m", 1)))
					testworld.AwaitWaiting(t, l, i+1)
				}
				for _, key := range neighbours {
					testworld.ResultOf(t, "a neighbour", testworld.Request(t.Context(), l, p.Request(key, 1)))
				}
				must.Succeed(t, tx.Commit())
				for i, a := range held {
					if r := testworld.ResultOf(t, "the key that was held", a); r.Allowed != (i < heldLimit/2) {
						t.Errorf("%s: request %d: %+v", testworld.Variant(p), i, r)
					}
				}
			}
		}
	})
}

// TestHeldRowsThatNobodySees: an inserted, uncommitted row is found without one statement
// for each of its neighbours.
func TestHeldRowsThatNobodySees(t *testing.T) {
	t.Parallel()
	c := newHeld(t)
	tx := c.hold(t, bucket, "50")
	c.Shut()
	free := []<-chan testworld.Answer{c.Queue(t.Context(), bucket.Request("first", 1))}
	var held <-chan testworld.Answer
	for i := range 100 {
		a := c.Queue(t.Context(), bucket.Request(fmt.Sprintf("%02d", i), 1))
		if i == 50 {
			held = a
		} else {
			free = append(free, a)
		}
	}
	c.sent.Take()
	c.Reopen()
	for _, a := range free {
		testworld.ResultOf(t, "a neighbour", a)
	}
	n := 0
	for _, keys := range keysSent(c.sent) {
		if len(keys) <= 1 {
			n++
		}
	}
	if n > 20 && !testworld.Citus() { // there the keys are in arguments of arguments
		t.Errorf("%d statements for one row each", n)
	}
	testworld.Commit(t, tx)
	testworld.ResultOf(t, "the key that was held", held)
}
