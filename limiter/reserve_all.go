package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// ReserveAll is Reserve of several requests at once, of any policies but one key of each: all are
// reserved for ttl or none, as AllowAll grants them. It takes from 1 to 1,000 requests. SettleAll
// and CancelAll end all of their reservations, and Settle and Cancel one.
//
//   - A repeated ReserveAll whose requests have one IdempotencyKey returns the same reservations,
//     as AllowAll does with its answers. After all of them were cancelled or have expired it makes
//     others; after some, it is an ErrInvalid.
//   - Two requests for one policy and key are an ErrInvalid, an Estimate and a LeakyBucketQueue
//     ErrUnsupported.
//   - Policy.OnError does not apply. A shadow policy reserves by itself if the others are reserved.
//   - Config.Observe is called for each request, with VerbReserve.
func (e *engine) ReserveAll(ctx context.Context, ttl time.Duration, requests ...Request) (all Reservations, err error) {
	if err = validTTL(ttl); err != nil {
		all.Results.DeniedBy = -1
		for _, in := range requests {
			_ = e.refuse(ctx, verbReserveAll, in, err)
		}
		return all, err
	}
	s := &set{verb: verbReserveAll, requests: requests, ttl: ttl}
	if all.Results, err = e.decideAll(ctx, s); err != nil || !all.Results.Allowed {
		return all, err
	}
	all.IDs = make([]string, len(requests))
	note := func(i int, id string, until time.Time) {
		if all.IDs[i] = id; all.ExpiresAt.IsZero() || until.Before(all.ExpiresAt) {
			all.ExpiresAt = until
		}
	}
	for _, g := range s.groups {
		id, until := reserved(&g.Query, g.Admission, &g.Outcome)
		note(g.Index, id, until)
	}
	for i := range s.requests {
		if all.IDs[i] == "" {
			note(i, e.uncounted(&s.requests[i]), all.Results.PerRequest[i].At.Add(ttl))
		}
	}
	return all, nil
}

// SettleAll is Settle of several reservations at once: all are settled, or none and it is an error
// that names one. units is what was really spent: one number for each of them, or a number for
// each of ids, in their order. It may be repeated. It takes from 1 to 1,000 IDs, each once.
// SettleAlls and CancelAlls never deadlock each other. A limiter in memory that is full may have
// settled some: repeat it.
func (e *engine) SettleAll(ctx context.Context, ids []string, units ...float64) ([]Result, error) {
	return e.endAll(ctx, verbSettle, store.Settled, ids, units)
}

// CancelAll is Cancel of several reservations at once: all are cancelled, or none and it is an
// error that names one. It is otherwise as SettleAll.
func (e *engine) CancelAll(ctx context.Context, ids ...string) error {
	_, err := e.endAll(ctx, verbCancel, store.Cancelled, ids, []float64{0})
	return err
}

func (e *engine) endAll(ctx context.Context, v *verb, state store.State, ids []string, units []float64) (results []Result, err error) {
	began, requests := e.begin(), make([]Request, len(ids))
	results = make([]Result, len(ids))
	defer func() {
		for i := range ids {
			e.finish(ctx, v, &requests[i], &results[i], err, began)
		}
		if err != nil {
			results = nil
		}
	}()
	if n := len(ids); n == 0 || n > maxRequests {
		return results, store.Invalid("ids", strconv.Itoa(n), fmt.Sprintf("must be from 1 to %d IDs of reservations", maxRequests))
	} else if len(units) != 1 && len(units) != n {
		return results, store.Invalid("units", strconv.Itoa(len(units)), fmt.Sprintf("must be one number for all, or %d: one for each reservation", n))
	}
	op, ends := &store.Op{Kind: store.SettleAll}, make([]*store.Op, len(ids))
	for i, id := range ids {
		requests[i].Cost = units[min(i, len(units)-1)]
		if spent := requests[i].Cost; !(spent >= 0 && spent <= algorithm.MaxUnits) {
			return results, store.Invalid(fmt.Sprintf("units[%d]", min(i, len(units)-1)), strconv.FormatFloat(spent, 'g', -1, 64), "must be from 0 to 2^53")
		}
		if ends[i], err = e.ending(&requests[i], id, state); err != nil {
			if bad := (*store.InvalidError)(nil); errors.As(err, &bad) {
				err = store.Invalid(fmt.Sprintf("ids[%d]", i), bad.Value, bad.Reason)
			}
			return results, err
		}
		if results[i] = (Result{Allowed: true, Source: SourceSkipped, At: e.clockTime()}); ends[i] != nil {
			op.Ends = append(op.Ends, ends[i])
		}
	}
	if err = e.sendEnds(ctx, op); err != nil {
		return results, err
	}
	for i, one := range ends {
		if one == nil {
			continue
		}
		e.freed(one.Algorithm, one.Policy, one.Key)
		one.Rows = op.Rows
		if results[i], err = e.ended(one, len(op.Ends)); err != nil {
			return results, err
		}
	}
	return results, nil
}

// sendEnds sends a SettleAll, with its reservations in lock order and of one moment.
func (e *engine) sendEnds(ctx context.Context, op *store.Op) error {
	slices.SortFunc(op.Ends, func(a, b *store.Op) int {
		return cmp.Or(inLockOrder(&store.Group{Query: a.Query}, &store.Group{Query: b.Query}), strings.Compare(a.ID, b.ID))
	})
	for i, one := range op.Ends {
		if one.Now = op.Ends[0].Now; i > 0 && one.Reservation() == op.Ends[i-1].Reservation() {
			return store.Invalid("ids", store.Quote(one.Reservation().Public()), "is there twice")
		}
		op.Groups = append(op.Groups, &store.Group{Query: one.Query})
	}
	if len(op.Ends) == 0 {
		return nil
	}
	return e.send(ctx, op)
}
