package inspect

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/policies"
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

// Override has the fields that differ from the policy for a key. nil fields are the policy's.
type Override struct {
	Policy    string     `json:"policy"`
	Key       string     `json:"key"`
	Match     string     `json:"match"` // empty: one key
	Unlimited bool       `json:"unlimited"`
	Blocked   bool       `json:"blocked"`
	Limit     *float64   `json:"limit"`
	Factor    *float64   `json:"factor"`
	Burst     *float64   `json:"burst"`
	Anchor    string     `json:"anchor"` // empty: the policy's
	Shadow    *bool      `json:"shadow"`
	Until     *time.Time `json:"until"` // nil: no end
	Note      string     `json:"note"`
	ChangedBy string     `json:"changed_by"`
}

// Stored returns o as package policies has it.
func (o Override) Stored() policies.Override {
	all := policies.Override{Policy: o.Policy, Key: o.Key, Match: policies.Match(o.Match), Limit: o.Limit, Factor: o.Factor, Burst: o.Burst, Anchor: o.Anchor, Shadow: o.Shadow, Unlimited: o.Unlimited, Blocked: o.Blocked, Note: o.Note, ChangedBy: o.ChangedBy}
	if o.Until != nil {
		all.Until = *o.Until
	}
	return all
}

// Denied is a key's denials of some time.
type Denied struct {
	Policy    string         `json:"policy"`
	Algorithm algorithm.Name `json:"algorithm"`
	Key       string         `json:"key"`
	Denials   int64          `json:"denials"`
	Shadowed  int64          `json:"shadowed"` // of these, those that a shadow policy let pass
	// Denials by their reason.
	ByLimit    int64 `json:"by_limit"`
	Blocked    int64 `json:"blocked"`
	AboveBurst int64 `json:"above_burst"` // the cost can never fit
	Overloaded int64 `json:"overloaded"`  // too many callers waited for the database

	Units         float64    `json:"units"`           // requested by them
	FirstDeniedAt time.Time  `json:"first_denied_at"` // the minute of the first, or the ten minutes of more than an hour ago
	LastDeniedAt  time.Time  `json:"last_denied_at"`
	RetryAt       *time.Time `json:"retry_at"` // when all fit that ever can, as of their denials
}

// Find returns every row of the keys under any policy and algorithm of the filter, with or
// without a row, and their open reservations, overrides, and denials of the last 24 hours:
// up to limit of each, from 1 to 10,000. Overrides have no algorithm and are found under all.
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
	err = i.read(ctx, func(tx reader) error {
		m, err := newMatcher(ctx, tx, k)
		if err != nil {
			return err
		}
		w, err := last(ctx, tx, day)
		if err != nil {
			return err
		}
		q := finder{ctx: ctx, tx: tx, filter: f, keys: m, limit: limit, more: &found.More}
		rows, err := list[Target](q, findKeys(w))
		if err != nil {
			return err
		}
		if rows, found.Overrides, err = q.ruled(rows, w, ""); err != nil {
			return err
		}
		if found.Keys, err = stand(ctx, tx, w.of(Recently), rows, q.rulings); err != nil {
			return err
		}
		if found.Reservations, err = list[Reservation](q, findReservations); err != nil {
			return err
		}
		found.Denials, err = list[Denied](q, findDenials(w))
		return err
	})
	for n, r := range found.Reservations {
		found.Reservations[n].ID = store.ReservationID{Algorithm: r.Algorithm, Policy: r.Policy, Key: r.Key, ID: r.ID}.Public()
	}
	return found, err
}

// Names returns the first keys that begin with prefix, with a row, denials or an override,
// under any policy, and whether there are more.
func (i *Inspector) Names(ctx context.Context, prefix string, limit int) (names []string, more bool, err error) {
	k := Keys{Text: prefix, Prefix: true}
	if err := k.check(); err != nil {
		return nil, false, err
	}
	err = i.read(ctx, func(tx reader) error {
		m, err := newMatcher(ctx, tx, k)
		if err != nil {
			return err
		}
		found, err := list[name](finder{ctx: ctx, tx: tx, keys: m, limit: limit, more: &more}, findNames)
		names = make([]string, len(found))
		for i, n := range found {
			names[i] = n.Key
		}
		return err
	})
	return names, more, err
}

type name struct{ Key string }

// findNames reads at most limit rows of each policy and table.
func findNames(f Filter, m matcher, limit int, p *params) string {
	return "SELECT DISTINCT f.key FROM (" + rowsOf(f, m, limit, p) + "\nUNION ALL\n" + keptOf("pglimit_denial", f, m, limit*len(algorithm.Tables), p, "") + // a key can be there once for each
		"\nUNION ALL\nSELECT ''::text, f.policy, f.key FROM " + m.each("pglimit_override", "o", f.Policy, p, func(of string) string {
		return `SELECT o.policy, o.key FROM pglimit_override AS o WHERE ` + of + ` AND o.match = ''::text AND ` + m.on("o", p) + `
    ORDER BY o.key LIMIT ` + p.add(int64(limit)) + `::bigint`
	}) + `) AS f ORDER BY f.key LIMIT ` + p.add(int64(limit)) + "::bigint"
}

// finder is one Find.
type finder struct {
	ctx    context.Context
	tx     reader
	filter Filter
	keys   matcher
	limit  int
	more   *bool // set if a list has more than limit

	rulings  rulings                  // by ruled
	defaults map[string]defaultPolicy // by ruled, for one key
}

// list returns what a statement finds. It is never nil: JSON has [] for an empty list.
func list[T any](q finder, find statement) ([]T, error) {
	var p params
	sql := find(q.filter, q.keys, q.limit+1, &p)
	all, err := collect[T](q.ctx, q.tx, sql, p)
	if len(all) > q.limit {
		all, *q.more = all[:q.limit], true
	}
	return append([]T{}, all...), err
}

// statement returns a SELECT, and adds its parameters.
type statement func(Filter, matcher, int, *params) string

// findKeys finds keys with a row or with denials in a window.
func findKeys(w window) statement {
	return func(f Filter, m matcher, limit int, p *params) string {
		return "SELECT f.algorithm, f.policy, f.key FROM (" + rowsOf(f, m, limit, p) +
			"\nUNION\n" + keptOf("pglimit_denial", f, m, limit, p, " AND t.slot_us >= "+p.add(w.from)+"::bigint AND t.slot_us <= "+p.add(w.now)+"::bigint") +
			") AS f ORDER BY f.policy, f.key, f.algorithm LIMIT " + p.add(int64(limit)) + "::bigint"
	}
}

func findReservations(f Filter, m matcher, limit int, p *params) string {
	only := ""
	if f.Algorithm != "" {
		only = " AND h.algorithm = " + p.add(f.stored()) + "::text"
	}
	return `SELECT f.policy, f.algorithm, f.key, f.id, f.units, to_timestamp(f.created_at_us::float8 / 1000000::float8), to_timestamp(f.expires_at_us::float8 / 1000000::float8)
FROM ` + m.each("pglimit_reservation", "h", f.Policy, p, func(of string) string {
		return `SELECT h.* FROM pglimit_reservation AS h WHERE ` + of + ` AND ` + m.on("h", p) + ` AND h.state = 'open'` + only + `
    ORDER BY h.key, h.expires_at_us LIMIT ` + p.add(int64(limit)) + `::bigint`
	}) + `
ORDER BY f.policy, f.key, f.expires_at_us LIMIT ` + p.add(int64(limit)) + `::bigint`
}

func findOverrides(f Filter, m matcher, limit int, p *params) string {
	return `SELECT ` + overrideColumns + ` FROM ` + policiesOf("pglimit_override", f.Policy, p) + `, LATERAL (
    SELECT o.* FROM pglimit_override AS o WHERE o.policy = p.policy AND ` + m.on("o", p) + ` AND (o.match = ''::text OR ` + p.add(m.keys.Prefix) + `::bool)
    ORDER BY o.key LIMIT ` + p.add(int64(limit)) + `::bigint) AS o
ORDER BY o.policy, o.key LIMIT ` + p.add(int64(limit)) + `::bigint`
}

// Overrides returns the first overrides of a policy by key, up to limit, and whether there are
// more.
func (i *Inspector) Overrides(ctx context.Context, policy string, limit int) (all []Override, more bool, err error) {
	err = i.read(ctx, func(tx reader) error {
		every := matcher{keys: Keys{Prefix: true}, utf8: true, distributed: tx.distributed}
		all, err = list[Override](finder{ctx: ctx, tx: tx, filter: Filter{Policy: policy}, keys: every, limit: limit, more: &more}, findOverrides)
		return err
	})
	return all, more, err
}

// findDenials adds up the denials of a window by key.
func findDenials(w window) statement {
	return func(f Filter, m matcher, limit int, p *params) string {
		only := " AND d.slot_us >= " + p.add(w.from) + "::bigint AND d.slot_us <= " + p.add(w.now) + "::bigint"
		if f.Algorithm != "" {
			only += " AND d.algorithm = " + p.add(f.stored()) + "::text"
		}
		return `SELECT f.policy, f.algorithm, f.key, f.denials, f.shadowed, f.denials - f.blocked - f.above_burst - f.overloaded, f.blocked, f.above_burst, f.overloaded, f.units,
       to_timestamp(f.first_us::float8 / 1000000::float8), to_timestamp(f.last_us::float8 / 1000000::float8), to_timestamp(NULLIF(f.retry_us, 0::bigint)::float8 / 1000000::float8)
FROM ` + m.each("pglimit_denial", "d", f.Policy, p, func(of string) string {
			return `SELECT d.policy, d.algorithm, d.key, sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.blocked)::bigint AS blocked,
           sum(d.above_burst)::bigint AS above_burst, sum(d.overloaded)::bigint AS overloaded, sum(d.units) AS units,
           min(d.slot_us) AS first_us, max(d.last_denied_at_us) AS last_us, max(d.retry_at_us) AS retry_us
    FROM pglimit_denial AS d WHERE ` + of + ` AND ` + m.on("d", p) + only + `
    GROUP BY d.policy, d.key, d.algorithm ORDER BY d.key, d.algorithm LIMIT ` + p.add(int64(limit)) + `::bigint`
		}) + `
ORDER BY f.policy, f.key, f.algorithm LIMIT ` + p.add(int64(limit)) + `::bigint`
	}
}

// Keys selects keys: the one that is Text, or those that begin with Text if Prefix is set.
type Keys struct {
	Text   string
	Prefix bool
	List   []string // these keys instead, if not nil
	Raw    string   // Text as callers have it, for overrides with a match; Text if that is not known
}

// maxKey is the longest key in bytes, as the limiter has it.
const maxKey = 1024

// check returns an error for a text that no key has, or that all keys begin with.
func (k Keys) check() error {
	name := "key"
	if k.Prefix {
		name = "prefix"
	}
	switch {
	case k.List != nil:
	case k.Text == "":
		return store.Invalid(name, `""`, "is empty")
	case len(k.Text) > maxKey:
		return store.Invalid(name, store.Quote(k.Text), fmt.Sprintf("is longer than %d bytes, and so than all keys", maxKey))
	case strings.IndexByte(k.Text, 0) >= 0 || !utf8.ValidString(k.Text):
		return store.Invalid(name, store.Quote(k.Text), "has a NUL byte or is not valid UTF-8, as no key")
	}
	return nil
}

// after returns the least text above all texts that begin with prefix, in the order of
// bytes, which in UTF-8 is the order of characters. It returns "" if there is none.
func after(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch {
		case last == 0xD7FF:
			return prefix + "\uE000" // what lies between is not text
		case last < utf8.MaxRune:
			return prefix + string(last+1)
		}
	}
	return ""
}

// matcher renders the condition that a key is among Keys, as a range of an index.
type matcher struct {
	keys  Keys
	upper string // exclusive; "": none
	utf8  bool

	distributed bool // as reader's
}

// newMatcher reads the database's encoding: after is wrong for others.
func newMatcher(ctx context.Context, tx reader, k Keys) (m matcher, err error) {
	m.keys, m.distributed = k, tx.distributed
	if !k.Prefix {
		return m, nil
	}
	var encoding string
	if err = tx.QueryRow(ctx, `SELECT current_setting('server_encoding'::text)`).Scan(&encoding); err != nil {
		return m, err
	}
	if m.utf8 = encoding == "UTF8"; m.utf8 {
		m.upper = after(k.Text)
	}
	return m, nil
}

// on returns the condition for the column key of a table's alias.
func (m matcher) on(alias string, p *params) string {
	if m.keys.List != nil {
		return alias + ".key = ANY (" + p.add(m.keys.List) + "::text[])"
	}
	if !m.keys.Prefix {
		return alias + ".key = " + p.add(m.keys.Text) + "::text"
	}
	from := p.add(m.keys.Text) + "::text"
	condition := alias + ".key >= " + from
	switch {
	case m.upper != "":
		condition += " AND " + alias + ".key < " + p.add(m.upper) + "::text"
	case !m.utf8:
		condition += " AND starts_with(" + alias + ".key, " + from + ")"
	}
	return condition
}

// policiesOf returns the FROM item p with the policies of a table, as the filter has them. It
// reads one row for each policy: a loose scan of the primary key, which begins with the
// policy.
func policiesOf(table, policy string, p *params) string {
	if policy != "" {
		return "(SELECT " + p.add(policy) + `::text COLLATE "C" AS policy) AS p`
	}
	return strings.ReplaceAll(`(WITH RECURSIVE one AS (
    (SELECT t.policy FROM TABLE AS t ORDER BY t.policy LIMIT 1)
    UNION ALL
    SELECT (SELECT t.policy FROM TABLE AS t WHERE t.policy > o.policy ORDER BY t.policy LIMIT 1) FROM one AS o WHERE o.policy IS NOT NULL
) SELECT o.policy FROM one AS o WHERE o.policy IS NOT NULL) AS p`, "TABLE", table)
}

// each returns the FROM item f: the rows of a SELECT from table, which takes the condition on
// the policy, for each policy of the filter. On distributed tables one SELECT, which has the
// limit of one policy, reads all.
func (m matcher) each(table, alias, policy string, p *params, rows func(of string) string) string {
	switch {
	case !m.distributed:
		return policiesOf(table, policy, p) + ", LATERAL (\n    " + rows(alias+".policy = p.policy") + ") AS f"
	case policy == "":
		return "(" + rows("true") + ") AS f"
	}
	return "(" + rows(alias+".policy = "+p.add(policy)+"::text") + ") AS f"
}

// rows returns a SELECT of the rows of a limit table that match: algorithm, policy and key,
// in order, up to limit of each policy.
func rowsOf(f Filter, m matcher, limit int, p *params) string {
	var all []string
	for _, a := range f.algorithms() {
		all = append(all, `SELECT '`+string(a)+`'::text COLLATE "C" AS algorithm, f.policy, f.key
FROM `+m.each(table(a), "t", f.Policy, p, func(of string) string {
			return `SELECT t.policy, t.key FROM ` + table(a) + ` AS t WHERE ` + of + ` AND ` + m.on("t", p) + `
    GROUP BY t.policy, t.key ORDER BY t.key LIMIT ` + p.add(int64(limit)) + `::bigint`
		}))
	}
	return strings.Join(all, "\nUNION ALL\n")
}
