package playground

import (
	"net/http"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const (
	beat = 15 * time.Second // between two comments that keep a stream alive
	// maxWrite bounds one write to a reader that does not read.
	maxWrite = 30 * time.Second
)

// events is a stream of server-sent events about one key.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	key := r.URL.Query().Get("key")
	out := http.NewResponseController(w)
	err := checkKey(key)
	var in *stream
	if err == nil {
		in, err = s.hub.join(key, func() { _ = out.SetWriteDeadline(time.Now()) })
	}
	if err != nil {
		answer(func(http.ResponseWriter, *http.Request) (any, error) { return nil, err })(w, r)
		return
	}
	defer s.hub.leave(key, in)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	pulse := time.NewTicker(beat)
	defer pulse.Stop()
	for text := s.hello(r, key); ; {
		_ = out.SetWriteDeadline(time.Now().Add(maxWrite)) // where there are deadlines
		if _, err := w.Write(text); err != nil {
			return
		}
		for range len(in.events) { // what is there already goes out in one piece
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
}

// hello is what a stream begins with: when it is by the clock that decides, and how
// soon to come again when the stream has ended.
func (s *Server) hello(r *http.Request, key string) []byte {
	now, err := s.limiter.Check(r.Context(), someone(limiter.GCRA), key, 0)
	if err != nil {
		now.At = time.Now()
	}
	text := append([]byte("retry: 1000\n"), encode("hello", map[string]float64{"at": millis(now.At)})...)
	if err != nil {
		text = append(text, encode("problem", problemOf(err, ""))...)
	}
	return text
}
