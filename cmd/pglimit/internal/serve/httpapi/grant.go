package httpapi

import (
	"net/http"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

// grant adds prepaid units to a balance.
func (h *Handler) grant(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		target
		Units          *float64 `json:"units"`
		Expires        string   `json:"expires"`
		Priority       int      `json:"priority"`
		Source         string   `json:"source"`
		Note           string   `json:"note"`
		IdempotencyKey string   `json:"idempotency_key"`
	}
	if err := api.ReadUpTo(w, r, &in, maxBody); err != nil {
		return err
	}
	if in.Units == nil {
		return api.BadField("units", "is missing: send the number of units to add")
	}
	o := limiter.GrantOptions{Priority: in.Priority, Source: in.Source}
	if in.Expires != "" {
		var err error
		if o.Expires, err = time.Parse(time.RFC3339, in.Expires); err != nil {
			return api.BadField("expires", "is %s: must be a time such as 2027-01-31T18:00:00Z", shortened(in.Expires))
		}
	}
	if err := oneKey(r, &in.IdempotencyKey, true); err != nil {
		return err
	}
	p, err := h.policy(in.Policy)
	if err != nil {
		return err
	}
	o.Note, o.IdempotencyKey = in.Note, in.IdempotencyKey
	result, err := h.Limiter.Grant(r.Context(), p, in.Key, *in.Units, o)
	if err != nil {
		return err
	}
	return writeResult(w, result)
}
