package coalesce

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestCoalesceDecidesAsMemory sends random requests, equal and unequal, for a few keys
// under a few plans while a statement is in flight. Each gets the answer that memory
// gives, one after the other.
func TestCoalesceDecidesAsMemory(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	bed.SearchBatches(t, search.Draw{}, 12, func(t *testing.T, config limiter.Config) bed.Door { return bed.NewDoorway(t, address, config) })
}

// door is a doorway of either kind.
type door = bed.Door

// TestCoalesceGrantsEqualRequestsInOrder counts statements too: one for the first request,
// one for all that arrived later.
func TestCoalesceGrantsEqualRequestsInOrder(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	g := bed.NewDoorway(t, address, limiter.Config{})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 30, Period: 1000 * time.Hour}
	g.Shut()
	var answers []<-chan bed.Answer
	for range 100 {
		answers = append(answers, g.Queue(t.Context(), p.Request("hot", 1)))
	}
	g.Reopen()
	for i, a := range answers {
		got := <-a
		if got.Err != nil || got.Allowed != (i < 30) || got.Remaining != float64(max(0, 29-i)) {
			t.Errorf("request %d: %+v, %v", i, got.Result, got.Err)
		}
	}
	if count := bed.Value[float64](t, bed.Connect(t, address), `SELECT granted FROM pglimit_fixed_window`); count != 29 {
		t.Errorf("the last statement granted %v requests, not 29 of the 99 that waited", count)
	}
}

// TestCoalesceFailsOneBadRequestAlone puts a key that the database cannot store between
// others: their statement fails, and the others are still decided.
func TestCoalesceFailsOneBadRequestAlone(t *testing.T) {
	t.Parallel()
	g := &bed.Doorway{Arrived: make(chan struct{})}
	g.Limiter = bed.NewGated(t, bed.Latin1(t, g.Guard), limiter.Config{})
	failsOneBadRequestAlone(t, g)
}

func failsOneBadRequestAlone(t *testing.T, g door) {
	t.Helper()
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
	g.Shut()
	var answers []<-chan bed.Answer
	keys := []string{"first", "a", "not in Latin-1: 猫", "z", "a"}
	for _, key := range keys {
		answers = append(answers, g.Queue(t.Context(), p.Request(key, 1)))
	}
	g.Reopen()
	for i, a := range answers {
		got := <-a
		if bad := i == 2; bad != errors.Is(got.Err, limiter.ErrInvalid) || bad == got.Allowed {
			t.Errorf("%q: %+v, %v", keys[i], got.Result, got.Err)
		}
	}
}

// TestCoalesceCancelledInQueueConsumesNothing cancels two of three requests before their
// statement is sent.
func TestCoalesceCancelledInQueueConsumesNothing(t *testing.T) {
	t.Parallel()
	g := bed.NewDoorway(t, bed.NewDatabase(t), limiter.Config{})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	g.Shut()
	first := g.Queue(t.Context(), p.Request("first", 1))
	ctx, cancel := context.WithCancel(t.Context())
	gone := []<-chan bed.Answer{g.Queue(ctx, p.Request("alone", 1)), g.Queue(ctx, p.Request("shared", 1))}
	stays := g.Queue(t.Context(), p.Request("shared", 1))
	cancel()
	for _, a := range gone {
		if got := <-a; !errors.Is(got.Err, context.Canceled) {
			t.Errorf("cancelled in the queue: %+v, %v", got.Result, got.Err)
		}
	}
	g.Reopen()
	for _, a := range []<-chan bed.Answer{first, stays} {
		if got := <-a; got.Err != nil || got.Remaining != 9 {
			t.Errorf("%+v, %v", got.Result, got.Err)
		}
	}
	if r, err := g.Check(t.Context(), p, "alone", 0); err != nil || r.Level != 0 {
		t.Errorf("the key of the one who left: %+v, %v", r, err)
	}
}

// TestCoalesceTimeoutInQueue lets Config.Timeout end the wait for a statement.
func TestCoalesceTimeoutInQueue(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	g := bed.NewDoorway(t, address, limiter.Config{Timeout: 50 * time.Millisecond})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
	g.Shut()
	var first <-chan bed.Answer
	for g.Asked == 0 { // until it reaches the gate within its timeout
		first = g.Queue(t.Context(), p.Request("first", 1))
	}
	second := g.Queue(t.Context(), p.Request("second", 1))
	if got := <-second; !errors.Is(got.Err, limiter.ErrUnavailable) || !strings.Contains(got.Err.Error(), "Config.Timeout is 50ms") {
		t.Errorf("%+v, %v", got.Result, got.Err)
	}
	g.Reopen()
	<-first
	if err := g.Close(); err != nil { // what is in flight has ended
		t.Error(err)
	}
	other := bed.NewLimiter(t, bed.Connect(t, address), nil)
	if r := bed.Must(t)(other.Check(t.Context(), p, "second", 0)); r.Level != 0 {
		t.Errorf("the key of the one who waited too long: %+v", r)
	}
}

// TestCoalesceOverload: more callers arrive than may wait. FailOpen is not for that.
func TestCoalesceOverload(t *testing.T) {
	t.Parallel()
	g := bed.NewDoorway(t, bed.NewDatabase(t), limiter.Config{MaxWaiting: 3})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
	g.Shut()
	var answers []<-chan bed.Answer
	for i := range 3 {
		answers = append(answers, g.Queue(t.Context(), p.Request(fmt.Sprint(i), 1)))
	}
	if r, err := g.Allow(t.Context(), p, "one too many"); !errors.Is(err, limiter.ErrOverloaded) || r.Reason != limiter.ReasonOverload {
		t.Errorf("past the bound: %+v, %v", r, err)
	}
	open := p
	open.OnError = limiter.FailOpen
	if r, err := g.Allow(t.Context(), open, "one too many"); !errors.Is(err, limiter.ErrOverloaded) || r.Allowed {
		t.Errorf("past the bound, failing open: %+v, %v", r, err)
	}
	g.Reopen()
	for _, a := range answers {
		if got := <-a; got.Err != nil || !got.Allowed {
			t.Errorf("%+v, %v", got.Result, got.Err)
		}
	}
}

// TestCoalesceBadBounds refuses invalid numbers.
func TestCoalesceBadBounds(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	for field, config := range map[string]limiter.Config{"BatchStatements": {BatchStatements: -1}, "MaxWaiting": {MaxWaiting: -2}} {
		if _, err := limiter.New(pool, &config); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), field+" -") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestCoalesceCloseDrains closes with requests in flight and in the queue.
func TestCoalesceCloseDrains(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	g, other := bed.NewDoorway(t, address, limiter.Config{}), bed.Connect(t, address)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
	g.Shut()
	var answers []<-chan bed.Answer
	for i := range 5 {
		answers = append(answers, g.Queue(t.Context(), p.Request(fmt.Sprint(i), 1)))
	}
	var opened atomic.Bool
	closed := make(chan bool, 1)
	go func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		closed <- opened.Load()
	}()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for {
		if _, err := g.Allow(ended, p, "late"); errors.Is(err, limiter.ErrClosed) {
			break
		}
	}
	// A Close that does not wait would return before this does.
	if n := bed.Value[int](t, other, "SELECT count(*) FROM pglimit_gcra"); n != 0 {
		t.Errorf("%d requests were decided while the gate was closed", n)
	}
	opened.Store(true)
	g.Reopen()
	for _, a := range answers {
		if got := <-a; got.Err != nil || !got.Allowed {
			t.Errorf("%+v, %v", got.Result, got.Err)
		}
	}
	if !<-closed {
		t.Error("Close returned while requests were in flight")
	}
}

// TestCoalesceNeverDeadlocks has two processes request the same few keys in random order,
// with single requests of a third in between.
func TestCoalesceNeverDeadlocks(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1, Burst: 1e6, Period: 1000 * time.Hour}
	q := p
	q.Name = "o" // another policy in the same statements
	var wg sync.WaitGroup
	for process := range 3 {
		config := &limiter.Config{Timeout: time.Minute, BatchStatements: 4}
		if process == 2 {
			config.DisableBatching = true
		}
		l := bed.NewLimiter(t, bed.Connect(t, address), config)
		for caller := range 32 {
			wg.Go(func() {
				for i := range 40 {
					policy := p
					if i%3 == 0 {
						policy = q
					}
					if _, err := l.Allow(t.Context(), policy, fmt.Sprint((i*7+caller*3+process)%10)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	pool := bed.Connect(t, address)
	if sum := bed.Value[float64](t, pool, `SELECT round(sum(level)) FROM pglimit_token_bucket`); sum != 3*32*40 {
		t.Errorf("%v requests were counted of %d", sum, 3*32*40)
	}
	bed.Eventually(t, "the counters are flushed", func(ctx context.Context) (bool, error) {
		var commits int64
		err := pool.QueryRow(ctx, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`).Scan(&commits)
		return commits > 100, err
	})
	if n := bed.Value[int64](t, pool, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}
