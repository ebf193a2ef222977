package playground

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/site/api"
	"github.com/pglimit/pglimit/limiter"
)

const beat = 15 * time.Second // between two comments that keep a stream alive

// Handler answers GET /api/events: a stream of server-sent events about one key. The
// server bounds each write to a reader that does not read: see api.Pace.
func streamHandler(h *Hub) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.URL.Query().Get("key")
		out := http.NewResponseController(w)
		err := parseKey(key)
		var in *stream
		if err == nil {
			in, err = h.join(key, addressOf(r), func() { _ = out.SetWriteDeadline(time.Now()) })
		}
		if err != nil {
			api.Send(w, nil, err)
			return
		}
		defer h.leave(key, in)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-store")
		pulse := time.NewTicker(beat)
		defer pulse.Stop()
		for text := hello(r, h.Limiter, key); ; {
			if _, err := w.Write(text); err != nil {
				return
			}
			for range len(in.events) { // send all queued events together
				if _, err := w.Write(<-in.events); err != nil {
					return
				}
			}
			if out.Flush() != nil {
				return
			}
			var open bool
			select {
			case text, open = <-in.events:
				if !open {
					return
				}
			case <-pulse.C:
				text = []byte(":\n\n")
			case <-r.Context().Done():
				return
			}
		}
	})
}

// addressOf returns the client's address without the port.
func addressOf(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

// hello returns the beginning of a stream: the time of the limiter's clock, and the
// delay before reconnecting.
func hello(r *http.Request, l *limiter.Limiter, key string) []byte {
	now, err := l.Check(r.Context(), anyPolicy(limiter.GCRA), key, 0)
	if err != nil {
		now.At = time.Now()
	}
	text := append([]byte("retry: 1000\n"), encodeEvent("hello", map[string]float64{"at": millis(now.At)})...)
	if err != nil {
		text = append(text, encodeEvent("problem", api.ProblemOf(err, ""))...)
	}
	return text
}

// policies has the last used policy of each algorithm.
type policies map[limiter.Algorithm]limiter.Policy

// look reads the state of a key under each policy. held reports whether anything is
// counted.
func readLevels(ctx context.Context, l *limiter.Limiter, key string, used policies) (seen levelsEvent, held bool, err error) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	seen.Levels = map[limiter.Algorithm]levelEvent{}
	for a, p := range used {
		all.Go(func() {
			r, err := l.Check(ctx, p, key, 0)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			seen.Levels[a] = levelEvent{At: millis(r.At), Level: r.Level, Remaining: r.Remaining}
			held = held || r.ResetAfter > 0
		})
	}
	all.Wait()
	if len(errs) > 0 {
		return seen, held, errs[0]
	}
	return seen, held, nil
}
