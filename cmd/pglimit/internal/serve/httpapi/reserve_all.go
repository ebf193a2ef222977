package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// reserveAll sets units of several requests aside, or of none.
func (h *Handler) reserveAll(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		many
		TTL string `json:"ttl"` // empty: 10m
	}
	if err := in.read(w, r, &in, true); err != nil {
		return err
	}
	ttl, err := lasting(in.TTL)
	if err != nil {
		return err
	}
	all, err := h.limiterRequests(in.many)
	if err != nil {
		return err
	}
	made, err := h.Limiter.ReserveAll(r.Context(), ttl, all...)
	if err != nil {
		return err
	}
	results, err := appendResults(limiter.Results{Allowed: made.Results.Allowed, DeniedBy: made.Results.DeniedBy}, made.Results.PerRequest)
	if err != nil {
		return err
	}
	httplimit.SetHeader(w.Header(), made.Results.PerRequest...)
	return write(w, struct {
		Results   json.RawMessage `json:"results"`
		IDs       []string        `json:"ids"` // null after a denial
		ExpiresAt time.Time       `json:"expires_at,omitzero"`
	}{results, made.IDs, made.ExpiresAt})
}

// amounts is units in JSON: a number for all reservations, or an array with one for each.
type amounts []float64

// UnmarshalJSON refuses all but numbers.
func (a *amounts) UnmarshalJSON(text []byte) error {
	var one *float64
	each := []*float64{nil}
	if err := json.Unmarshal(text, &one); err == nil {
		each[0] = one
	} else if json.Unmarshal(text, &each) != nil {
		each = []*float64{nil}
	}
	for _, units := range each {
		if units == nil {
			return api.BadField("units", "is %.40s: must be the units spent, 0 or more, of all reservations, or an array of one number for each", text)
		}
		*a = append(*a, *units)
	}
	return nil
}

// settleAll ends several reservations with the units spent, or none.
func (h *Handler) settleAll(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		IDs   []string `json:"ids"`
		Units *amounts `json:"units"`
	}
	if err := api.ReadUpTo(w, r, &in, maxManyBody); err != nil {
		return err
	}
	if in.Units == nil {
		return api.BadField("units", "is missing: must be the units spent, 0 or more")
	}
	results, err := h.Limiter.SettleAll(r.Context(), in.IDs, *in.Units...)
	if err != nil {
		return ofIDs(err)
	}
	body, err := appendResults(struct {
		Results []int `json:"results"` // appendResults writes it
	}{[]int{}}, results)
	if err != nil {
		return err
	}
	httplimit.SetHeader(w.Header(), results...)
	writeJSON(w, body)
	return nil
}

// cancelAll ends several reservations with nothing spent, or none.
func (h *Handler) cancelAll(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		IDs []string `json:"ids"`
	}
	if err := api.ReadUpTo(w, r, &in, maxManyBody); err != nil {
		return err
	}
	if err := h.Limiter.CancelAll(r.Context(), in.IDs...); err != nil {
		return ofIDs(err)
	}
	return done(w)
}

// ofIDs names the field of an error about one of several reservations.
func ofIDs(err error) error {
	if !errors.Is(err, limiter.ErrNoReservation) && !errors.Is(err, limiter.ErrReservationEnded) {
		return err
	}
	p := problemOf(err)
	p.Field = "ids"
	return p
}
