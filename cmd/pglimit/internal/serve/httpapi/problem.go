package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// problem is the body of an error: RFC 9457, with a code for programs.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	// Field is the field or header that is not valid.
	Field string `json:"field,omitempty"`

	allow string // the header Allow
}

// Error returns the detail.
func (p *problem) Error() string { return p.Detail }

// causes are the errors of a limiter that its caller cannot correct. What they say may name the
// database, so it is only logged.
var causes = []struct {
	err          error
	code, detail string
}{
	{limiter.ErrLocked, "locked", "Another transaction has locked the key's row. Nothing was counted."},
	{limiter.ErrOverloaded, "overloaded", "Too many requests are waiting for the database. Nothing was counted."},
	{limiter.ErrClosed, "closed", "The server is shutting down. Nothing was counted."},
	{limiter.ErrMisconfigured, "misconfigured", "The database refuses decisions: see the server's log. Nothing was counted."},
}

// problemOf returns the problem of an error.
func problemOf(err error) *problem {
	var own *problem
	var page *api.Problem
	var scope *auth.ScopeError
	var full *store.FullError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &page):
		return ofPage(page)
	case errors.As(err, &scope):
		return &problem{Status: http.StatusForbidden, Code: "scope", Detail: scope.Error()}
	case errors.As(err, &full):
		return &problem{Status: http.StatusServiceUnavailable, Code: "overloaded", Detail: api.Sentence(full), Field: "key"}
	case errors.Is(err, auth.ErrNoToken), errors.Is(err, auth.ErrUnknown):
		return &problem{Status: http.StatusUnauthorized, Code: "unauthorized", Detail: err.Error()}
	case errors.Is(err, policies.ErrNoPolicy):
		return &problem{Status: http.StatusNotFound, Code: "no_policy", Detail: api.Sentence(err), Field: "policy"}
	case errors.Is(err, limiter.ErrNoReservation):
		return &problem{Status: http.StatusNotFound, Code: "no_reservation", Detail: api.Sentence(err), Field: "id"}
	case errors.Is(err, limiter.ErrNoTicket):
		return &problem{Status: http.StatusNotFound, Code: "no_ticket", Detail: api.Sentence(err), Field: "id"}
	case errors.Is(err, limiter.ErrNoSlot):
		return &problem{Status: http.StatusNotFound, Code: "no_slot", Detail: api.Sentence(err), Field: "id"}
	case errors.Is(err, limiter.ErrReservationEnded):
		return &problem{Status: http.StatusConflict, Code: "reservation_ended", Detail: api.Sentence(err), Field: "id"}
	case errors.Is(err, limiter.ErrInvalid):
		p := ofPage(api.ProblemOf(err, ""))
		p.Code = "invalid"
		return p
	case errors.Is(err, limiter.ErrUnsupported):
		return &problem{Status: http.StatusBadRequest, Code: "unsupported", Detail: api.Sentence(err), Field: "policy"}
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return &problem{Status: http.StatusServiceUnavailable, Code: c.code, Detail: c.detail}
		}
	}
	if errors.Is(err, limiter.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Detail: "The database did not answer. The request may or may not have been counted."}
	}
	return &problem{Status: http.StatusInternalServerError, Code: "internal", Detail: "See the server's log."}
}

// ofPage returns the problem of an error in the form of the pages.
func ofPage(p *api.Problem) *problem {
	code := map[int]string{http.StatusRequestEntityTooLarge: "too_large", http.StatusUnsupportedMediaType: "media_type", http.StatusRequestTimeout: "timeout"}
	status := cmp.Or(p.Status, http.StatusBadRequest)
	return &problem{Status: status, Code: cmp.Or(code[status], "invalid"), Detail: p.Message, Field: cmp.Or(p.Field, p.Unknown)}
}

// json returns the problem with its defaults.
func (p *problem) json() []byte {
	all := *p
	all.Type, all.Title = "about:blank", http.StatusText(p.Status)
	body, err := json.Marshal(all)
	if err != nil { // strings and a number
		panic(err)
	}
	return body
}

func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	switch p.Status {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", `Bearer realm="pglimit"`)
	case http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	case http.StatusMethodNotAllowed:
		h.Set("Allow", p.allow)
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(p.json(), '\n')) // a client that has gone needs no answer
}

// shortened returns a client's text in quotes.
func shortened(text string) string { return fmt.Sprintf("%.40q", text) }
