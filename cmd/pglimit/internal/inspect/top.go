package inspect

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/store"
)

// Order is an order of Top.
type Order string

// The orders.
const (
	ByDenials Order = "denials" // the most denied first, with or without a row
	ByShare   Order = "share"   // keys whose row is blocked, then the fullest; reads all rows
	ByRecent  Order = "recent"  // the last requested first; reads all rows, without their levels
)

// Orders lists the orders.
var Orders = []Order{ByDenials, ByShare, ByRecent}

// TopQuery is a question to Top.
type TopQuery struct {
	By     Order // "": ByDenials if there are recent denials, else ByShare
	Filter Filter
	Limit  int // from 1 to 1000
	// Within is the time in which keys were requested, and denials are recent. 0 is
	// Recently for denials, and otherwise no bound.
	Within time.Duration
}

func (q TopQuery) check() error {
	switch {
	case q.Limit < 1 || q.Limit > maxTop:
		return store.Invalid("limit", fmt.Sprint(q.Limit), fmt.Sprintf("must be from 1 to %d", maxTop))
	case q.Within < 0 || q.Within > maxWithin:
		return store.Invalid("within", duration.Format(q.Within), "must be positive and at most 90 days")
	case q.By != "" && !slices.Contains(Orders, q.By):
		return store.Invalid("order", store.Quote(string(q.By)), fmt.Sprintf("is not one of %q", Orders))
	}
	return q.Filter.check()
}

const (
	maxTop    = 1000
	maxWithin = 90 * 24 * time.Hour // the longest janitor.Config.KeepDenials
)

// Top is the first keys in an order, as JSON too.
type Top struct {
	By    Order     `json:"by"`
	Since time.Time `json:"since"` // of Key.RecentDenials
	Keys  []Key     `json:"keys"`  // never nil
}

// Above counts the rows of a policy and algorithm, or of one key if t has it, and those whose
// level is above burst. It reads all rows of the policy.
func (i *Inspector) Above(ctx context.Context, t Target, burst float64) (all, above int64, err error) {
	err = i.read(ctx, func(tx reader) error {
		return tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE k.level > $4::float8) FROM pglimit_keys AS k
WHERE k.policy = $1::text AND k.algorithm = $2::text AND ($3::text = ''::text OR k.key = $3::text)`, t.Policy, string(t.Algorithm.Table()), t.Key, burst).Scan(&all, &above)
	})
	return all, above, err
}

// Top returns the first keys in an order. Keys with denials can have no row.
func (i *Inspector) Top(ctx context.Context, q TopQuery) (top Top, err error) {
	if err := q.check(); err != nil {
		return top, err
	}
	recent := q.Within
	if recent == 0 {
		recent = Recently
	}
	err = i.read(ctx, func(tx reader) error {
		w, err := last(ctx, tx, recent)
		if err != nil {
			return err
		}
		denied, err := q.denied(ctx, tx, w)
		if err != nil {
			return err
		}
		if top.By = q.By; top.By == "" {
			if top.By = ByShare; len(denied) > 0 {
				top.By = ByDenials
			}
		}
		var rows []Target
		if top.By != ByDenials {
			if rows, err = q.rows(ctx, tx, top.By, w); err != nil {
				return err
			}
		}
		for _, t := range denied {
			if top.By == ByDenials || t.Key != "" && !slices.Contains(rows, t) {
				rows = append(rows, t)
			}
		}
		top.Since = time.UnixMicro(w.from).UTC()
		r, err := readRulings(ctx, tx, Keys{}, q.Filter, w)
		if err == nil {
			top.Keys, err = stand(ctx, tx, w, rows, r)
		}
		return err
	})
	if top.By != ByDenials { // which denied has sorted
		Sort(top.Keys, top.By)
	}
	top.Keys = top.Keys[:min(q.Limit, len(top.Keys))]
	return top, err
}

// denied lists the keys that were denied in the window: the most denied first, for ByRecent
// the last denied.
func (q TopQuery) denied(ctx context.Context, tx reader, w window) (all []Target, err error) {
	p := db.InspectDeniedParams{FromUs: w.from, SinceUs: w.since, Policy: q.Filter.Policy, Algorithm: q.Filter.stored(), ByLast: q.By == ByRecent, MaxRows: int64(q.Limit)}
	if q.By == ByShare { // the fullest of them may not be the most denied
		p.MaxRows = maxTop
	}
	if q.By == ByRecent && q.Within == 0 {
		p.FromUs, p.SinceUs = 0, 0
	}
	rows, err := queries.InspectDenied(ctx, tx, p)
	for _, r := range rows {
		all = append(all, Target{algorithm.Name(r.Algorithm), r.Policy, r.Key})
	}
	return all, err
}

// rows lists the first keys with a row in an order.
func (q TopQuery) rows(ctx context.Context, tx reader, by Order, w window) ([]Target, error) {
	var p params
	since := ""
	if q.Within > 0 {
		since = p.add(w.since) + "::bigint"
	}
	if by == ByRecent {
		return collect[Target](ctx, tx, q.byRecent(since, &p), p)
	}
	return collect[Target](ctx, tx, q.byShare(since, &p), p)
}

// byShare returns the statement of the fullest rows. since is "" for all.
func (q TopQuery) byShare(since string, p *params) string {
	where := "true"
	if q.Filter.Policy != "" {
		where += " AND k.policy = " + p.add(q.Filter.Policy) + "::text"
	}
	if q.Filter.Algorithm != "" {
		where += " AND k.algorithm = " + p.add(q.Filter.stored()) + "::text"
	}
	if since != "" {
		where += " AND k.updated_at > to_timestamp(" + since + "::float8 / 1000000::float8)"
	}
	return "SELECT k.algorithm, k.policy, k.key FROM " + standing + " AS k WHERE " + where +
		" ORDER BY k.blocked_until IS NULL, k.share DESC NULLS LAST, k.policy, k.algorithm, k.key LIMIT " + p.add(int64(q.Limit)) + "::bigint"
}

// byRecent returns the statement of the rows that were updated last. since is "" for all.
func (q TopQuery) byRecent(since string, p *params) string {
	var tables []string
	for _, a := range q.Filter.algorithms() {
		where := "true"
		if q.Filter.Policy != "" {
			where += " AND t.policy = " + p.add(q.Filter.Policy) + "::text"
		}
		if since != "" {
			where += " AND t.updated_at_us > " + since
		}
		tables = append(tables, `(SELECT '`+string(a)+`'::text COLLATE "C" AS algorithm, t.policy, t.key, max(t.updated_at_us) AS updated_at_us FROM `+table(a)+` AS t WHERE `+where+
			` GROUP BY t.policy, t.key ORDER BY max(t.updated_at_us) DESC LIMIT `+p.add(int64(q.Limit))+`::bigint)`)
	}
	return "SELECT t.algorithm, t.policy, t.key FROM (" + strings.Join(tables, "\nUNION ALL\n") + ") AS t ORDER BY t.updated_at_us DESC LIMIT " +
		p.add(int64(q.Limit)) + "::bigint"
}

// collect returns the rows of a query. Their columns are the fields of T in order.
func collect[T any](ctx context.Context, tx pgx.Tx, sql string, p params) ([]T, error) {
	rows, err := tx.Query(ctx, sql, p...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
