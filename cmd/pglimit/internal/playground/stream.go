package playground

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

const (
	beat = 15 * time.Second // between two comments that keep a stream alive

	// samplePeriod is the time between two reads of a watched key.
	samplePeriod = 100 * time.Millisecond
)

// streamHandler answers GET /api/events: a stream of server-sent events about one key. It
// has the key's decisions, and its levels while they change. The server bounds each write
// to a reader that does not read: see api.Pace.
func streamHandler(h *Hub) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.URL.Query().Get("key")
		out := http.NewResponseController(w)
		err := parseKey(key)
		var in *stream
		if err == nil {
			in, err = h.join(key, func() { _ = out.SetWriteDeadline(time.Now()) })
		}
		if err != nil {
			api.Send(w, nil, err)
			return
		}
		defer h.leave(in)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		pulse, sample := time.NewTicker(beat), time.NewTicker(samplePeriod)
		defer pulse.Stop()
		defer sample.Stop()
		levels := sampler{hub: h, key: key, changing: true}
		for text := hello(r, h, key); ; {
			if _, err := w.Write(text); err != nil {
				return
			}
			for range len(in.events) { // send all queued events together
				levels.changing = true
				if _, err := w.Write(<-in.events); err != nil {
					return
				}
			}
			if out.Flush() != nil {
				return
			}
			tick := sample.C
			if !levels.changing {
				tick = nil
			}
			var open bool
			select {
			case text, open = <-in.events:
				if levels.changing = true; !open {
					return
				}
			case <-tick:
				text = levels.read(r.Context())
			case <-pulse.C:
				text = []byte(":\n\n")
			case <-r.Context().Done():
				return
			}
		}
	})
}

// hello returns the beginning of a stream: the time of the limiter's clock, the delay before
// reconnecting, and the key's jobs.
func hello(r *http.Request, h *Hub, key string) []byte {
	now, err := h.Limiter.Check(r.Context(), anyPolicy(limiter.GCRA), key, 0)
	if err != nil {
		now.At = time.Now()
	}
	text := append([]byte("retry: 1000\n"), encodeEvent("hello", map[string]float64{"at": millis(now.At)})...)
	if err != nil {
		text = append(text, encodeEvent("problem", api.ProblemOf(err, ""))...)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(text, h.encodeJobs(key)...)
}

// sampler reads a key's levels for one stream.
type sampler struct {
	hub      *Hub
	key      string
	changing bool // the levels may be others than at the last read
	failing  bool // the last read failed
}

// read returns the levels as an event, or nil if there is nothing to send.
func (s *sampler) read(ctx context.Context) []byte {
	used := s.hub.usedWith(s.key)
	if len(used) == 0 {
		s.changing = false
		return nil
	}
	seen, held, err := readLevels(ctx, s.hub.Limiter, s.key, used)
	again := s.failing
	s.failing, s.changing = err != nil, held || err != nil
	switch {
	case err == nil:
		return encodeEvent("levels", seen)
	case again:
		return nil
	}
	return encodeEvent("problem", api.ProblemOf(err, ""))
}

// readLevels reads the state of a key under each policy. held reports whether anything is
// counted.
func readLevels(ctx context.Context, l *limiter.Limiter, key string, used policies) (seen levelsEvent, held bool, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	seen.Levels = map[limiter.Algorithm]levelEvent{}
	for a, p := range used {
		all.Go(func() {
			var u limiter.Usage
			var failed error
			if a == balance.Algorithm {
				u, failed = l.Usage(ctx, p, key)
			} else {
				u.Result, failed = l.Check(ctx, p, key, 0)
			}
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = failed
				return
			}
			level := levelEvent{At: millis(u.Result.At), Level: u.Result.Level, Remaining: u.Result.Remaining}
			if a == balance.Algorithm {
				level.Usage = &u
			}
			seen.Levels[a] = level
			expires := slices.ContainsFunc(u.Lots, func(l limiter.Lot) bool { return !l.Expires.IsZero() })
			held = held || u.Result.ResetAfter > 0 || expires
		})
	}
	all.Wait()
	return seen, held, err
}
