package inspect

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/store"
)

// Key is a row of the view pglimit_keys, as JSON too. A pointer is nil where there is no
// value: all from Level to EmptyAt in a Key that has denials and no row any more.
type Key struct {
	Policy       string         `json:"policy"`
	Algorithm    algorithm.Name `json:"algorithm"`
	Key          string         `json:"key"`
	Level        *float64       `json:"level"`
	Burst        *float64       `json:"burst"`
	Share        *float64       `json:"share"`
	Remaining    *float64       `json:"remaining"`
	BlockedUntil *time.Time     `json:"blocked_until"`
	UpdatedAt    *time.Time     `json:"updated_at"`
	EmptyAt      *time.Time     `json:"empty_at"`
	Reservations int64          `json:"reservations"`
	Denials      int64          `json:"denials"`
	LastDeniedAt *time.Time     `json:"last_denied_at"`
}

// columns are those of a Key in the view k.
const columns = `k.policy, k.algorithm, k.key, k.level, k.burst, k.share, k.remaining, k.blocked_until, k.updated_at, k.empty_at, k.reservations, k.denials, k.last_denied_at`

// seek is a FROM item k: the view's row of f's policy, key and algorithm. OFFSET keeps the
// three as conditions of the view's parts, so that each is a look into an index.
const seek = `LATERAL (SELECT * FROM pglimit_keys AS k WHERE k.policy = f.policy AND k.key = f.key AND k.algorithm = f.algorithm OFFSET 0) AS k`

// Order is an order of Top.
type Order string

// The orders.
const (
	ByShare   Order = "share"   // the fullest first; reads all rows
	ByDenials Order = "denials" // the most denied of the last 24 hours first
	ByRecent  Order = "recent"  // the last updated first; reads all rows, without their levels
)

// Orders lists the orders, the default first.
var Orders = []Order{ByShare, ByDenials, ByRecent}

// TopQuery is a question to Top.
type TopQuery struct {
	By     Order
	Filter Filter
	Limit  int           // from 1 to 1000
	Within time.Duration // only keys updated in that time; 0: all. Not for ByDenials
}

func (q TopQuery) check() error {
	switch {
	case q.Limit < 1 || q.Limit > 1000:
		return store.Invalid("limit", fmt.Sprint(q.Limit), "must be from 1 to 1000")
	case q.Within < 0 || q.Within > 0 && q.By == ByDenials:
		return store.Invalid("within", duration.Format(q.Within), "must not be negative, and is not for the order by denials")
	}
	return q.Filter.check()
}

// Top returns the first keys in an order. The order by denials needs programs that keep
// denials; it may return keys without a row.
func (i *Inspector) Top(ctx context.Context, q TopQuery) (keys []Key, err error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	var p params
	var sql string
	switch q.By {
	case ByShare:
		sql = topByShare(q, &p)
	case ByRecent:
		sql = topByRecent(q, &p)
	case ByDenials:
		return i.topByDenials(ctx, q)
	default:
		return nil, store.Invalid("order", store.Quote(string(q.By)), fmt.Sprintf("is not one of %q", Orders))
	}
	err = i.read(ctx, func(tx pgx.Tx) error {
		keys, err = collect[Key](ctx, tx, sql, p)
		return err
	})
	return keys, err
}

// since returns a time of the database's clock, in microseconds, as SQL.
func since(d time.Duration, p *params) string {
	return "(date_part('epoch'::text, statement_timestamp()) * 1000000::float8)::bigint - " + p.add(d.Microseconds()) + "::bigint"
}

func topByShare(q TopQuery, p *params) string {
	where := "true"
	if q.Filter.Policy != "" {
		where += " AND k.policy = " + p.add(q.Filter.Policy) + "::text"
	}
	if q.Filter.Algorithm != "" {
		where += " AND k.algorithm = " + p.add(string(q.Filter.Algorithm)) + "::text"
	}
	if q.Within > 0 {
		where += " AND k.updated_at > to_timestamp((" + since(q.Within, p) + ")::float8 / 1000000::float8)"
	}
	return "SELECT " + columns + " FROM pglimit_keys AS k WHERE " + where +
		" ORDER BY k.share DESC NULLS LAST, k.policy, k.algorithm, k.key LIMIT " + p.add(int64(q.Limit)) + "::bigint"
}

func topByRecent(q TopQuery, p *params) string {
	var tables []string
	for _, a := range q.Filter.algorithms() {
		where := "true"
		if q.Filter.Policy != "" {
			where += " AND t.policy = " + p.add(q.Filter.Policy) + "::text"
		}
		if q.Within > 0 {
			where += " AND t.updated_at_us > " + since(q.Within, p)
		}
		tables = append(tables, `(SELECT '`+string(a)+`'::text COLLATE "C" AS algorithm, t.policy, t.key, t.updated_at_us FROM `+table(a)+` AS t WHERE `+where+
			` ORDER BY t.updated_at_us DESC LIMIT `+p.add(int64(q.Limit))+`::bigint)`)
	}
	return "SELECT " + columns + " FROM (SELECT * FROM (" + strings.Join(tables, "\nUNION ALL\n") + ") AS t ORDER BY t.updated_at_us DESC LIMIT " +
		p.add(int64(q.Limit)) + "::bigint) AS f, " + seek + " ORDER BY f.updated_at_us DESC, k.policy, k.algorithm, k.key"
}

// day is how far back the view counts denials.
const day = 24 * time.Hour

func (i *Inspector) topByDenials(ctx context.Context, q TopQuery) (keys []Key, err error) {
	err = i.read(ctx, func(tx pgx.Tx) error {
		now, err := queries.Clock(ctx, tx, nil)
		if err != nil {
			return err
		}
		denied, err := queries.InspectDenialKeys(ctx, tx, db.InspectDenialKeysParams{
			FromUs: now - day.Microseconds() + 1, UntilUs: now + 1, Policy: q.Filter.Policy, Algorithm: string(q.Filter.Algorithm), MaxRows: int64(q.Limit),
		})
		if err != nil {
			return err
		}
		var f struct{ policies, algorithms, keys []string }
		place := map[[3]string]int{}
		for n, d := range denied {
			last := time.UnixMicro(d.LastDeniedAtUs)
			keys = append(keys, Key{Policy: d.Policy, Algorithm: algorithm.Name(d.Algorithm), Key: d.Key, Denials: d.Denials, LastDeniedAt: &last})
			place[[3]string{d.Policy, d.Algorithm, d.Key}] = n
			f.policies, f.algorithms, f.keys = append(f.policies, d.Policy), append(f.algorithms, d.Algorithm), append(f.keys, d.Key)
		}
		rows, err := collect[Key](ctx, tx, `SELECT `+columns+` FROM unnest($1::text[], $2::text[], $3::text[]) AS f (policy, algorithm, key), `+seek,
			params{f.policies, f.algorithms, f.keys})
		for _, k := range rows {
			n := place[[3]string{k.Policy, string(k.Algorithm), k.Key}]
			k.Denials, k.LastDeniedAt = keys[n].Denials, keys[n].LastDeniedAt
			keys[n] = k
		}
		return err
	})
	return keys, err
}

// collect returns the rows of a query. Their columns are the fields of T in order.
func collect[T any](ctx context.Context, tx pgx.Tx, sql string, p params) ([]T, error) {
	rows, err := tx.Query(ctx, sql, p...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
