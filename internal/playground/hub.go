package playground

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/pglimit/pglimit/limiter"
)

// Bounds of the streams.
const (
	maxStreams = 64   // at once
	maxBehind  = 4096 // events that wait for one stream's reader
)

// hub hands what happens to a key to the streams that watch it.
type hub struct {
	server  *Server
	mu      sync.Mutex // guards all below, and what it leads to
	keys    map[string]*watched
	streams int
	closed  bool
}

// watched is what is known of one key.
type watched struct {
	used     policies
	streams  map[*stream]struct{}
	sampling bool // a goroutine does
	changes  int  // decisions, resets and streams that came: what makes a look at the key out of date
	resets   int
}

// policies has the last one used of each algorithm.
type policies map[limiter.Algorithm]limiter.Policy

// stream is one reader of events.
type stream struct {
	events chan []byte // closed when the hub ends the stream
	cut    func()      // ends a write that waits for the reader
}

func newHub(s *Server) *hub { return &hub{server: s, keys: map[string]*watched{}} }

// key returns what is known of a key. The hub is locked.
func (h *hub) key(key string) *watched {
	w := h.keys[key]
	if w == nil {
		w = &watched{used: policies{}, streams: map[*stream]struct{}{}}
		h.keys[key] = w
	}
	return w
}

// tidy lets go of a key that nobody watches and nothing is kept of. The hub is
// locked.
func (h *hub) tidy(key string) {
	if w := h.keys[key]; w != nil && len(w.streams) == 0 && len(w.used) == 0 {
		delete(h.keys, key)
	}
}

// admit is nil if asks for the key may be made: of too many keys, not all could be
// forgotten at the end.
func (h *hub) admit(key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys[key] == nil && len(h.keys) >= maxKeys {
		return unavailable(fmt.Sprintf("%d keys are in use already: reset one of them, or start the playground anew", maxKeys))
	}
	return nil
}

// join begins a stream of the key's events; leave ends it.
func (h *hub) join(key string, cut func()) (*stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, unavailable("the playground is ending")
	}
	if h.streams >= maxStreams {
		return nil, unavailable(fmt.Sprintf("%d streams of events are open already: close another tab", maxStreams))
	}
	h.streams++
	s := &stream{events: make(chan []byte, maxBehind), cut: cut}
	w := h.key(key)
	w.streams[s] = struct{}{}
	w.changes++
	h.wake(key, w)
	return s, nil
}

func (h *hub) leave(key string, s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.keys[key]; w != nil {
		h.end(w, s)
	}
	h.tidy(key)
}

// end ends a stream, once. The hub is locked.
func (h *hub) end(w *watched, s *stream) {
	if _, open := w.streams[s]; !open {
		return
	}
	delete(w.streams, s)
	h.streams--
	close(s.events)
	s.cut()
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, w := range h.keys {
		for s := range w.streams {
			h.end(w, s)
		}
	}
}

// observe is the limiter's Config.Observe: all decisions come by here.
func (h *hub) observe(_ context.Context, ask limiter.Ask, r limiter.Result, err error) {
	if ask.Cost == 0 || errors.Is(err, limiter.ErrInvalid) { // a look of the sampler's, or nothing
		return
	}
	h.mu.Lock()
	w := h.key(ask.Key)
	w.used[ask.Policy.Algorithm] = ask.Policy
	watching := len(w.streams) > 0
	h.mu.Unlock()
	if !watching || err != nil { // which may have been counted all the same
		return
	}
	event := encode("decision", decided(ask, r))
	h.mu.Lock()
	defer h.mu.Unlock()
	if w = h.keys[ask.Key]; w != nil {
		w.changes++
		h.publish(w, event)
		h.wake(ask.Key, w)
	}
}

// publish sends an event to a key's streams. One whose reader is too far behind
// ends: its browser comes again, and knows that it has missed something. The hub is
// locked.
func (h *hub) publish(w *watched, event []byte) {
	for s := range w.streams {
		select {
		case s.events <- event:
		default:
			h.end(w, s)
		}
	}
}

// forgetting is told before a key is reset, and returns what was known of its use:
// whatever is decided from now on may outlive the reset.
func (h *hub) forgetting(key string) policies {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.key(key)
	used := w.used
	w.used = policies{}
	h.tidy(key)
	return used
}

// remember takes back what forgetting returned.
func (h *hub) remember(key string, used policies) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(used) == 0 {
		return
	}
	w := h.key(key)
	maps.Copy(used, w.used) // what came since is the later
	w.used = used
	h.wake(key, w)
}

// forgotten is told when a key has been reset.
func (h *hub) forgotten(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.keys[key]; w != nil {
		w.changes++
		w.resets++
		h.publish(w, encode("reset", struct{}{}))
	}
}

// all returns what was used of all keys. None is used any more.
func (h *hub) all() map[string]policies {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[string]policies{}
	for key, w := range h.keys {
		if len(w.used) > 0 {
			all[key] = w.used
		}
	}
	return all
}

// encode writes a server-sent event.
func encode(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil { // plain numbers and strings
		panic(err)
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text)
}
