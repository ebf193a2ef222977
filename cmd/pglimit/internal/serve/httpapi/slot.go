package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/httplimit"
)

// acquire takes a slot.
func (h *Handler) acquire(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		target
		Cost *float64 `json:"cost"` // nil: 1
		TTL  string   `json:"ttl"`  // empty: the policy's period
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return err
	}
	ttl, err := optional("ttl", in.TTL)
	if err != nil {
		return err
	}
	p, err := h.policy(in.Policy)
	if err != nil {
		return err
	}
	q := p.Request(in.Key, 1)
	if in.Cost != nil {
		q.Cost = *in.Cost
	}
	slot, err := h.Limiter.DoAcquire(r.Context(), q, ttl)
	if err != nil {
		return err
	}
	answer := struct {
		ID        *string    `json:"id"`
		Fence     *int64     `json:"fence"`
		ExpiresAt *time.Time `json:"expires_at"`
	}{}
	if slot.ID != "" {
		answer.ID, answer.Fence, answer.ExpiresAt = &slot.ID, &slot.Fence, &slot.ExpiresAt
	}
	body, err := json.Marshal(answer)
	if err == nil {
		body, err = embed(body, slot.Result)
	}
	if err != nil {
		return err
	}
	httplimit.SetHeader(w.Header(), slot.Result)
	writeJSON(w, body)
	return nil
}

// optional returns a duration that may be missing.
func optional(field, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	return span(field, text)
}

// renew moves the end of a slot.
func (h *Handler) renew(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		ID  string `json:"id"`
		TTL string `json:"ttl"` // empty: the policy's period
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return err
	}
	if in.ID == "" {
		return api.BadField("id", "is missing: send the id of the answer of /v1/acquire")
	}
	ttl, err := optional("ttl", in.TTL)
	if err != nil {
		return err
	}
	until, err := h.Limiter.Renew(r.Context(), in.ID, ttl)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]time.Time{"expires_at": until})
	if err == nil {
		writeJSON(w, body)
	}
	return err
}

// release gives a slot back.
func (h *Handler) release(w http.ResponseWriter, r *http.Request) error {
	id, err := readID(w, r, "a slot")
	if err == nil {
		err = h.Limiter.Release(r.Context(), id)
	}
	if err != nil {
		return err
	}
	return done(w)
}
