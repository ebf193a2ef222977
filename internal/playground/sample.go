package playground

import (
	"maps"
	"sync"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// samplePeriod is the time from one look at a watched key to the next.
const samplePeriod = 100 * time.Millisecond

// levels is the event of that name: how a key stands under each algorithm.
type levels struct {
	Levels map[limiter.Algorithm]level `json:"levels"`
}

type level struct {
	At        float64 `json:"at"`
	Level     float64 `json:"level"`
	Remaining float64 `json:"remaining"`
}

// wake sees to it that a key is looked at while somebody watches and until nothing
// is held. The hub is locked.
func (h *hub) wake(key string, w *watched) {
	if w.sampling || h.closed || len(w.streams) == 0 || len(w.used) == 0 {
		return
	}
	w.sampling = true
	h.server.workers.Go(func() {
		tick := time.NewTicker(samplePeriod)
		defer tick.Stop()
		for failing := false; h.sample(key, w, &failing); {
			select {
			case <-tick.C:
			case <-h.server.ctx.Done():
			}
		}
	})
}

// sample looks at a key once and tells its streams. It is false when there is
// nothing more to look for: wake has to be called again then.
func (h *hub) sample(key string, w *watched, failing *bool) (more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { w.sampling = more }()
	if h.closed || len(w.streams) == 0 || len(w.used) == 0 {
		return false
	}
	used, changes, resets := maps.Clone(w.used), w.changes, w.resets
	h.mu.Unlock()
	seen, held, err := h.server.look(key, used)
	h.mu.Lock()
	switch {
	case err != nil && !*failing:
		h.publish(w, encode("problem", problemOf(err, "")))
	case err == nil && w.resets == resets: // else it may be of before
		h.publish(w, encode("levels", seen))
	}
	*failing = err != nil
	return held || err != nil || w.changes != changes
}

// look reads how a key stands under each policy, and whether anything is held.
func (s *Server) look(key string, used policies) (seen levels, held bool, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	seen.Levels = map[limiter.Algorithm]level{}
	for a, p := range used {
		all.Go(func() {
			r, err := s.limiter.Check(s.ctx, p, key, 0)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			seen.Levels[a] = level{millis(r.At), r.Level, r.Remaining}
			held = held || r.ResetAfter > 0
		})
	}
	all.Wait()
	if len(errs) > 0 {
		return seen, held, errs[0]
	}
	return seen, held, nil
}

// millis is a moment in Unix milliseconds.
func millis(at time.Time) float64 { return float64(at.UnixMicro()) / 1000 }
