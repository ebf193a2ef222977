package playground

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

const (
	maxKeys    = 1000 // in use at once
	maxStreams = 64   // at once
	maxBehind  = 4096 // events queued for one stream
)

// Hub sends decisions to streams. It is safe for concurrent use. Create it with newHub,
// and Close it at the end.
type Hub struct {
	// Limiter makes the decisions that the hub observes. Close does not close it.
	Limiter *limiter.Limiter

	mu      sync.Mutex // guards the fields below
	used    map[string]policies
	streams []*stream // the oldest first
	closed  bool
	jobs    map[string][]*job // by their keys; the oldest first
	started int               // jobs
	running sync.WaitGroup    // of jobs
}

// policies has the last used policy of each algorithm, of a key in use.
type policies map[limiter.Algorithm]limiter.Policy

// stream is one reader of a key's events.
type stream struct {
	key    string
	events chan []byte // closed when the hub ends the stream
	cut    func()      // ends a write that waits for the reader
}

// newHub returns a hub. Its limiter is newLimiter's, from config with Observe set.
func newHub(newLimiter func(*limiter.Config) (*limiter.Limiter, error), config limiter.Config) (*Hub, error) {
	h := &Hub{used: map[string]policies{}, jobs: map[string][]*job{}}
	config.Observe = h.observe
	var err error
	h.Limiter, err = newLimiter(&config)
	return h, err
}

// Close ends all streams and jobs, and refuses new ones.
func (h *Hub) Close() {
	defer h.running.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for key := range h.jobs {
		h.finishAll(key)
	}
	for len(h.streams) > 0 {
		h.end(h.streams[0])
	}
}

// Admit returns nil if requests for the key may be sent. It bounds the number of keys
// in use, so that all can be reset at the end.
func (h *Hub) Admit(key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.used[key] == nil && len(h.used) >= maxKeys {
		return api.Unavailable(fmt.Sprintf("%d keys are in use already: reset one of them, or restart the playground", maxKeys))
	}
	return nil
}

// observe is the limiter's Config.Observe.
func (h *Hub) observe(_ context.Context, o limiter.Observation) {
	request := o.Request
	// A read of levels, one try of a job, or no decision. The policy of a Settle is only a name.
	if request.Cost == 0 || o.Verb == limiter.VerbSettle || o.Verb == limiter.VerbAcquire || errors.Is(o.Err, limiter.ErrInvalid) {
		return
	}
	h.mu.Lock()
	h.use(request.Key, policies{request.Policy.Algorithm: request.Policy}) // after an error the request may have been counted
	watched := slices.ContainsFunc(h.streams, func(s *stream) bool { return s.key == request.Key })
	h.mu.Unlock()
	if watched && o.Err == nil {
		h.publish(request.Key, encodeEvent("decision", decided(request, o.Result)))
	}
}

// use records that a key is in use with more policies. The hub must be locked.
func (h *Hub) use(key string, more policies) {
	if h.used[key] == nil {
		h.used[key] = policies{}
	}
	maps.Copy(h.used[key], more)
}

// usedWith returns the policies that a key is in use with.
func (h *Hub) usedWith(key string) policies {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.used[key])
}

// publish sends an event to a key's streams. It ends a stream with a full queue: the
// browser then reconnects and knows that it has missed events.
func (h *Hub) publish(key string, text []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.send(key, text)
}

// send is publish for a caller that has locked the hub.
func (h *Hub) send(key string, text []byte) {
	for _, s := range slices.Clone(h.streams) {
		if s.key != key {
			continue
		}
		select {
		case s.events <- text:
		default:
			h.end(s)
		}
	}
}

// join begins a stream of the key's events, which leave ends. If there are too many
// streams, it ends the oldest: its reader may have stalled, and a page that is still open
// connects again.
func (h *Hub) join(key string, cut func()) (*stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, api.Unavailable("the playground is ending")
	}
	if len(h.streams) >= maxStreams {
		h.end(h.streams[0])
	}
	s := &stream{key: key, events: make(chan []byte, maxBehind), cut: cut}
	h.streams = append(h.streams, s)
	return s, nil
}

func (h *Hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(s)
}

// end ends a stream. Further calls do nothing. The hub must be locked.
func (h *Hub) end(s *stream) {
	if i := slices.Index(h.streams, s); i >= 0 {
		h.streams = slices.Delete(h.streams, i, i+1)
		close(s.events)
		s.cut()
	}
}

// Reset resets a key, and sends that to its streams.
func (h *Hub) Reset(ctx context.Context, key string) error {
	h.mu.Lock()
	used := h.used[key]
	h.finishAll(key)
	delete(h.used, key) // a decision from now on may survive the reset, so it is a new use
	h.mu.Unlock()
	if err := h.forget(ctx, key, append(limiter.Algorithms(), slots.Algorithm, balance.Algorithm)); err != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if used != nil { // it is in use still
			maps.Copy(used, h.used[key]) // these were used later
			h.used[key] = used
		}
		return api.ProblemOf(err, "")
	}
	h.publish(key, encodeEvent("reset", struct{}{}))
	return nil
}

// ForgetAll resets all keys in use, when none is used any more. The error names the keys
// that could not be reset.
func (h *Hub) ForgetAll(ctx context.Context) error {
	h.mu.Lock()
	keys := maps.Clone(h.used)
	h.mu.Unlock()
	var errs []error
	for key, used := range keys {
		if err := h.forget(ctx, key, slices.Collect(maps.Keys(used))); err != nil {
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
