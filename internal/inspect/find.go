package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Found is all that the database has about some keys, as JSON too. Every list is in order
// of policy and key.
type Found struct {
	Keys         []Key         `json:"keys"`
	Reservations []Reservation `json:"reservations"`
	Overrides    []Override    `json:"overrides"`
	Denials      []Denied      `json:"denials"`
	// More reports whether a list had more than the limit, and ends there.
	More bool `json:"more"`
}

// Empty reports whether there is nothing.
func (f Found) Empty() bool {
	return len(f.Keys)+len(f.Reservations)+len(f.Overrides)+len(f.Denials) == 0
}

// Reservation is an open reservation.
type Reservation struct {
	Policy    string         `json:"policy"`
	Algorithm algorithm.Name `json:"algorithm"`
	Key       string         `json:"key"`
	ID        string         `json:"id"` // for Settle and Cancel
	Units     float64        `json:"units"`
	CreatedAt time.Time      `json:"created_at"`
	ExpiresAt time.Time      `json:"expires_at"`
}

// Override is what differs for a key of a policy; nil fields do not.
type Override struct {
	Policy    string     `json:"policy"`
	Key       string     `json:"key"`
	Unlimited bool       `json:"unlimited"`
	Limit     *float64   `json:"limit"`
	Burst     *float64   `json:"burst"`
	Shadow    *bool      `json:"shadow"`
	Until     *time.Time `json:"until"` // nil: no end
	Note      string     `json:"note"`
	ChangedBy string     `json:"changed_by"`
}

// Denied is a key's denials of some time.
type Denied struct {
	Policy       string         `json:"policy"`
	Algorithm    algorithm.Name `json:"algorithm"`
	Key          string         `json:"key"`
	Denials      int64          `json:"denials"`
	Shadowed     int64          `json:"shadowed"` // of these, those that a shadow policy let pass
	Units        float64        `json:"units"`    // requested by them
	LastDeniedAt time.Time      `json:"last_denied_at"`
}

// Find returns every row of the keys under any policy and algorithm of the filter, and
// their open reservations, overrides, and denials of the last 24 hours: up to limit of
// each, from 1 to 10,000. Overrides have no algorithm and are found under all.
//
// It needs no index on the key: for each policy it looks into the primary keys.
func (i *Inspector) Find(ctx context.Context, k Keys, f Filter, limit int) (found Found, err error) {
	if err := k.check(); err != nil {
		return found, err
	}
	if err := f.check(); err != nil {
		return found, err
	}
	if limit < 1 || limit > 10_000 {
		return found, store.Invalid("limit", fmt.Sprint(limit), "must be from 1 to 10000")
	}
	err = i.read(ctx, func(tx pgx.Tx) error {
		m, err := newMatcher(ctx, tx, k)
		if err != nil {
			return err
		}
		var p params
		sql := findKeys(f, m, limit+1, &p)
		if found.Keys, err = collect[Key](ctx, tx, sql, p); err != nil {
			return err
		}
		p = nil
		sql = findReservations(f, m, limit+1, &p)
		if found.Reservations, err = collect[Reservation](ctx, tx, sql, p); err != nil {
			return err
		}
		p = nil
		sql = findOverrides(f, m, limit+1, &p)
		if found.Overrides, err = collect[Override](ctx, tx, sql, p); err != nil {
			return err
		}
		p = nil
		sql = findDenials(f, m, limit+1, &p)
		found.Denials, err = collect[Denied](ctx, tx, sql, p)
		return err
	})
	for n, r := range found.Reservations {
		found.Reservations[n].ID = store.ReservationID{Algorithm: r.Algorithm, Policy: r.Policy, Key: r.Key, ID: r.ID}.Public()
	}
	cut(&found.Keys, limit, &found.More)
	cut(&found.Reservations, limit, &found.More)
	cut(&found.Overrides, limit, &found.More)
	cut(&found.Denials, limit, &found.More)
	return found, err
}

// cut shortens a list to limit, and never leaves it nil: JSON has [] for an empty list.
func cut[T any](list *[]T, limit int, more *bool) {
	if len(*list) > limit {
		*list, *more = (*list)[:limit], true
	}
	if *list == nil {
		*list = []T{}
	}
}

func findKeys(f Filter, m matcher, limit int, p *params) string {
	return "SELECT " + columns + "\nFROM (" + rowsOf(f, m, limit, p) + "\nLIMIT " + p.add(int64(limit)) + "::bigint) AS f, " + seek +
		"\nORDER BY k.policy, k.key, k.algorithm"
}

func findReservations(f Filter, m matcher, limit int, p *params) string {
	only := ""
	if f.Algorithm != "" {
		only = " AND h.algorithm = " + p.add(string(f.Algorithm)) + "::text"
	}
	return `SELECT f.policy, f.algorithm, f.key, f.id, f.units, to_timestamp(f.created_at_us::float8 / 1000000::float8), to_timestamp(f.expires_at_us::float8 / 1000000::float8)
FROM ` + policies("pglimit_reservation", f.Policy, p) + `, LATERAL (
    SELECT h.* FROM pglimit_reservation AS h WHERE h.policy = p.policy AND ` + m.on("h", p) + ` AND h.state = 'open'` + only + `
    ORDER BY h.key, h.expires_at_us LIMIT ` + p.add(int64(limit)) + `::bigint) AS f
ORDER BY f.policy, f.key, f.expires_at_us LIMIT ` + p.add(int64(limit)) + `::bigint`
}

func findOverrides(f Filter, m matcher, limit int, p *params) string {
	return `SELECT f.policy, f.key, f.unlimited, f.limit_units, f.burst, f.shadow, f.until, f.note, f.changed_by
FROM ` + policies("pglimit_override", f.Policy, p) + `, LATERAL (
    SELECT o.* FROM pglimit_override AS o WHERE o.policy = p.policy AND ` + m.on("o", p) + `
    ORDER BY o.key LIMIT ` + p.add(int64(limit)) + `::bigint) AS f
ORDER BY f.policy, f.key LIMIT ` + p.add(int64(limit)) + `::bigint`
}

func findDenials(f Filter, m matcher, limit int, p *params) string {
	only := " AND d.slot_us > " + since(day, p)
	if f.Algorithm != "" {
		only += " AND d.algorithm = " + p.add(string(f.Algorithm)) + "::text"
	}
	return `SELECT f.policy, f.algorithm, f.key, f.denials, f.shadowed, f.units, to_timestamp(f.last_us::float8 / 1000000::float8)
FROM ` + policies("pglimit_denial", f.Policy, p) + `, LATERAL (
    SELECT d.policy, d.algorithm, d.key, sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.units) AS units, max(d.last_denied_at_us) AS last_us
    FROM pglimit_denial AS d WHERE d.policy = p.policy AND ` + m.on("d", p) + only + `
    GROUP BY d.policy, d.key, d.algorithm ORDER BY d.key, d.algorithm LIMIT ` + p.add(int64(limit)) + `::bigint) AS f
ORDER BY f.policy, f.key, f.algorithm LIMIT ` + p.add(int64(limit)) + `::bigint`
}
