package playground

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

const (
	maxTimes   = 100 // of each request in one POST /api/send
	maxSending = 64  // of one POST /api/send in flight
)

// send answers POST /api/send: it sends all requests concurrently. It does not wait for a
// delay: the page shows it.
func (s *Server) send(w http.ResponseWriter, r *http.Request) (any, error) {
	var in requests
	if err := api.Read(w, r, &in); err != nil {
		return nil, err
	}
	list, err := in.read()
	if err != nil {
		return nil, err
	}
	if err := s.hub.Admit(in.Key); err != nil {
		return nil, err
	}
	var allowed, delayed, denied atomic.Int64
	// All requests are sent, even if the client disconnects. After an error the rest would
	// fail too.
	all, ctx := errgroup.WithContext(context.WithoutCancel(r.Context()))
	all.SetLimit(maxSending)
	for i := range in.Times * len(list) {
		all.Go(func() error {
			request := list[i%len(list)]
			switch result, err := s.hub.Limiter.Do(ctx, request); {
			case err != nil:
				return api.ProblemOf(err, request.Policy.Algorithm)
			case !result.Allowed:
				denied.Add(1)
			case result.Delay > 0:
				delayed.Add(1)
			default:
				allowed.Add(1)
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return map[string]int64{"allowed": allowed.Load(), "delayed": delayed.Load(), "denied": denied.Load()}, nil
}

// requests is the body of POST /api/send.
type requests struct {
	Key      string `json:"key"`
	Times    int    `json:"times"`
	Requests []struct {
		Policy json.RawMessage `json:"policy"`
		Cost   *float64        `json:"cost"` // nil: 1
	} `json:"requests"`
}

func (in *requests) read() ([]limiter.Request, error) {
	if err := parseKey(in.Key); err != nil {
		return nil, err
	}
	if in.Times < 1 || in.Times > maxTimes {
		return nil, api.BadField("times", "is %d: must be from 1 to %d", in.Times, maxTimes)
	}
	if most := len(limiter.Algorithms()); len(in.Requests) < 1 || len(in.Requests) > most {
		return nil, api.BadField("requests", "are %d: must be from 1 to %d", len(in.Requests), most)
	}
	list := make([]limiter.Request, len(in.Requests))
	for i, a := range in.Requests {
		cost := 1.0
		if a.Cost != nil {
			cost = *a.Cost
		}
		var err error
		if list[i], err = parseRequest(a.Policy, in.Key, cost); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// grant answers POST /api/grant: it adds a lot to a key's balance.
func (s *Server) grant(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		Key      string  `json:"key"`
		Units    float64 `json:"units"`
		Seconds  int     `json:"seconds"` // until it expires; 0: never
		Priority int     `json:"priority"`
		Source   string  `json:"source"`
	}
	err := api.Read(w, r, &in)
	if err = cmp.Or(err, parseKey(in.Key), s.hub.Admit(in.Key)); err != nil {
		return nil, err
	}
	lot := limiter.GrantOptions{Priority: in.Priority, Source: in.Source}
	if in.Seconds != 0 { // by the database's clock
		now, err := s.hub.Limiter.Check(r.Context(), balance, in.Key, 0)
		if err != nil {
			return nil, api.ProblemOf(err, balance.Algorithm)
		}
		lot.Expires = now.At.Add(time.Duration(in.Seconds) * time.Second)
	}
	if _, err = s.hub.Limiter.Grant(r.Context(), balance, in.Key, in.Units, lot); err != nil {
		return nil, api.ProblemOf(err, balance.Algorithm)
	}
	return struct{}{}, nil
}

// reset answers POST /api/reset: it resets a key.
func (s *Server) reset(w http.ResponseWriter, r *http.Request) (any, error) {
	var in struct {
		Key string `json:"key"`
	}
	if err := api.Read(w, r, &in); err != nil {
		return nil, err
	}
	if err := parseKey(in.Key); err != nil {
		return nil, err
	}
	return struct{}{}, s.hub.Reset(r.Context(), in.Key)
}

// longestWait is the longest wait of a request to /limited/ for its turn in a queue.
// A request whose turn is later is denied.
const longestWait = time.Minute

// limited answers GET /limited/{algorithm} like an application behind the middleware.
// The query has the policy, the key and the cost.
func limited(h *Hub, logger *slog.Logger) http.Handler {
	next := httplimit.New(h.Limiter, requestOf, httplimit.WithLogger(logger))(http.HandlerFunc(answerAllowed))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := parseQuery(limiter.Algorithm(r.PathValue("algorithm")), r.URL.RawQuery)
		if err == nil {
			err = h.Admit(request.Key)
		}
		if err != nil {
			api.Send(w, nil, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), longestWait)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, requestKey{}, request)))
	})
}

// requestKey is the context key of the limiter's request.
type requestKey struct{}

// requestOf returns the limiter's request of an HTTP request.
func requestOf(r *http.Request) ([]limiter.Request, error) {
	return []limiter.Request{r.Context().Value(requestKey{}).(limiter.Request)}, nil
}
