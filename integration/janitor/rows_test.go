package janitor

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

// TestJanitorRowsGoWhenTheyAreEmpty: a key is used at its first moment, repeatedly, and
// then no more. Its row stays while it counts, and is deleted at most an hour and a sweep
// later. For a key in use the janitor writes at most once an hour.
func TestJanitorRowsGoWhenTheyAreEmpty(t *testing.T) {
	t.Parallel()
	policies := append(testworld.Variants(10, 10*time.Minute), testworld.Variants(10, 5*time.Hour)...)
	policies = append(policies, limiter.Policy{Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Day})
	for i, p := range policies {
		p.Name = fmt.Sprintf("rows-%d", i)
		t.Run(fmt.Sprint(testworld.Variant(p), p.Period, p.Calendar), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := testworld.NewPool(t)
			clock := new(conformance.Clock)
			l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
			j := testworld.NewJanitor(t, pool, &janitor.Config{Now: clock.Now})
			table := testworld.TableOf(p.Algorithm)
			const minute = 60_000_000
			var at, used int64
			tick := func(used bool) janitor.Removed {
				at += 20 * minute
				clock.Set(at)
				if used {
					testworld.Must(t)(l.Allow(ctx, p, "k"))
				}
				return must.OK(j.Sweep(ctx))(t)
			}
			kept := int64(0)
			for used < 24*60*minute { // a day of use
				r := tick(true)
				if r.Total() > 0 && !holdsNothing(t, l, p) {
					t.Fatalf("a row in use was deleted at %d", at)
				}
				kept += r.Kept
				used = at
			}
			if kept > 25 {
				t.Errorf("the janitor wrote %d times in a day of use", kept)
			}
			emptyAt := used + testworld.Must(t)(l.Check(ctx, p, "k", 0)).ResetAfter.Microseconds()
			for count(t, pool, table) > 0 {
				if tick(false); at > emptyAt+81*minute { // an hour, a sweep, and a minute
					t.Fatalf("empty at %d, and its row is there at %d", emptyAt, at)
				}
			}
			if at < emptyAt {
				t.Errorf("empty at %d, and gone at %d", emptyAt, at)
			}
		})
	}
}

// holdsNothing reports whether the key is empty.
func holdsNothing(t *testing.T, l *limiter.Limiter, p limiter.Policy) bool {
	t.Helper()
	return testworld.Must(t)(l.Check(t.Context(), p, "k", 0)).Level == 0
}

// TestJanitorRowsStayWhileTheyCount: a block, an open reservation and a clock that was set
// back keep a row, however long ago its level was gone.
//
// An empty key keeps its row until its last decision is a minute ago. Without the row the
// key's clock would move back, for statements too that read the clock before that decision
// and have waited for other rows since.
func TestJanitorRowsStayWhileTheyCount(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	clock := new(conformance.Clock)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true})
	j := testworld.NewJanitor(t, pool, &janitor.Config{Now: clock.Now})
	for _, p := range testworld.Variants(10, time.Second) {
		table := testworld.TableOf(p.Algorithm)
		sweep := func(at time.Duration, rows int) {
			t.Helper()
			clock.Set((at + inFlight).Microseconds())
			testworld.Exec(t, pool, "UPDATE "+table+" SET expires_at_us = 0") // whatever the last look has set
			must.OK(j.Sweep(ctx))(t)
			if n := count(t, pool, table); n != rows && rows >= 0 {
				t.Errorf("%s: at %v there are %d rows, want %d", testworld.Variant(p), at, n, rows)
			}
		}
		block := func(key string, d time.Duration) {
			t.Helper()
			must.Succeed(t, l.Block(ctx, p, key, d))
		}
		clock.Set(1_000_000)
		testworld.Must(t)(l.AllowN(ctx, p, "blocked", 5))
		block("blocked", time.Hour)
		testworld.Must(t)(l.AllowN(ctx, p, "used", 5))
		rows := 1
		if p.Algorithm != limiter.LeakyBucketQueue {
			must.OK(l.Reserve(ctx, p.Request("held", 5), 2*time.Hour))(t)
			rows++
		}
		sweep(0, rows+1) // the clock was set back
		sweep(10*time.Second, rows)
		sweep(time.Hour+2*time.Second, rows-1)
		sweep(3*time.Hour, -1) // the reservation's units go back, which uses some rows
		sweep(3*time.Hour+inFlight, 0)

		clock.Set(1_000_000)
		testworld.Must(t)(l.AllowN(ctx, p, "k", 5))
		clock.Set(10_000_000) // empty by now, and a block that is lifted again
		block("k", time.Second)
		testworld.Must(t)(l.Allow(ctx, p, "k"))
		must.Succeed(t, l.Unblock(ctx, p, "k"))
		sweep(9_999_999*time.Microsecond, 1)
		sweep(10*time.Second, 0)
	}
}

// inFlight is the time that an empty row stays for statements that began before it was used.
const inFlight = time.Minute

// TestViewsShowWhenAKeyIsEmpty: the views show that time, and not when the janitor looks.
func TestViewsShowWhenAKeyIsEmpty(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	for _, p := range testworld.Variants(10, time.Hour) {
		l := testworld.NewLimiter(t, pool, nil)
		testworld.Must(t)(l.AllowN(ctx, p, "k", 3))
		r := testworld.Must(t)(l.Check(ctx, p, "k", 0))
		at := testworld.Value[time.Time](t, pool, `SELECT empty_at FROM `+testworld.TableOf(p.Algorithm)+`_now WHERE policy = $1`, p.Name)
		if off := at.Sub(r.At.Add(r.ResetAfter)).Abs(); off > time.Millisecond {
			t.Errorf("%s: the view says %v, the limiter %v", testworld.Variant(p), at, r.At.Add(r.ResetAfter))
		}
	}
}
