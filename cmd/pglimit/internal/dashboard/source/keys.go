package source

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
)

// Keys returns the first keys of a query. With a prefix it orders the first keys by name.
func (s *Source) Keys(ctx context.Context, q dashboard.Query) (dashboard.Keys, error) {
	return s.top.get(ctx, q, func(ctx context.Context) (k dashboard.Keys, err error) {
		if k.At, err = s.clock(ctx); err != nil {
			return k, err
		}
		filter := inspect.Filter{Policy: q.Policy}
		if q.Prefix != "" {
			found, err := s.inspector.Find(ctx, inspect.Keys{Text: q.Prefix, Prefix: true}, filter, maxKept)
			if err != nil {
				return k, err
			}
			k.Rows, k.More = withDenials(rows(found.Keys), found.Denials), found.More
			if q.Order == dashboard.ByDenials {
				k.Rows = slices.DeleteFunc(k.Rows, func(r dashboard.Row) bool { return r.Denials == 0 })
			}
			slices.SortStableFunc(k.Rows, func(a, b dashboard.Row) int { return cmp.Compare(rank(b, q.Order), rank(a, q.Order)) })
		} else {
			found, err := s.inspector.Top(ctx, inspect.TopQuery{By: inspect.Order(q.Order), Filter: filter, Limit: q.Limit + 1})
			if err != nil {
				return k, err
			}
			k.Rows = rows(found)
		}
		if len(k.Rows) > q.Limit {
			k.Rows, k.More = k.Rows[:q.Limit], true
		}
		return k, nil
	})
}

// rank is larger for rows that come first.
func rank(r dashboard.Row, by dashboard.Order) float64 {
	switch {
	case by == dashboard.ByDenials:
		return float64(r.Denials)
	case by == dashboard.ByRecent:
		return float64(r.UpdatedAt.UnixMicro())
	case !r.BlockedUntil.IsZero():
		return math.Inf(1)
	case r.Share != nil:
		return *r.Share
	}
	return -1
}

// Key returns all that is stored of one key.
func (s *Source) Key(ctx context.Context, ref dashboard.Ref) (dashboard.Key, error) {
	k := dashboard.Key{Stored: s.stored(ref)}
	found, err := s.inspector.Find(ctx, inspect.Keys{Text: k.Stored}, inspect.Filter{}, maxKept)
	if err != nil {
		return k, err
	}
	if k.At, err = s.clock(ctx); err != nil {
		return k, err
	}
	k.Rows = withDenials(rows(found.Keys), found.Denials)
	for _, r := range found.Reservations {
		k.Reservations = append(k.Reservations, dashboard.Reservation{ID: r.ID, Policy: r.Policy, Algorithm: limiter.Algorithm(r.Algorithm), Units: r.Units, Expires: r.ExpiresAt})
	}
	for _, o := range found.Overrides {
		k.Overrides = append(k.Overrides, limiter.Override{
			Policy: o.Policy, Key: o.Key, Unlimited: o.Unlimited, Limit: o.Limit, Burst: o.Burst, Shadow: o.Shadow, Until: value(o.Until), Note: o.Note, ChangedBy: o.ChangedBy,
		})
	}
	var policies []string
	for _, d := range found.Denials {
		policies = append(policies, d.Policy)
	}
	if len(policies) == 0 {
		return k, nil
	}
	slots, err := queries.DashboardKeyDenials(ctx, s.pool, db.DashboardKeyDenialsParams{Policies: slices.Compact(policies), Key: k.Stored, FromUs: k.At.Add(-day).UnixMicro()})
	for _, d := range slots {
		k.Denials = append(k.Denials, dashboard.DenialSlot{Start: time.UnixMicro(d.SlotUs).UTC(), Policy: d.Policy, Denials: d.Denials, Shadowed: d.Shadowed, Units: d.Units})
	}
	return k, exec.Translate(err, false)
}

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func rows(found []inspect.Key) []dashboard.Row {
	all := make([]dashboard.Row, len(found))
	for i, k := range found {
		all[i] = dashboard.Row{
			Policy: k.Policy, Algorithm: limiter.Algorithm(k.Algorithm), Key: k.Key, Level: k.Level, Burst: k.Burst, Share: k.Share, Remaining: k.Remaining,
			BlockedUntil: value(k.BlockedUntil), UpdatedAt: value(k.UpdatedAt), EmptyAt: value(k.EmptyAt),
			Reservations: k.Reservations, Denials: k.Denials, LastDenied: value(k.LastDeniedAt),
		}
	}
	return all
}

// withDenials adds the keys that have denials and no row.
func withDenials(all []dashboard.Row, denied []inspect.Denied) []dashboard.Row {
	type id struct {
		policy, key string
		algorithm   algorithm.Name
	}
	have := map[id]bool{}
	for _, r := range all {
		have[id{r.Policy, r.Key, algorithm.Name(r.Algorithm)}] = true
	}
	for _, d := range denied {
		if !have[id{d.Policy, d.Key, d.Algorithm}] {
			all = append(all, dashboard.Row{Policy: d.Policy, Algorithm: limiter.Algorithm(d.Algorithm), Key: d.Key, Denials: d.Denials, LastDenied: d.LastDeniedAt})
		}
	}
	return all
}
