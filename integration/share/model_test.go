package share

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// step is what one request did to a key's level, at a moment that does not pass.
type step struct{ from, to float64 }

// history is the steps of a key.
type history struct {
	mu    sync.Mutex
	steps map[string][]step
}

func (h *history) add(key string, s step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps[key] = append(h.steps[key], s)
}

// TestShareEqualsTheModel: what many callers of hot and of spread keys get is what the
// requests would get one after the other, in some order: each did what it does at the level
// that it found, and their steps make one path from 0 to the level in the end.
func TestShareEqualsTheModel(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	clock := new(conformance.Clock)
	clock.Set(1_000_000_000_000)
	var ls []*limiter.Limiter
	sent := new(testworld.Trace)
	for range 2 {
		pool := testworld.Connect(t, url, testworld.FourConnections, sent.On)
		ls = append(ls, testworld.NewLimiter(t, pool, &limiter.Config{Now: clock.Now, DisableDenyCache: true}))
	}
	for _, variant := range testworld.Holdable() {
		for _, keys := range []int{2, 6, 200} {
			p := variant
			p.Name, p.Limit, p.Period = fmt.Sprint(p.Name, "-", keys), 100, 1000*time.Hour
			h := &history{steps: map[string][]step{}}
			var wg sync.WaitGroup
			for i := range 96 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), uint64(keys)))
					for range testworld.Size(6, 30) {
						if err := h.request(t.Context(), ls[i%2], p, r.IntN(keys), r); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			for key, steps := range h.steps {
				if err := path(steps, testworld.Level(t, ls[0], p, key)); err != nil {
					t.Errorf("%s, key %s: %v", p.Name, key, err)
				}
			}
		}
	}
	if together := slices.Max(sizes(sent)); together < 4 && !testworld.Citus() { // there each goes to its shard alone
		t.Errorf("at most %d statements were sent together", together)
	}
}

// request makes one random request of a whole number of units, and checks what it did. A key
// is refunded or reserved, never both: a Refund can take reserved units, and the result of a
// Settle does not say how many it found.
func (h *history) request(ctx context.Context, l *limiter.Limiter, p limiter.Policy, number int, r *rand.Rand) error {
	const burst = 100
	key, verb := fmt.Sprint(number), r.IntN(4)
	if verb == 3 && number%2 == 1 {
		verb = 4
	}
	n := float64(1 + r.IntN(20))
	wrong := func(r limiter.Result) error { return fmt.Errorf("%s, key %s, %v units: %+v", p.Name, key, n, r) }
	switch verb {
	case 0:
		c, err := l.Charge(ctx, p, key, n)
		if err != nil {
			return err
		}
		if c.Granted != n && c.Level != burst || c.Granted > n {
			return wrong(c)
		}
		h.add(key, step{c.Level - c.Granted, c.Level})
	case 1:
		c, err := l.Check(ctx, p, key, n)
		if err != nil {
			return err
		}
		if c.Allowed != (c.Level+n <= burst) {
			return wrong(c)
		}
		h.add(key, step{c.Level, c.Level})
	case 2:
		c, err := l.Do(ctx, limiter.Request{Policy: p, Key: key, Cost: n, IdempotencyKey: fmt.Sprint(r.Uint64())})
		if err != nil {
			return err
		}
		if c.Allowed {
			h.add(key, step{c.Level - n, c.Level})
		} else {
			h.add(key, step{c.Level, c.Level})
		}
		if c.Allowed && c.Level > burst || !c.Allowed && c.Level+n <= burst {
			return wrong(c)
		}
	case 3:
		c, err := l.Refund(ctx, p, key, n)
		if err != nil {
			return err
		}
		if c.Granted != n && c.Level != 0 || c.Granted > n {
			return wrong(c)
		}
		h.add(key, step{c.Level + c.Granted, c.Level})
	case 4:
		c, err := l.Reserve(ctx, p.Request(key, n), time.Hour)
		if err != nil || !c.Result.Allowed {
			return err
		}
		h.add(key, step{c.Result.Level - n, c.Result.Level})
		spent := float64(r.IntN(int(n)))
		ended, err := l.Settle(ctx, c.ID, spent)
		if err != nil {
			return err
		}
		h.add(key, step{ended.Level + n - spent, ended.Level})
	}
	return nil
}

// path returns an error unless the steps make one path from 0 to end: as many lead to each
// level as from it, and each level can be reached.
func path(steps []step, end float64) error {
	balance, next := map[float64]int{}, map[float64][]float64{}
	balance[0]++
	balance[end]--
	for _, s := range steps {
		balance[s.to]++
		balance[s.from]--
		next[s.from] = append(next[s.from], s.to)
	}
	for level, n := range balance {
		if n != 0 {
			return fmt.Errorf("%d more steps lead to the level %v than from it", n, level)
		}
	}
	reached, todo := map[float64]bool{0: true}, []float64{0}
	for len(todo) > 0 {
		at := todo[0]
		todo = todo[1:]
		for _, to := range next[at] {
			if !reached[to] {
				reached[to] = true
				todo = append(todo, to)
			}
		}
	}
	for _, s := range steps {
		if !reached[s.from] {
			return fmt.Errorf("the level %v was not reached", s.from)
		}
	}
	return nil
}
