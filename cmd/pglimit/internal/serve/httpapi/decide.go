package httpapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/limiter"
)

// maxBody is the largest body of a request for one key.
const maxBody = 16 << 10

// request is the body of a request for one key.
type request struct {
	Policy         string   `json:"policy"`
	Key            string   `json:"key"`
	Cost           *float64 `json:"cost"` // nil: 1
	IdempotencyKey string   `json:"idempotency_key"`
	Floor          float64  `json:"floor"`
	Note           string   `json:"note"`
}

// limiterRequest returns the request with its policy.
func (h *Handler) limiterRequest(in request) (limiter.Request, error) {
	p, err := h.policy(in.Policy)
	if err != nil {
		return limiter.Request{}, err
	}
	q := limiter.Request{Policy: p, Key: in.Key, Cost: 1, IdempotencyKey: in.IdempotencyKey, Floor: in.Floor, Note: in.Note}
	if in.Cost != nil {
		q.Cost = *in.Cost
	}
	return q, nil
}

// policy returns the policy called name.
func (h *Handler) policy(name string) (limiter.Policy, error) {
	if name == "" {
		return limiter.Policy{}, api.BadField("policy", `is "": must be the name of a policy`)
	}
	return h.Policies.Get(name)
}

// verb is a method of the limiter that takes a request.
type verb struct {
	do   func(*limiter.Limiter, context.Context, limiter.Request) (limiter.Result, error)
	once bool // takes an idempotency key and a floor
}

// costing returns the handler of a method that takes the parts of a request.
func costing(do func(l *limiter.Limiter, ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)) func(*Handler, http.ResponseWriter, *http.Request) error {
	return verb{do: func(l *limiter.Limiter, ctx context.Context, q limiter.Request) (limiter.Result, error) {
		return do(l, ctx, q.Policy, q.Key, q.Cost)
	}}.serve
}

func (v verb) serve(h *Handler, w http.ResponseWriter, r *http.Request) error {
	text, err := api.Body(w, r, maxBody)
	if err != nil {
		return err
	}
	in, ok := plain(string(text))
	if !ok {
		if err := api.Decode(text, &in); err != nil {
			return err
		}
	}
	if err := oneKey(r, &in.IdempotencyKey, v.once); err != nil {
		return err
	}
	if in.Floor != 0 && !v.once {
		return api.BadField("floor", "is not for this route: allow, allow-all, allow-any, allow-batch, reserve, reserve-up-to and reserve-all take it")
	}
	if in.Note != "" && !v.once {
		return api.BadField("note", "is not for this route: allow, allow-all, allow-any, allow-batch, grant, reserve and reserve-up-to take it")
	}
	q, err := h.limiterRequest(in)
	if err != nil {
		return err
	}
	result, err := v.do(h.Limiter, r.Context(), q)
	if err != nil {
		return err
	}
	return writeResult(w, result)
}

const (
	idempotencyField  = "idempotency_key"
	idempotencyHeader = "Idempotency-Key"
)

// oneKey sets field to the idempotency key of the header, if there is one. It returns an error
// if the field has another, or if the route takes none.
func oneKey(r *http.Request, field *string, takes bool) error {
	sent := r.Header[idempotencyHeader]
	switch {
	case !takes && len(sent) > 0:
		return api.BadField(idempotencyHeader, "is not for this route: only allow, allow-all, allow-any, grant, reserve, reserve-up-to and reserve-all take the header")
	case !takes && *field != "":
		return api.BadField(idempotencyField, "is not for this route: allow, allow-all, allow-any, allow-batch, grant, reserve, reserve-up-to and reserve-all take it")
	case len(sent) == 0:
		return nil
	case len(sent) > 1:
		return api.BadField(idempotencyHeader, "has %d lines: send one", len(sent))
	}
	key, ok := unquoted(sent[0])
	switch {
	case !ok || key == "":
		return api.BadField(idempotencyHeader, "is %.40q: must be text, with or without double quotes", sent[0])
	case *field != "" && *field != key:
		return api.BadField(idempotencyHeader, "is %.40q, but the field %s is %.40q: send one of them", key, idempotencyField, *field)
	}
	*field = key
	return nil
}

// unquoted returns the text of a header's value, which may be a String of structured fields.
func unquoted(value string) (string, bool) {
	rest, quoted := strings.CutPrefix(value, `"`)
	if !quoted {
		return value, true
	}
	var text strings.Builder
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '"':
			return text.String(), i == len(rest)-1
		case c == '\\' && i+1 < len(rest) && (rest[i+1] == '"' || rest[i+1] == '\\'):
			i++
			text.WriteByte(rest[i])
		case c == '\\':
			return "", false
		default:
			text.WriteByte(c)
		}
	}
	return "", false
}

// span reads a duration.
func span(field, text string) (time.Duration, error) {
	d, err := duration.Parse(text)
	if err != nil {
		return 0, api.BadField(field, "is %.40q: %v", text, err)
	}
	return d, nil
}
