package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// doorway is a limiter with one statement in flight at a time, and none while the
// test keeps the gate closed: then the first ask waits for its connection, and
// those after it for the next statement.
type doorway struct {
	*limiter.Limiter
	arrived chan struct{}
	barrier chan struct{} // nil: open
	asked   int           // since the gate was closed
	first   int           // who waits when the first ask has arrived: it, or nobody
}

func newDoorway(t testing.TB, url string, config limiter.Config) *doorway {
	t.Helper()
	g := &doorway{arrived: make(chan struct{})}
	g.Limiter = newGated(t, connect(t, url, g.guard), config)
	return g
}

func newGated(t testing.TB, pool *pgxpool.Pool, config limiter.Config) *limiter.Limiter {
	t.Helper()
	if err := pool.Ping(t.Context()); err != nil { // else there is no connection to guard
		t.Fatal(err)
	}
	config.BatchStatements, config.DenyCacheTTL = 1, -1
	if config.Timeout == 0 {
		config.Timeout = time.Minute
	}
	return newLimiter(t, pool, &config)
}

// guard makes a pool's connections wait at the gate.
func (g *doorway) guard(cfg *pgxpool.Config) {
	cfg.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		if barrier := g.barrier; barrier != nil {
			g.arrived <- struct{}{}
			<-barrier
		}
		return true, nil
	}
}

func (g *doorway) close() { g.barrier, g.asked = make(chan struct{}), 0 }

func (g *doorway) open() {
	barrier := g.barrier
	g.barrier = nil
	close(barrier)
}

type answer struct {
	limiter.Result
	err error
}

// ask asks on a goroutine of its own and returns once the ask is in its place, or
// has its answer: Config.Timeout may be over before it gets there.
func (g *doorway) ask(ctx context.Context, ask limiter.Ask) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		r, err := g.Do(ctx, ask)
		answers <- answer{r, err}
	}()
	if g.asked == 0 {
		select {
		case <-g.arrived:
		case early := <-answers:
			answers <- early
			return answers
		}
		g.first = g.Waiting()
	}
	for g.Waiting() < g.first+g.asked && len(answers) == 0 {
		runtime.Gosched()
	}
	g.asked++
	return answers
}

// TestBatchesDecideAsMemory lets random asks, equal and unequal ones, for a
// few keys under a few plans come while a statement is in flight: each gets
// the answer that it gets in memory, one after the other.
func TestBatchesDecideAsMemory(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	for _, base := range variants(10, 10*time.Second) {
		t.Run(variant(base), func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			g := newDoorway(t, address, limiter.Config{Now: clock.Now})
			histories, variantName := 0, base.Name
			rapid.Check(t, func(rt *rapid.T) {
				histories++
				base.Name = fmt.Sprintf("%s-%d", variantName, histories)
				batchesDecideAsMemory(rt, g, clock, base, 5)
			})
		})
	}
}

// door is a doorway of some kind: what asks while it is closed shares statements.
type door interface {
	close()
	open()
	ask(context.Context, limiter.Ask) <-chan answer
}

func batchesDecideAsMemory(rt *rapid.T, g door, clock *conformance.Clock, base limiter.Policy, times int) {
	inMemory := limiter.NewMemory(&limiter.Config{Now: clock.Now})
	plans := drawPlans(rt, base, base.Name)
	other := plans[0]
	other.Name += "-other"
	plans = append(plans, other)
	at := int64(1_000_000_000)
	for range times {
		at = max(0, at+drawDelta(rt, plans[0]))
		clock.Set(at)
		var asks []limiter.Ask
		for range rapid.IntRange(1, 12).Draw(rt, "asks") {
			p := rapid.SampledFrom(plans).Draw(rt, "plan")
			key := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "key")
			asks = append(asks, p.Ask(key, drawShare(rt, p)))
		}
		g.close()
		answers := make([]<-chan answer, len(asks))
		for i, ask := range asks {
			answers[i] = g.ask(context.Background(), ask)
		}
		g.open()
		for i, ask := range asks {
			want, err := inMemory.Do(context.Background(), ask)
			if err != nil {
				rt.Fatal(err)
			}
			got := <-answers[i]
			want.Source = got.Source
			if got.err != nil || !alike(got.Result, want) {
				rt.Fatalf("ask %d of %d at %d: %+v\nSQL:    %+v, %v\nmemory: %+v", i, len(asks), at, ask, got.Result, got.err, want)
			}
		}
	}
}

// drawShare is a cost of which some fit: whole tenths of the burst, mostly the
// same one, so that asks merge.
func drawShare(rt *rapid.T, p limiter.Policy) float64 {
	burst := p.Burst
	if burst == 0 {
		burst = p.Limit
	}
	return burst * rapid.SampledFrom([]float64{0.125, 0.125, 0.125, 0.25, 0.5}).Draw(rt, "share")
}

// alike is equality but for the rounding of levels: of merged asks the sum is
// rounded once, of single ones each time.
func alike(a, b limiter.Result) bool {
	near := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*max(1, a.Burst) }
	soon := func(x, y time.Duration) bool { return x == y || (x-y).Abs() <= time.Microsecond }
	ok := near(a.Level, b.Level) && near(a.Remaining, b.Remaining) &&
		soon(a.RetryAfter, b.RetryAfter) && soon(a.ResetAfter, b.ResetAfter) && soon(a.Delay, b.Delay)
	a.Level, a.Remaining, a.RetryAfter, a.ResetAfter, a.Delay = b.Level, b.Remaining, b.RetryAfter, b.ResetAfter, b.Delay
	return ok && a == b
}

// TestEqualAsksAreGrantedInTheirOrder counts statements too: one for the first
// ask, one for all that came after it.
func TestEqualAsksAreGrantedInTheirOrder(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	g := newDoorway(t, address, limiter.Config{})
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 30, Period: 1000 * time.Hour}
	g.close()
	var answers []<-chan answer
	for range 100 {
		answers = append(answers, g.ask(t.Context(), p.Ask("hot", 1)))
	}
	g.open()
	for i, a := range answers {
		got := <-a
		if got.err != nil || got.Allowed != (i < 30) || got.Remaining != float64(max(0, 29-i)) {
			t.Errorf("ask %d: %+v, %v", i, got.Result, got.err)
		}
	}
	if count := one[float64](t, connect(t, address), `SELECT granted FROM pglimit_fixed_window`); count != 29 {
		t.Errorf("the last statement granted %v asks, not 29 of the 99 that waited", count)
	}
}

// TestOneBadAskFailsAlone puts a key that the database cannot hold between
// others: their statement fails, and they are decided all the same.
func TestOneBadAskFailsAlone(t *testing.T) {
	t.Parallel()
	g := &doorway{arrived: make(chan struct{})}
	g.Limiter = newGated(t, latin1(t, g.guard), limiter.Config{})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
	g.close()
	var answers []<-chan answer
	keys := []string{"first", "a", "not in Latin-1: 猫", "z", "a"}
	for _, key := range keys {
		answers = append(answers, g.ask(t.Context(), p.Ask(key, 1)))
	}
	g.open()
	for i, a := range answers {
		got := <-a
		if bad := i == 2; bad != errors.Is(got.err, limiter.ErrInvalid) || bad == got.Allowed {
			t.Errorf("%q: %+v, %v", keys[i], got.Result, got.err)
		}
	}
}

// TestWhoLeavesTheQueueConsumesNothing cancels two of three asks before their
// statement is sent.
func TestWhoLeavesTheQueueConsumesNothing(t *testing.T) {
	t.Parallel()
	g := newDoorway(t, newDatabase(t), limiter.Config{})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	g.close()
	first := g.ask(t.Context(), p.Ask("first", 1))
	ctx, cancel := context.WithCancel(t.Context())
	gone := []<-chan answer{g.ask(ctx, p.Ask("alone", 1)), g.ask(ctx, p.Ask("shared", 1))}
	stays := g.ask(t.Context(), p.Ask("shared", 1))
	cancel()
	for _, a := range gone {
		if got := <-a; !errors.Is(got.err, context.Canceled) {
			t.Errorf("cancelled in the queue: %+v, %v", got.Result, got.err)
		}
	}
	g.open()
	for _, a := range []<-chan answer{first, stays} {
		if got := <-a; got.err != nil || got.Remaining != 9 {
			t.Errorf("%+v, %v", got.Result, got.err)
		}
	}
	if r, err := g.Check(t.Context(), p, "alone", 0); err != nil || r.Level != 0 {
		t.Errorf("the key of the one who left: %+v, %v", r, err)
	}
}

// TestTimeoutInTheQueue lets Config.Timeout end a wait for a statement.
func TestTimeoutInTheQueue(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	g := newDoorway(t, address, limiter.Config{Timeout: 50 * time.Millisecond})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
	g.close()
	var first <-chan answer
	for g.asked == 0 { // until it gets to the gate in its time
		first = g.ask(t.Context(), p.Ask("first", 1))
	}
	second := g.ask(t.Context(), p.Ask("second", 1))
	if got := <-second; !errors.Is(got.err, limiter.ErrUnavailable) || !strings.Contains(got.err.Error(), "Config.Timeout is 50ms") {
		t.Errorf("%+v, %v", got.Result, got.err)
	}
	g.open()
	<-first
	if err := g.Close(); err != nil { // what is in flight has ended
		t.Error(err)
	}
	other := newLimiter(t, connect(t, address), nil)
	if r := must(t)(other.Check(t.Context(), p, "second", 0)); r.Level != 0 {
		t.Errorf("the key of the one who waited too long: %+v", r)
	}
}

// TestOverload lets more callers come than may wait.
func TestOverload(t *testing.T) {
	t.Parallel()
	g := newDoorway(t, newDatabase(t), limiter.Config{BatchWaiting: 2})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour}
	g.close()
	var answers []<-chan answer
	for i := range 3 {
		answers = append(answers, g.ask(t.Context(), p.Ask(fmt.Sprint(i), 1)))
	}
	if r, err := g.Allow(t.Context(), p, "one too many"); !errors.Is(err, limiter.ErrOverloaded) || r.Reason != limiter.ReasonOverload {
		t.Errorf("past the bound: %+v, %v", r, err)
	}
	open := p
	open.OnError = limiter.FailOpen
	if r, err := g.Allow(t.Context(), open, "one too many"); err != nil || !r.Allowed || r.Source != limiter.SourceDegraded {
		t.Errorf("past the bound, failing open: %+v, %v", r, err)
	}
	g.open()
	for _, a := range answers {
		if got := <-a; got.err != nil || !got.Allowed {
			t.Errorf("%+v, %v", got.Result, got.err)
		}
	}
}

// TestBadBatchBounds refuses numbers that mean nothing.
func TestBadBatchBounds(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for field, config := range map[string]limiter.Config{"BatchStatements": {BatchStatements: -1}, "BatchWaiting": {BatchWaiting: -2}} {
		if _, err := limiter.New(pool, &config); !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), field+" -") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestCloseDrains closes with asks in flight and in the queue.
func TestCloseDrains(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	g, other := newDoorway(t, address, limiter.Config{}), connect(t, address)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
	g.close()
	var answers []<-chan answer
	for i := range 5 {
		answers = append(answers, g.ask(t.Context(), p.Ask(fmt.Sprint(i), 1)))
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
	// A Close that does not wait has time to return before this does.
	if n := one[int](t, other, "SELECT count(*) FROM pglimit_gcra"); n != 0 {
		t.Errorf("%d asks were decided while the gate was closed", n)
	}
	opened.Store(true)
	g.open()
	for _, a := range answers {
		if got := <-a; got.err != nil || !got.Allowed {
			t.Errorf("%+v, %v", got.Result, got.err)
		}
	}
	if !<-closed {
		t.Error("Close returned while asks were in flight")
	}
}

// TestBatchesDoNotDeadlock lets two processes ask for the same few keys in
// random order, with single asks of a third between them.
func TestBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1, Burst: 1e6, Period: 1000 * time.Hour}
	q := p
	q.Name = "o" // another policy in the same statements
	var wg sync.WaitGroup
	for process := range 3 {
		config := &limiter.Config{Timeout: time.Minute, BatchStatements: 4}
		if process == 2 {
			config.BatchRows = -1
		}
		l := newLimiter(t, connect(t, address), config)
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
	pool := connect(t, address)
	if sum := one[float64](t, pool, `SELECT round(sum(level)) FROM pglimit_token_bucket`); sum != 3*32*40 {
		t.Errorf("%v asks were counted of %d", sum, 3*32*40)
	}
	eventually(t, "the counters are flushed", func(ctx context.Context) (bool, error) {
		var commits int64
		err := pool.QueryRow(ctx, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`).Scan(&commits)
		return commits > 100, err
	})
	if n := one[int64](t, pool, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}
