package httpapi

import (
	"net/http"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

// attempt begins an attempt.
func (h *Handler) attempt(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		target
		From string `json:"from"`
		TTL  string `json:"ttl"` // empty: 30s
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return err
	}
	o := limiter.AttemptOptions{From: in.From}
	if in.TTL != "" {
		var err error
		if o.TTL, err = span("ttl", in.TTL); err != nil {
			return err
		}
	}
	p, err := h.policy(in.Policy)
	if err != nil {
		return err
	}
	ticket, err := h.Limiter.Attempt(r.Context(), p, in.Key, o)
	if err != nil {
		return err
	}
	return writeHold(w, limiter.Reservation(ticket))
}

// succeeded reports that an attempt succeeded.
func (h *Handler) succeeded(w http.ResponseWriter, r *http.Request) error {
	id, err := readID(w, r, "an attempt")
	if err == nil {
		err = h.Limiter.Succeeded(r.Context(), id)
	}
	if err != nil {
		return err
	}
	return done(w)
}

// failed reports that an attempt failed.
func (h *Handler) failed(w http.ResponseWriter, r *http.Request) error {
	id, err := readID(w, r, "an attempt")
	if err != nil {
		return err
	}
	result, err := h.Limiter.Failed(r.Context(), id)
	if err != nil {
		return err
	}
	return writeResult(w, result)
}
