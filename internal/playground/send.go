package playground

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/pglimit/pglimit/limiter"
)

// asks is what POST /api/send takes.
type asks struct {
	Key   string `json:"key"`
	Times int    `json:"times"`
	Asks  []struct {
		Policy json.RawMessage `json:"policy"`
		Cost   *float64        `json:"cost"` // nil is 1
	} `json:"asks"`
}

func (in *asks) read() ([]limiter.Ask, error) {
	if err := checkKey(in.Key); err != nil {
		return nil, err
	}
	if in.Times < 1 || in.Times > maxTimes {
		return nil, badField("times", "is %d: must be from 1 to %d", in.Times, maxTimes)
	}
	if most := len(limiter.Algorithms()); len(in.Asks) < 1 || len(in.Asks) > most {
		return nil, badField("asks", "are %d: must be from 1 to %d", len(in.Asks), most)
	}
	list := make([]limiter.Ask, len(in.Asks))
	for i, a := range in.Asks {
		p, err := readPolicy(a.Policy)
		if err != nil {
			return nil, err
		}
		list[i] = p.Ask(in.Key, 1)
		if a.Cost != nil {
			list[i].Cost = *a.Cost
		}
		if err := check(list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// send asks, all at once. Nothing is slept: a delay is shown.
func (s *Server) send(w http.ResponseWriter, r *http.Request) (any, error) {
	var in asks
	if err := read(w, r, &in); err != nil {
		return nil, err
	}
	list, err := in.read()
	if err != nil {
		return nil, err
	}
	if err := s.hub.admit(in.Key); err != nil {
		return nil, err
	}
	var allowed, delayed, denied atomic.Int64
	var failed atomic.Pointer[problem] // the first
	// A client that has gone changes nothing: what it asked for is asked.
	ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
	defer stop()
	var all sync.WaitGroup
	for i := range in.Times * len(list) {
		if !s.maySend(ctx) {
			break
		}
		all.Go(func() {
			defer func() { <-s.sending }()
			ask := list[i%len(list)]
			switch result, err := s.limiter.Do(ctx, ask); {
			case err != nil:
				if failed.CompareAndSwap(nil, problemOf(err, ask.Policy.Algorithm)) {
					stop() // no use to ask for the rest
				}
			case !result.Allowed:
				denied.Add(1)
			case result.Delay > 0:
				delayed.Add(1)
			default:
				allowed.Add(1)
			}
		})
	}
	all.Wait()
	if p := failed.Load(); p != nil {
		return nil, p
	}
	return map[string]int64{"allowed": allowed.Load(), "delayed": delayed.Load(), "denied": denied.Load()}, nil
}

// maySend waits until one ask more may be in flight.
func (s *Server) maySend(ctx context.Context) bool {
	select {
	case s.sending <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// reset forgets a key.
func (s *Server) reset(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		Key string `json:"key"`
	}
	if err := read(w, r, &in); err != nil {
		return nil, err
	}
	if err := checkKey(in.Key); err != nil {
		return nil, err
	}
	used := s.hub.forgetting(in.Key)
	if err := s.forget(r.Context(), in.Key, limiter.Algorithms()); err != nil {
		s.hub.remember(in.Key, used)
		return nil, problemOf(err, "")
	}
	s.hub.forgotten(in.Key)
	return struct{}{}, nil
}

// forget resets a key for each of the algorithms.
func (s *Server) forget(ctx context.Context, key string, algorithms []limiter.Algorithm) error {
	errs := make([]error, len(algorithms))
	var all sync.WaitGroup
	for i, a := range algorithms {
		all.Go(func() { errs[i] = s.limiter.Reset(ctx, someone(a), key) })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// forgetAll resets what was used and not reset.
func (s *Server) forgetAll(ctx context.Context) error {
	var errs []error
	for key, used := range s.hub.all() {
		if err := s.forget(ctx, key, slices.Collect(maps.Keys(used))); err != nil {
			errs = append(errs, fmt.Errorf("forget %q: %w", key, err))
			if ctx.Err() != nil || errors.Is(err, limiter.ErrUnavailable) {
				break // nor would the others be
			}
		}
	}
	return errors.Join(errs...)
}
