package playground

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/site/api"
	"github.com/pglimit/pglimit/limiter"
)

const (
	maxKeys    = 1000 // in use at once
	maxStreams = 64   // at once
	maxBehind  = 4096 // events queued for one stream

	// samplePeriod is the time between two reads of a watched key.
	samplePeriod = 100 * time.Millisecond
)

// Hub sends decisions to streams. It is safe for concurrent use. Create it with New,
// and Close it at the end.
type Hub struct {
	// Limiter makes the decisions that the hub observes. Close does not close it.
	Limiter *limiter.Limiter

	ctx      context.Context // ends at Close
	stop     context.CancelFunc
	samplers sync.WaitGroup

	mu      sync.Mutex // guards the fields below and what they point to
	keys    map[string]*watched
	streams int
	joined  int // streams so far
	closed  bool
}

// watched is the state of one key.
type watched struct {
	used     policies
	streams  map[*stream]struct{}
	sampling bool // a sampler goroutine runs
	changes  int  // count of decisions, resets and new streams, which make an earlier read out of date
	resets   int
}

// stream is one reader of events.
type stream struct {
	of     *watched    // its key
	from   string      // the client's address
	n      int         // streams before it
	events chan []byte // closed when the hub ends the stream
	cut    func()      // ends a write that waits for the reader
}

// New returns a hub. Its limiter is newLimiter's, from config with Observe set.
func newHub(newLimiter func(*limiter.Config) (*limiter.Limiter, error), config limiter.Config) (*Hub, error) {
	h := &Hub{keys: map[string]*watched{}}
	config.Observe = h.observe
	var err error
	if h.Limiter, err = newLimiter(&config); err != nil {
		return nil, err
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h, nil
}

// Close ends all streams and refuses new ones.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	for _, w := range h.keys {
		for s := range w.streams {
			h.end(s)
		}
	}
	h.mu.Unlock()
	h.stop()
	h.samplers.Wait()
}

// Admit returns nil if requests for the key may be sent. It bounds the number of keys
// in use, so that all can be reset at the end.
func (h *Hub) Admit(key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys[key] == nil && len(h.keys) >= maxKeys {
		return api.Unavailable(fmt.Sprintf("%d keys are in use already: reset one of them, or restart the playground", maxKeys))
	}
	return nil
}

// observe is the limiter's Config.Observe.
func (h *Hub) observe(_ context.Context, o limiter.Observation) {
	request, r, err := o.Request, o.Result, o.Err
	// A sampler's read, or no decision. The policy of a Settle is only a name.
	if request.Cost == 0 || o.Verb == limiter.VerbSettle || errors.Is(err, limiter.ErrInvalid) {
		return
	}
	h.mu.Lock()
	w := h.key(request.Key)
	w.used[request.Policy.Algorithm] = request.Policy
	watching := len(w.streams) > 0
	h.mu.Unlock()
	if !watching || err != nil { // after an error the request may have been counted, so the key is in use
		return
	}
	text := encodeEvent("decision", decided(request, r))
	h.mu.Lock()
	defer h.mu.Unlock()
	if w = h.keys[request.Key]; w != nil {
		w.changes++
		h.publish(w, text)
		h.wake(request.Key, w)
	}
}

// publish sends an event to a key's streams. It ends a stream with a full queue: the
// browser then reconnects and knows that it has missed events. The hub must be locked.
func (h *Hub) publish(w *watched, text []byte) {
	for s := range w.streams {
		select {
		case s.events <- text:
		default:
			h.end(s)
		}
	}
}

// join begins a stream of the key's events for a client's address, which leave ends. If
// there are too many streams, it ends another.
func (h *Hub) join(key, from string, cut func()) (*stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, api.Unavailable("the playground is ending")
	}
	if h.streams >= maxStreams {
		h.makeRoom()
	}
	h.streams++
	h.joined++
	w := h.key(key)
	s := &stream{of: w, from: from, n: h.joined, events: make(chan []byte, maxBehind), cut: cut}
	w.streams[s] = struct{}{}
	w.changes++
	h.wake(key, w)
	return s, nil
}

// makeRoom ends a stream of the younger half: of the address that has the most, the one
// with the most events that its reader has not read, or else the oldest. The server cannot
// notice that a reader stalls until there is something to read, and stalled ones would keep
// others out. Nor does it notice at once that one has left: others that come and go must not
// end the older half. A page that is still open connects again. The hub must be locked.
func (h *Hub) makeRoom() {
	count := map[string]int{}
	var all []*stream
	for _, w := range h.keys {
		for s := range w.streams {
			count[s.from]++
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *stream) int { return a.n - b.n })
	h.end(slices.MaxFunc(all[len(all)/2:], func(a, b *stream) int {
		return cmp.Or(cmp.Compare(count[a.from], count[b.from]), cmp.Compare(len(a.events), len(b.events)), b.n-a.n)
	}))
}

func (h *Hub) leave(key string, s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(s)
	h.tidy(key)
}

// end ends a stream. Further calls do nothing. The hub must be locked.
func (h *Hub) end(s *stream) {
	if _, open := s.of.streams[s]; !open {
		return
	}
	delete(s.of.streams, s)
	h.streams--
	close(s.events)
	s.cut()
}

// wake starts a sampler for a key that is watched and in use, unless one runs. The hub
// must be locked.
func (h *Hub) wake(key string, w *watched) {
	if w.sampling || h.closed || len(w.streams) == 0 || len(w.used) == 0 {
		return
	}
	w.sampling = true
	h.samplers.Go(func() {
		tick := time.NewTicker(samplePeriod)
		defer tick.Stop()
		for failing := false; h.sample(key, w, &failing); {
			select {
			case <-tick.C:
			case <-h.ctx.Done():
			}
		}
	})
}

// sample reads a key once and sends its levels to its streams. It returns false when
// the sampler can stop; wake starts another.
func (h *Hub) sample(key string, w *watched, failing *bool) (more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { w.sampling = more }()
	if h.closed || len(w.streams) == 0 || len(w.used) == 0 {
		return false
	}
	used, changes, resets := maps.Clone(w.used), w.changes, w.resets
	h.mu.Unlock()
	seen, held, err := readLevels(h.ctx, h.Limiter, key, used)
	h.mu.Lock()
	switch {
	case err != nil && !*failing:
		h.publish(w, encodeEvent("problem", api.ProblemOf(err, "")))
	case err == nil && w.resets == resets: // otherwise the read may be older than the reset
		h.publish(w, encodeEvent("levels", seen))
	}
	*failing = err != nil
	return held || err != nil || w.changes != changes
}

// Reset resets a key, and sends that to its streams.
func (h *Hub) Reset(ctx context.Context, key string) error {
	used := h.forgetting(key)
	err := h.forget(ctx, key, limiter.Algorithms())
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		if len(used) > 0 { // it is in use still
			w := h.key(key)
			maps.Copy(used, w.used) // these were used later
			w.used = used
			h.wake(key, w)
		}
		return api.ProblemOf(err, "")
	}
	if w := h.keys[key]; w != nil {
		w.changes++
		w.resets++
		h.publish(w, encodeEvent("reset", struct{}{}))
	}
	return nil
}

// ForgetAll resets all keys in use, when none is used any more. The error names the keys
// that could not be reset.
func (h *Hub) ForgetAll(ctx context.Context) error {
	h.mu.Lock()
	keys := maps.Clone(h.keys)
	h.mu.Unlock()
	var errs []error
	for key, w := range keys {
		if len(w.used) == 0 {
			continue
		}
		if err := h.forget(ctx, key, slices.Collect(maps.Keys(w.used))); err != nil {
			errs = append(errs, fmt.Errorf("forget %q: %w", key, err))
			if ctx.Err() != nil || errors.Is(err, limiter.ErrUnavailable) {
				break // the others would fail too
			}
		}
	}
	return errors.Join(errs...)
}

// forget resets a key under each of the algorithms.
func (h *Hub) forget(ctx context.Context, key string, algorithms []limiter.Algorithm) error {
	errs := make([]error, len(algorithms))
	var all sync.WaitGroup
	for i, a := range algorithms {
		all.Go(func() { errs[i] = h.Limiter.Reset(ctx, anyPolicy(a), key) })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// forgetting records that a key is about to be reset, and returns the policies it was
// used with. A later decision may survive the reset, so it counts as a new use.
func (h *Hub) forgetting(key string) policies {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.key(key)
	used := w.used
	w.used = policies{}
	h.tidy(key)
	return used
}

// key returns the state of a key. The hub must be locked.
func (h *Hub) key(key string) *watched {
	w := h.keys[key]
	if w == nil {
		w = &watched{used: policies{}, streams: map[*stream]struct{}{}}
		h.keys[key] = w
	}
	return w
}

// tidy removes a key that is neither watched nor in use. The hub must be locked.
func (h *Hub) tidy(key string) {
	if w := h.keys[key]; w != nil && len(w.streams) == 0 && len(w.used) == 0 {
		delete(h.keys, key)
	}
}
