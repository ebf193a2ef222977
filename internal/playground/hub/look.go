package hub

import (
	"context"
	"sync"

	"github.com/pglimit/pglimit/internal/playground/event"
	"github.com/pglimit/pglimit/limiter"
)

// policies has the last used policy of each algorithm.
type policies map[limiter.Algorithm]limiter.Policy

// look reads the state of a key under each policy. held reports whether anything is
// counted.
func look(ctx context.Context, l *limiter.Limiter, key string, used policies) (seen event.Levels, held bool, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	seen.Levels = map[limiter.Algorithm]event.Level{}
	for a, p := range used {
		all.Go(func() {
			r, err := l.Check(ctx, p, key, 0)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			seen.Levels[a] = event.Level{At: event.Millis(r.At), Level: r.Level, Remaining: r.Remaining}
			held = held || r.ResetAfter > 0
		})
	}
	all.Wait()
	if len(errs) > 0 {
		return seen, held, errs[0]
	}
	return seen, held, nil
}
