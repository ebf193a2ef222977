package inspect

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Key has the row of a key, if there is one, and its denials, as JSON too. A pointer
// is nil where there is no value: all from Level to EmptyAt in a Key without a row. An
// AllowAll that is denied writes no row, and the janitor deletes rows that are empty.
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
	Reservations int64          `json:"reservations"` // or attempts under way, or slots
	// KnownSources is the number of places from which an attempt has succeeded.
	KnownSources int64 `json:"known_sources,omitempty"`
	// Of the last 24 hours.
	Denials      int64      `json:"denials"`
	LastDeniedAt *time.Time `json:"last_denied_at"`
	// RecentDenials are those of a Window. Shadowed are those of them that a shadow policy
	// let pass.
	RecentDenials  int64 `json:"recent_denials"`
	RecentShadowed int64 `json:"recent_shadowed"`
	// RetryAt is when all recently denied requests fit that ever can, as of their denials.
	RetryAt *time.Time `json:"retry_at"`
	// LastRequestAt is UpdatedAt or LastDeniedAt, whichever is later: some denials write no
	// row.
	LastRequestAt *time.Time `json:"last_request_at"`
	// Shadow reports whether the policy is a shadow for the key now. Blocked reports whether
	// the key is blocked: until BlockedUntil, by BlockedBy, or by both.
	Shadow  bool `json:"shadow"`
	Blocked bool `json:"blocked" db:"-"`
	// BlockedBy is the override that blocks the key; nil for none. Of a hash one with a match is
	// not known, unless the question has the key itself.
	BlockedBy *Override `json:"blocked_by"`

	DenialsPerMinute float64 `json:"denials_per_minute" db:"-"` // of RecentDenials
	Status           Status  `json:"status" db:"-"`

	unlimited bool // by an override
}

// Status is the state of a key in one word.
type Status string

// The statuses. The first that applies is a Key's.
const (
	Shadowed Status = "shadow" // its policy is a shadow, which denies nothing
	Blocked  Status = "blocked"
	Limited  Status = "limited" // a request of cost 1 is denied now, or one was within a minute and the key is not empty since
	OK       Status = "ok"
)

// limited reports whether the status is Limited, unless an earlier one applies.
func (k *Key) limited(now time.Time) bool {
	if k.Share != nil && (*k.Share >= 1 || *k.Burst >= 1 && *k.Remaining < 1-min(1e-6, 1e-9**k.Burst)) {
		return true
	}
	if k.Algorithm == algorithm.Balance && k.Remaining != nil && *k.Remaining < 1 {
		return true // without an overdraft it has no share
	}
	empty := k.Level != nil && math.Round(100**k.Level) == 0 // as it is shown
	return !empty && k.LastDeniedAt != nil && now.Sub(*k.LastDeniedAt) < time.Minute
}

// Complete sets the fields that follow from the others. minutes is the time of the recent
// denials.
func (k *Key) Complete(minutes float64, now time.Time) {
	k.DenialsPerMinute = math.Round(100*float64(k.RecentDenials)/minutes) / 100
	switch {
	case k.Shadow || k.RecentDenials > 0 && k.RecentShadowed == k.RecentDenials:
		k.Status = Shadowed
	case k.Blocked:
		k.Status = Blocked
	case !k.unlimited && k.limited(now):
		k.Status = Limited
	default:
		k.Status = OK
	}
}

// Recently is the time for which denials are recent, unless a query says otherwise.
const Recently = 5 * time.Minute

// day is the time that Key.Denials cover.
const day = 24 * time.Hour

// window is a time up to now, by the database's clock in microseconds. Denials are counted
// by the minute: its first minute is whole.
type window struct{ from, since, now int64 }

// last returns the window of the time d.
func last(ctx context.Context, tx pgx.Tx, d time.Duration) (w window, err error) {
	w.now, err = queries.Clock(ctx, tx, nil)
	return w.of(d), err
}

// of returns a window of the time d with the same end.
func (w window) of(d time.Duration) window {
	w.since = w.now - d.Microseconds()
	w.from = w.since - w.since%time.Minute.Microseconds()
	return w
}

// minutes is the length of the window with its whole first minute.
func (w window) minutes() float64 { return float64(w.now-w.from) / 60e6 }

// keysOf reads how keys stand, in their order. Overrides and programs' default policies say
// which are shadows.
func keysOf(distributed bool) string {
	first, row, denials := "", seek, seekDenials
	if distributed {
		first, row, denials = gather, "k ON k.policy = f.policy AND k.key = f.key AND k.algorithm = f.algorithm", "d ON d.policy = f.policy AND d.key = f.key AND d.algorithm = f.algorithm"
	}
	return `WITH ` + first + `defaults AS MATERIALIZED (
    SELECT e.value ->> 'name'::text AS name, bool_or(e.value ->> 'shadow'::text = 'true'::text) AS shadow
    FROM pglimit_program AS g, jsonb_array_elements(CASE WHEN jsonb_typeof(g.defaults) = 'array'::text THEN g.defaults ELSE '[]'::jsonb END) AS e GROUP BY 1
)
SELECT f.policy, f.algorithm, f.key, k.level, k.burst, k.share, k.remaining, k.blocked_until, k.updated_at, k.empty_at, coalesce(k.reservations, 0::bigint), CASE WHEN f.algorithm = 'attempts'::text THEN ` + known + ` ELSE 0::bigint END,
       coalesce(d.denials, 0::bigint), d.last_at, coalesce(d.recent, 0::bigint), coalesce(d.shadowed, 0::bigint), d.retry_at, GREATEST(k.updated_at, d.last_at), coalesce(o.shadow, p.shadow, c.shadow, false),
       CASE WHEN o.blocked OR o.unlimited THEN pg_catalog.to_jsonb(o) END
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS f (policy, algorithm, key, number)
LEFT JOIN ` + row + `
LEFT JOIN pglimit_policy AS p ON p.name = f.policy
LEFT JOIN pglimit_override AS o ON o.policy = f.policy AND o.key = f.key AND o.match = ''::text AND (o.until IS NULL OR o.until > statement_timestamp())
LEFT JOIN defaults AS c ON c.name = f.policy
LEFT JOIN ` + denials + `
ORDER BY f.number`
}

// standing is the view of all keys and, in its columns:
//   - keys of attempts: their level is the failures that count for places that are not known, and
//     their burst is the policy's limit;
//   - slots: their level is the units held, and their burst the limit;
//   - balances: their level is the debt, and their burst the overdraft.
const standing = `(SELECT * FROM pglimit_keys
UNION ALL
SELECT t.policy, 'attempts'::text COLLATE "C", t.key, n.level, t.limit_failures::float8, 1::float8 - n.remaining / NULLIF(t.limit_failures, 0::bigint)::float8, n.remaining,
       CASE WHEN n.until > c.at THEN to_timestamp(n.until::float8 / 1000000::float8) END, to_timestamp(t.updated_at_us::float8 / 1000000::float8),
       to_timestamp(GREATEST(n.until, CASE WHEN n.level > 0::float8 THEN n.counts[3] ELSE 0::bigint END, t.updated_at_us)::float8 / 1000000::float8),
       (pg_catalog.cardinality(pglimit_attempt_left(t.tickets, c.at, ''::text)) / 3)::bigint, NULL::bigint, NULL::timestamptz
FROM pglimit_attempt AS t,
     LATERAL (SELECT GREATEST(t.updated_at_us, ` + clock + `) AS at OFFSET 0) AS c,
     LATERAL (SELECT pglimit_attempt_counts(t.tickets, c.at, false, t.failures, t.waits_until_us, t.forget_at_us,
                  t.limit_failures, t.block_for_us, t.block_growth, t.block_max_us, t.quiet_us) AS counts OFFSET 0) AS m,
     LATERAL (SELECT m.counts, w.until, w.level, CASE WHEN w.until > c.at THEN 0::float8 ELSE GREATEST(1::float8, t.limit_failures::float8 - w.level) END AS remaining
              FROM (SELECT GREATEST(m.counts[2], t.blocked_until_us) AS until, CASE WHEN c.at < m.counts[3] THEN m.counts[1] ELSE 0::bigint END::float8 AS level OFFSET 0) AS w OFFSET 0) AS n
WHERE t.source = ''::text
UNION ALL
SELECT t.policy, 'concurrency'::text COLLATE "C", t.key, n.held, t.limit_units::float8, n.held / NULLIF(t.limit_units, 0::bigint)::float8,
       CASE WHEN t.blocked_until_us > c.at THEN 0::float8 ELSE GREATEST(0::float8, t.limit_units::float8 - n.held) END,
       CASE WHEN t.blocked_until_us > c.at THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END, to_timestamp(t.updated_at_us::float8 / 1000000::float8),
       to_timestamp(GREATEST(t.ends[pg_catalog.cardinality(t.ends)], t.blocked_until_us, t.updated_at_us)::float8 / 1000000::float8),
       (pg_catalog.cardinality(t.ids) - n.gone)::bigint, NULL::bigint, NULL::timestamptz
FROM pglimit_slot AS t,
     LATERAL (SELECT GREATEST(t.updated_at_us, ` + clock + `) AS at OFFSET 0) AS c,
     LATERAL (SELECT m.gone, (t.held - pglimit_slot_units(t.costs[1 : m.gone]))::float8 AS held
              FROM (SELECT pg_catalog.width_bucket(c.at, t.ends) AS gone OFFSET 0) AS m OFFSET 0) AS n
UNION ALL
SELECT b.policy, 'balance'::text COLLATE "C", b.key, b.debt, t.capacity, b.debt / NULLIF(t.capacity, 0::float8), CASE WHEN b.blocked_until IS NOT NULL THEN 0::float8 ELSE GREATEST(0::float8, b.units + t.capacity - b.debt) END,
       b.blocked_until, b.updated_at, NULL::timestamptz,
       (SELECT count(*) FROM pglimit_reservation AS h WHERE h.policy = b.policy AND h.key = b.key AND h.algorithm = 'balance'::text AND h.state = 'open'::text), NULL::bigint, NULL::timestamptz
FROM pglimit_balance_now AS b JOIN pglimit_balance AS t ON t.policy = b.policy AND t.key = b.key)`

// known is the number of places that f's key knows.
const known = `(SELECT count(*) FROM pglimit_attempt AS s WHERE s.policy = f.policy AND s.key = f.key AND s.known_until_us > ` + clock + `)`

const clock = `(date_part('epoch'::text, statement_timestamp()) * 1000000::float8)::bigint`

// seek is a FROM item k: the view's row of f's policy, key and algorithm. OFFSET keeps the
// three as conditions of the view's parts, so that each is a look into an index.
const seek = `LATERAL (SELECT * FROM ` + standing + ` AS k WHERE k.policy = f.policy AND k.key = f.key AND k.algorithm = f.algorithm OFFSET 0) AS k ON true`

// seekDenials is a FROM item d: the sums of f's denials.
const seekDenials = "LATERAL (SELECT " + denialSums + `
         FROM pglimit_denial AS d
         WHERE d.policy = f.policy AND d.key = f.key AND d.algorithm = f.algorithm AND d.slot_us >= $4::bigint) AS d ON true`

// denialSums are the columns of d.
const denialSums = `coalesce(sum(d.denials), 0::numeric)::bigint AS denials, to_timestamp(max(d.last_denied_at_us)::float8 / 1000000::float8) AS last_at,
                coalesce(sum(d.denials) FILTER (WHERE d.slot_us >= $5::bigint), 0::numeric)::bigint AS recent,
                coalesce(sum(d.shadowed) FILTER (WHERE d.slot_us >= $5::bigint), 0::numeric)::bigint AS shadowed,
                to_timestamp(NULLIF(max(d.retry_at_us) FILTER (WHERE d.slot_us >= $5::bigint), 0::bigint)::float8 / 1000000::float8) AS retry_at`

// gather is what a statement on distributed tables reads once for all keys, instead of seek
// and seekDenials.
const gather = `k AS MATERIALIZED (SELECT * FROM ` + standing + ` AS k WHERE k.key = ANY ($3::text[])),
d AS MATERIALIZED (SELECT d.policy, d.key, d.algorithm, ` + denialSums + `
    FROM pglimit_denial AS d WHERE d.key = ANY ($3::text[]) AND d.slot_us >= $4::bigint
    GROUP BY d.policy, d.key, d.algorithm),
`

// stand returns how keys stand, in their order, with the denials of the window.
func stand(ctx context.Context, tx reader, w window, all []Target, r rulings) ([]Key, error) {
	var policies, algorithms, keys []string
	for _, t := range all {
		policies, algorithms, keys = append(policies, t.Policy), append(algorithms, string(t.Algorithm)), append(keys, t.Key)
	}
	found, err := collect[Key](ctx, tx, keysOf(tx.distributed), params{policies, algorithms, keys, min(w.from, w.of(day).since), w.from})
	r.decide(found)
	for n := range found {
		found[n].Complete(w.minutes(), r.at)
	}
	return append([]Key{}, found...), err
}

// Sort sorts keys by an order, and equal ones by policy, algorithm and key.
func Sort(keys []Key, by Order) {
	rank := func(k *Key) float64 {
		switch {
		case by == ByDenials:
			return float64(k.RecentDenials)
		case by == ByRecent && k.LastRequestAt != nil:
			return float64(k.LastRequestAt.UnixMicro())
		case by == ByShare && k.Blocked:
			return math.Inf(1)
		case by == ByShare && k.Share != nil:
			return *k.Share
		}
		return -1
	}
	slices.SortFunc(keys, func(a, b Key) int {
		return cmp.Or(cmp.Compare(rank(&b), rank(&a)), cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Algorithm, b.Algorithm), cmp.Compare(a.Key, b.Key))
	})
}
