package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

const (
	maxMany     = 1000    // requests in a body
	maxManyBody = 2 << 20 // bytes: keys have up to 1,024
	maxAtOnce   = 256     // requests of a batch in flight: what a statement decides
)

// many is the body of several requests.
type many struct {
	Requests []request `json:"requests"`
}

// read reads the body of several requests, which in is or is a part of. together: they may have one
// idempotency key.
func (in *many) read(w http.ResponseWriter, r *http.Request, body any, together bool) error {
	if err := api.ReadUpTo(w, r, body, maxManyBody); err != nil {
		return err
	}
	if n := len(in.Requests); n < 1 || n > maxMany {
		return api.BadField("requests", "has %d: must have from 1 to %d", n, maxMany)
	}
	if !together {
		return oneKey(r, new(string), false)
	}
	for i := range in.Requests {
		if err := oneKey(r, &in.Requests[i].IdempotencyKey, true); err != nil {
			return err
		}
	}
	return nil
}

// allowAll grants all requests or none.
func (h *Handler) allowAll(w http.ResponseWriter, r *http.Request) error {
	var in many
	if err := in.read(w, r, &in, true); err != nil {
		return err
	}
	all, err := h.limiterRequests(in)
	if err != nil {
		return err
	}
	results, err := h.Limiter.AllowAll(r.Context(), all...)
	if err != nil {
		return err
	}
	body, err := appendResults(limiter.Results{Allowed: results.Allowed, DeniedBy: results.DeniedBy}, results.PerRequest)
	if err != nil {
		return err
	}
	httplimit.SetHeader(w.Header(), results.PerRequest...)
	writeJSON(w, body)
	return nil
}

// allowAny grants one cost from the first of several pools that has it, or from several.
func (h *Handler) allowAny(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		many
		Split bool `json:"split"`
	}
	if err := in.read(w, r, &in, true); err != nil {
		return err
	}
	pools, err := h.limiterRequests(in.many)
	if err != nil {
		return err
	}
	ask := h.Limiter.AllowAny
	if in.Split {
		ask = h.Limiter.AllowAnySplit
	}
	given, err := ask(r.Context(), pools...)
	if err != nil {
		return err
	}
	body, err := appendResults(limiter.Any{Allowed: given.Allowed, GrantedBy: given.GrantedBy, RetryAfter: given.RetryAfter}, given.PerRequest)
	if err != nil {
		return err
	}
	if denied := (*limiter.DeniedError)(nil); errors.As(given.Err(), &denied) {
		httplimit.SetHeader(w.Header(), denied.Result)
	} else {
		httplimit.SetHeader(w.Header(), given.PerRequest[given.GrantedBy])
	}
	writeJSON(w, body)
	return nil
}

// limiterRequests returns the requests with their policies.
func (h *Handler) limiterRequests(in many) ([]limiter.Request, error) {
	all := make([]limiter.Request, len(in.Requests))
	for i, one := range in.Requests {
		var err error
		if all[i], err = h.limiterRequest(one); err != nil {
			p := problemOf(err)
			p.Field = fmt.Sprintf("requests[%d].%s", i, p.Field)
			p.Detail = fmt.Sprintf("requests[%d]: %s", i, p.Detail)
			return nil, p
		}
	}
	return all, nil
}

// allowBatch decides each request by itself. They share statements.
func (h *Handler) allowBatch(w http.ResponseWriter, r *http.Request) error {
	var in many
	if err := in.read(w, r, &in, false); err != nil {
		return err
	}
	answers := make([][]byte, len(in.Requests))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(maxAtOnce, len(answers)) {
		workers.Go(func() {
			for i := range next {
				answers[i] = h.allowOne(r, in.Requests[i])
			}
		})
	}
	for i := range answers {
		next <- i
	}
	close(next)
	workers.Wait()
	if err := r.Context().Err(); err != nil {
		return err
	}
	body := []byte(`{"results":[`)
	for i, a := range answers {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, a...)
	}
	writeJSON(w, append(body, "]}"...))
	return nil
}

// allowOne returns the JSON of a request's result or problem.
func (h *Handler) allowOne(r *http.Request, one request) []byte {
	q, err := h.limiterRequest(one)
	if err == nil {
		var result limiter.Result
		if result, err = h.Limiter.Do(r.Context(), q); err == nil {
			var body []byte
			if body, err = appendResult(nil, result); err == nil {
				return body
			}
		}
	}
	return append(append([]byte(`{"error":`), problemOf(err).json()...), '}')
}
