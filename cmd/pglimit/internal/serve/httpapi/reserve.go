package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// defaultTTL is that of `pglimit reserve`.
const defaultTTL = 10 * time.Minute

// reservation is a method that sets units aside.
type reservation = func(*limiter.Limiter, context.Context, limiter.Request, time.Duration) (limiter.Reservation, error)

// reserving returns the route of a method that sets units aside.
func reserving(do reservation) func(*Handler, http.ResponseWriter, *http.Request) error {
	return func(h *Handler, w http.ResponseWriter, r *http.Request) error { return h.reserve(w, r, do) }
}

func (h *Handler) reserve(w http.ResponseWriter, r *http.Request, do reservation) error {
	var in struct {
		request
		TTL      string `json:"ttl"` // empty: 10m
		Estimate bool   `json:"estimate"`
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return err
	}
	if err := oneKey(r, &in.IdempotencyKey, true); err != nil {
		return err
	}
	ttl, err := lasting(in.TTL)
	if err != nil {
		return err
	}
	q, err := h.limiterRequest(in.request)
	if err != nil {
		return err
	}
	q.Estimate = in.Estimate
	hold, err := do(h.Limiter, r.Context(), q, ttl)
	if err != nil {
		return err
	}
	return writeHold(w, hold)
}

// lasting reads a reservation's ttl, by default defaultTTL.
func lasting(text string) (time.Duration, error) {
	if text == "" {
		return defaultTTL, nil
	}
	return span("ttl", text)
}

// writeHold answers with a reservation or a ticket, which are null after a denial.
func writeHold(w http.ResponseWriter, hold limiter.Reservation) error {
	var id *string
	var until *time.Time
	if hold.ID != "" {
		id, until = &hold.ID, &hold.ExpiresAt
	}
	body, err := json.Marshal(struct {
		ID        *string    `json:"id"`
		ExpiresAt *time.Time `json:"expires_at"`
	}{id, until})
	if err == nil {
		body, err = embed(body, hold.Result)
	}
	if err != nil {
		return err
	}
	httplimit.SetHeader(w.Header(), hold.Result)
	writeJSON(w, body)
	return nil
}

// settle ends a reservation with what was spent.
func (h *Handler) settle(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		ID    string   `json:"id"`
		Units *float64 `json:"units"`
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return err
	}
	if in.Units == nil {
		return api.BadField("units", "is missing: must be the units spent, 0 or more")
	}
	if in.ID == "" {
		return api.BadField("id", `is "": must be that of a reservation`)
	}
	result, err := h.Limiter.Settle(r.Context(), in.ID, *in.Units)
	if err != nil {
		return err
	}
	return writeResult(w, result)
}

// cancel ends a reservation with nothing spent.
func (h *Handler) cancel(w http.ResponseWriter, r *http.Request) error {
	id, err := readID(w, r, "a reservation")
	if err == nil {
		err = h.Limiter.Cancel(r.Context(), id)
	}
	if err != nil {
		return err
	}
	return done(w)
}

// readID reads a body that has only the ID of what ends.
func readID(w http.ResponseWriter, r *http.Request, of string) (string, error) {
	var in struct {
		ID string `json:"id"`
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return "", err
	}
	if in.ID == "" {
		return "", api.BadField("id", `is "": must be that of %s`, of)
	}
	return in.ID, nil
}

// target is the body of a request for a key of a policy.
type target struct {
	Policy string `json:"policy"`
	Key    string `json:"key"`
}

// block denies all requests of a key for a time.
func (h *Handler) block(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		target
		For string `json:"for"`
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return err
	}
	d, err := span("for", in.For)
	if err != nil {
		return err
	}
	p, err := h.policy(in.Policy)
	if err != nil {
		return err
	}
	if err := h.Limiter.Block(r.Context(), p, in.Key, d); err != nil {
		return err
	}
	return done(w)
}

// usage reports what a key has spent, reserved and left.
func (h *Handler) usage(w http.ResponseWriter, r *http.Request) error {
	in, err := query(r, "policy", "key")
	if err != nil {
		return err
	}
	p, err := h.policy(in["policy"])
	if err != nil {
		return err
	}
	use, err := h.Limiter.Usage(r.Context(), p, in["key"])
	if err != nil {
		return err
	}
	body, err := json.Marshal(use)
	if err == nil {
		body, err = embed(body, use.Result)
	}
	if err != nil {
		return err
	}
	httplimit.SetHeader(w.Header(), use.Result)
	writeJSON(w, body)
	return nil
}
