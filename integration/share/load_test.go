package share

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// unlimited is a policy that never denies in a test.
var unlimited = limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1e9, Period: time.Second}

// verbNames are the names of verbs in order.
var verbNames = slices.Sorted(maps.Keys(verbs(nil, unlimited)))

// verbs are all ways to the database outside a transaction, each as a call for one key.
func verbs(l *limiter.Limiter, p limiter.Policy) map[string]func(ctx context.Context, key string) (limiter.Result, error) {
	var next atomic.Int64
	id := func() string { return fmt.Sprint("order-", next.Add(1)) }
	queue := p
	queue.Algorithm = limiter.LeakyBucketQueue
	settling := make(chan string, 12) // reservations of the key "held"
	var prepared atomic.Bool
	reserve := func(ctx context.Context, key string) (limiter.Reservation, error) {
		return l.Reserve(ctx, p.Request(key, 1), time.Hour)
	}
	return map[string]func(context.Context, string) (limiter.Result, error){
		"Allow":     func(ctx context.Context, key string) (limiter.Result, error) { return l.Allow(ctx, p, key) },
		"AllowUpTo": func(ctx context.Context, key string) (limiter.Result, error) { return l.AllowUpTo(ctx, p, key, 1) },
		"Do, idempotent": func(ctx context.Context, key string) (limiter.Result, error) {
			return l.Do(ctx, limiter.Request{Policy: p, Key: key, Cost: 1, IdempotencyKey: id()})
		},
		"Wait": func(ctx context.Context, key string) (limiter.Result, error) {
			return l.DoWait(ctx, queue.Request(key, 1))
		},
		"AllowAll": func(ctx context.Context, key string) (limiter.Result, error) {
			all, err := l.AllowAll(ctx, p.Request(key, 1), p.Request("and "+key, 1))
			return limiter.Result{Allowed: all.Allowed, Granted: 1}, err
		},
		"AllowAny": func(ctx context.Context, key string) (limiter.Result, error) {
			a, err := l.AllowAny(ctx, p.Request(key, 1), p.Request("and "+key, 1))
			return limiter.Result{Allowed: a.Allowed, Granted: 1}, err
		},
		"AllowAnySplit": func(ctx context.Context, key string) (limiter.Result, error) {
			less := p // than the cost, so that all pools are locked
			less.Name, less.Burst = p.Name+".less", 1
			a, err := l.AllowAnySplit(ctx, less.Request(key, 2), p.Request(key, 2))
			return limiter.Result{Allowed: a.Allowed, Granted: 1}, err
		},
		"Charge": func(ctx context.Context, key string) (limiter.Result, error) { return l.Charge(ctx, p, key, 1) },
		"Refund": func(ctx context.Context, key string) (limiter.Result, error) { return l.Refund(ctx, p, key, 1) },
		"Reserve": func(ctx context.Context, key string) (limiter.Result, error) {
			h, err := reserve(ctx, key)
			return h.Result, err
		},
		"ReserveUpTo": func(ctx context.Context, key string) (limiter.Result, error) {
			h, err := l.ReserveUpTo(ctx, p.Request(key, 1), time.Hour)
			return h.Result, err
		},
		// The first call for the key "held" only makes reservations.
		"Settle": func(ctx context.Context, key string) (limiter.Result, error) {
			if key == "held" && prepared.CompareAndSwap(false, true) {
				for range cap(settling) {
					h, err := reserve(ctx, key)
					if err != nil {
						return h.Result, err
					}
					settling <- h.ID
				}
				return limiter.Result{}, nil
			}
			var id string
			if key == "held" {
				select {
				case id = <-settling:
				default:
				}
			}
			if id == "" {
				h, err := reserve(ctx, key)
				if err != nil {
					return h.Result, err
				}
				id = h.ID
			}
			return l.Settle(ctx, id, 0.5) // less than was reserved: the key's row changes
		},
		"Block": func(ctx context.Context, key string) (limiter.Result, error) {
			return limiter.Result{}, l.Block(ctx, p, key, time.Microsecond)
		},
		"Unblock": func(ctx context.Context, key string) (limiter.Result, error) {
			return limiter.Result{}, l.Unblock(ctx, p, key)
		},
		"Reset": func(ctx context.Context, key string) (limiter.Result, error) {
			return limiter.Result{}, l.Reset(ctx, p, key)
		},
	}
}

// score is what a group of callers got.
type score struct {
	mu      sync.Mutex
	took    []time.Duration // of the answers
	granted float64
	errors  map[string]int
}

func (s *score) add(took time.Duration, r limiter.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if s.errors == nil {
			s.errors = map[string]int{}
		}
		s.errors[err.Error()]++
		return
	}
	s.took = append(s.took, took)
	if r.Allowed {
		s.granted += r.Granted
	}
}

// merge adds the answers and errors of o.
func (s *score) merge(o *score) {
	s.took = append(s.took, o.took...)
	for e, n := range o.errors {
		if s.errors == nil {
			s.errors = map[string]int{}
		}
		s.errors[e] += n
	}
}

// failed returns the number of errors.
func (s *score) failed() (n int) {
	for _, k := range s.errors {
		n += k
	}
	return n
}

// p99 returns the time in which 99 % of the answers came.
func (s *score) p99() time.Duration { return duration.P99(s.took) }

func (s *score) String() string {
	text := fmt.Sprintf("%d answers, p99 %v, %d errors", len(s.took), s.p99().Round(10*time.Microsecond), s.failed())
	for e, n := range s.errors {
		return fmt.Sprintf("%s, such as %d × %s", text, n, e)
	}
	return text
}

// load makes calls from callers goroutines until ctx ends, and waits for the last. A call
// gets the number of its goroutine. Before each call the goroutine pauses for up to twice
// pause, as clients do.
func load(ctx context.Context, callers int, pause time.Duration, call func(ctx context.Context, caller int) (limiter.Result, error)) *score {
	s := new(score)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if pause > 0 {
					time.Sleep(rand.N(2 * pause))
				}
				start := time.Now()
				r, err := call(context.WithoutCancel(ctx), i)
				s.add(time.Since(start), r, err)
			}
		})
	}
	wg.Wait()
	return s
}

// answers lets each of callers make each calls, one after another, until one fails.
func answers(callers, each int, call func(ctx context.Context, caller int) (limiter.Result, error)) *score {
	s := new(score)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range each {
				start := time.Now()
				r, err := call(context.Background(), i)
				if s.add(time.Since(start), r, err); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return s
}

// during runs load for a while.
func during(d time.Duration, callers int, pause time.Duration, call func(context.Context, int) (limiter.Result, error)) *score {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return load(ctx, callers, pause, call)
}

// newLimiter returns one with the defaults, of which benchmarks tell. Those of tests wait
// longer, as a busy machine needs.
func newLimiter(b *testing.B, pool *pgxpool.Pool) *limiter.Limiter {
	l := must.OK(limiter.New(pool, nil))(b)
	b.Cleanup(func() {
		if err := l.Close(); err != nil {
			b.Error(err)
		}
	})
	return l
}
