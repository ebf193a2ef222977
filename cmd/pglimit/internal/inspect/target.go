package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store"
)

// Target is a row to change. In a Forget, Algorithm is "" for what a key has under a policy
// whatever the algorithm: its override.
type Target struct {
	Algorithm   algorithm.Name
	Policy, Key string
}

// compare orders targets as the library locks rows: by algorithm, policy and key. Targets
// without an algorithm come last.
func (t Target) compare(u Target) int {
	return cmp.Or(cmp.Compare(index(t.Algorithm), index(u.Algorithm)), cmp.Compare(t.Policy, u.Policy), cmp.Compare(t.Key, u.Key))
}

// index is the place of a in the order of locks; "" is the last.
func index(a algorithm.Name) int {
	if a == "" {
		return len(algorithm.AllTables())
	}
	return slices.Index(algorithm.AllTables(), a.Table())
}

// ErrTooMany is returned by Targets if more rows match than most. It is an ErrInvalid.
var ErrTooMany = fmt.Errorf("%w: too many rows match", store.ErrInvalid)

// Targets lists the rows of the keys under any policy and algorithm of the filter, in lock
// order. traces lists what Forget removes: also keys that have only reservations, denials
// or an override. It returns ErrTooMany if there are more than most. A row that is made
// later is not on the list.
func (i *Inspector) Targets(ctx context.Context, k Keys, f Filter, most int, traces bool) (targets []Target, err error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	if most < 1 || most > 10_000_000 {
		return nil, store.Invalid("max", fmt.Sprint(most), "must be from 1 to 10000000")
	}
	err = i.read(ctx, func(tx reader) error {
		m, err := newMatcher(ctx, tx, k)
		if err != nil {
			return err
		}
		var p params
		sql := rowsOf(f, m, most+1, &p)
		if traces {
			sql += "\nUNION\n" + tracesOf(f, m, most+1, &p)
		}
		targets, err = collect[Target](ctx, tx, sql+"\nLIMIT "+p.add(int64(most)+1)+"::bigint", p)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(targets) > most {
		return nil, fmt.Errorf("%w: %s has more than %s", ErrTooMany, store.Quote(k.Text), printable.Count(most, "row"))
	}
	slices.SortFunc(targets, Target.compare)
	return targets, nil
}

// keptOf returns a SELECT of the keys of a table with an algorithm column, up to limit of each
// policy. only is a further condition on its alias t.
func keptOf(table string, f Filter, m matcher, limit int, p *params, only string) string {
	if f.Algorithm != "" {
		only += " AND t.algorithm = " + p.add(f.stored()) + "::text"
	}
	return `SELECT f.algorithm, f.policy, f.key FROM ` + m.each(table, "t", f.Policy, p, func(of string) string {
		return `SELECT t.algorithm, t.policy, t.key FROM ` + table + ` AS t WHERE ` + of + ` AND ` + m.on("t", p) + only + `
    GROUP BY t.policy, t.key, t.algorithm ORDER BY t.key, t.algorithm LIMIT ` + p.add(int64(limit)) + `::bigint`
	})
}

// tracesOf returns a SELECT of what a key leaves outside the limit tables.
func tracesOf(f Filter, m matcher, limit int, p *params) string {
	sql := keptOf("pglimit_reservation", f, m, limit, p, "") + "\nUNION\n" + keptOf("pglimit_denial", f, m, limit, p, "") + "\nUNION\n" + keptOf("pglimit_event", f, m, limit, p, "") +
		"\nUNION\n" + keptOf("pglimit_usage", f, m, limit, p, "")
	if f.Algorithm != "" {
		return sql
	}
	sql += "\nUNION\n" + `SELECT ''::text COLLATE "C", f.policy, f.key FROM ` + m.each("pglimit_override", "o", f.Policy, p, func(of string) string {
		return `SELECT o.policy, o.key FROM pglimit_override AS o WHERE ` + of + ` AND ` + m.on("o", p) + ` LIMIT ` + p.add(int64(limit)) + `::bigint`
	})
	only := ""
	if f.Policy != "" {
		only = " AND h.name = " + p.add(f.Policy) + "::text"
	}
	return sql + "\nUNION\n" + `SELECT ''::text COLLATE "C", h.name, h.key FROM pglimit_policy_history AS h WHERE ` + m.on("h", p) + only
}

// lockRows locks the rows of a bundle in the order of their keys, and returns the bundle of
// these, and how many of them are blocked now. What comes next must act on no other key: a
// row that was made meanwhile would be locked out of order.
func lockRows(ctx context.Context, tx pgx.Tx, g bundle) (locked bundle, blocked int64, err error) {
	locked = bundle{algorithm: g.algorithm, policy: g.policy}
	until, order := "t.blocked_until_us", "t.policy, t.key"
	if g.algorithm == algorithm.Attempts { // of which a key has several rows
		until, order = "GREATEST(t.blocked_until_us, t.waits_until_us)", order+", t.source"
	}
	err = tx.QueryRow(ctx, `WITH found AS MATERIALIZED (
    SELECT t.key, t.updated_at_us, `+until+` AS blocked_until_us FROM `+table(g.algorithm)+` AS t
    WHERE t.policy = $1::text AND t.key = ANY ($2::text[])
    ORDER BY `+order+`
    FOR UPDATE OF t
)
SELECT coalesce(pg_catalog.array_agg(DISTINCT f.key), '{}'), pg_catalog.count(DISTINCT f.key) FILTER (WHERE f.blocked_until_us > GREATEST(f.updated_at_us, c.us))
FROM found AS f, (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c`,
		g.policy, g.keys).Scan(&locked.keys, &blocked)
	return locked, blocked, err
}

// Block denies all requests of the targets for d, or until an earlier block ends if that is
// later, as Limiter.Block does; a target without a row is not blocked. d is a positive
// number of whole microseconds up to a hundred years. Rows are those that are blocked.
func (i *Inspector) Block(ctx context.Context, targets []Target, d time.Duration, o Options) ([]Count, error) {
	if d <= 0 || d%time.Microsecond != 0 || d.Microseconds() > algorithm.MaxLifetime {
		return nil, store.Invalid("duration", duration.Format(d), "must be positive whole microseconds, at most a hundred years")
	}
	return i.change(ctx, targets, o, func(ctx context.Context, tx pgx.Tx, g bundle) (c Count, err error) {
		g, _, err = lockRows(ctx, tx, g)
		if err != nil {
			return c, err
		}
		c.Rows = int64(len(g.keys))
		if g.algorithm == algorithm.Attempts {
			for _, key := range g.keys {
				if err := queries.AttemptBlock(ctx, tx, db.AttemptBlockParams{Policy: g.policy, Key: key, ForUs: d.Microseconds()}); err != nil {
					return c, err
				}
			}
			return c, nil
		}
		begun := ", decided_at_us = 0"
		if g.algorithm == algorithm.Concurrency { // no denial begins a block
			begun = ""
		}
		_, err = tx.Exec(ctx, `UPDATE `+table(g.algorithm)+` AS t
SET blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, c.us) + $3::bigint)`+begun+`
FROM (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c
WHERE t.policy = $1::text AND t.key = ANY ($2::text[])`, g.policy, g.keys, d.Microseconds())
		return c, err
	})
}

// Unblock lifts the targets' blocks and keeps their units, as Limiter.Unblock does. Rows are
// those that were blocked.
func (i *Inspector) Unblock(ctx context.Context, targets []Target, o Options) ([]Count, error) {
	return i.change(ctx, targets, o, func(ctx context.Context, tx pgx.Tx, g bundle) (c Count, err error) {
		if g, c.Rows, err = lockRows(ctx, tx, g); err != nil {
			return c, err
		}
		if g.algorithm == algorithm.Attempts {
			for _, key := range g.keys {
				if err := queries.AttemptUnblock(ctx, tx, db.AttemptUnblockParams{Policy: g.policy, Key: key}); err != nil {
					return c, err
				}
			}
			return c, nil
		}
		_, err = tx.Exec(ctx, `UPDATE `+table(g.algorithm)+` AS t SET blocked_until_us = 0
WHERE t.policy = $1::text AND t.key = ANY ($2::text[]) AND t.blocked_until_us > 0`, g.policy, g.keys)
		return c, err
	})
}

// deleteRows deletes the rows of a bundle, which it locks in the order of their keys.
func deleteRows(ctx context.Context, tx pgx.Tx, g bundle) (rows int64, err error) {
	g, _, err = lockRows(ctx, tx, g)
	if err != nil || len(g.keys) == 0 {
		return 0, err
	}
	tag, err := tx.Exec(ctx, `DELETE FROM `+table(g.algorithm)+` AS t WHERE t.policy = $1::text AND t.key = ANY ($2::text[])`, g.policy, g.keys)
	return tag.RowsAffected(), err
}

// Reset deletes what the targets have used, and their blocks, as Limiter.Reset does. Open
// reservations stay, but their units count no more.
func (i *Inspector) Reset(ctx context.Context, targets []Target, o Options) ([]Count, error) {
	return i.change(ctx, targets, o, func(ctx context.Context, tx pgx.Tx, g bundle) (c Count, err error) {
		p := db.ResetReservationsParams{Policy: g.policy, Keys: g.keys, Algorithm: string(g.algorithm)}
		if c.Reservations, err = queries.ResetReservations(ctx, tx, p); err != nil {
			return c, err
		}
		switch g.algorithm {
		case algorithm.Concurrency: // whose rows stay, with their fences
			return resetEach(ctx, tx, g, func(key string) error {
				return queries.SlotReset(ctx, tx, db.SlotResetParams{Policy: g.policy, Key: key})
			})
		case algorithm.Balance: // of which those with a ledger stay
			n, err := resetEach(ctx, tx, g, func(key string) error {
				_, err := queries.BalanceReset(ctx, tx, db.BalanceResetParams{Policy: g.policy, Key: key})
				return err
			})
			n.Reservations = c.Reservations
			return n, err
		}
		if c.Rows, err = deleteRows(ctx, tx, g); err != nil || c.Rows == 0 {
			return c, err
		}
		made, err := queries.ResetReservationsMade(ctx, tx, db.ResetReservationsMadeParams(p))
		c.Reservations += made
		return c, err
	})
}

// resetEach locks the rows of a bundle and resets each.
func resetEach(ctx context.Context, tx pgx.Tx, g bundle, reset func(key string) error) (c Count, err error) {
	if g, _, err = lockRows(ctx, tx, g); err != nil {
		return c, err
	}
	for _, key := range g.keys {
		if err := reset(key); err != nil {
			return c, err
		}
	}
	c.Rows = int64(len(g.keys))
	return c, nil
}

// Forget deletes every trace of the targets: rows, reservations with their idempotency
// keys, denials, marks, sums of usage, entries of ledgers, and for targets without an algorithm overrides and their history. List the
// targets with traces. A program that requests for a key meanwhile makes it a new row. One
// that keeps denials writes those of before at the end of its interval: forget again then.
func (i *Inspector) Forget(ctx context.Context, targets []Target, o Options) ([]Count, error) {
	return i.change(ctx, targets, o, func(ctx context.Context, tx pgx.Tx, g bundle) (c Count, err error) {
		if g.algorithm == "" {
			if c.Overrides, err = queries.ForgetOverrides(ctx, tx, db.ForgetOverridesParams{Policy: g.policy, Keys: g.keys}); err != nil {
				return c, err
			}
			c.History, err = queries.ForgetHistory(ctx, tx, db.ForgetHistoryParams{Policy: g.policy, Keys: g.keys})
			return c, err
		}
		p := db.ForgetReservationsParams{Policy: g.policy, Keys: g.keys, Algorithm: string(g.algorithm)}
		if c.Reservations, err = queries.ForgetReservations(ctx, tx, p); err != nil {
			return c, err
		}
		if c.Rows, err = deleteRows(ctx, tx, g); err != nil {
			return c, err
		}
		made, err := queries.ForgetReservationsMade(ctx, tx, db.ForgetReservationsMadeParams(p))
		c.Reservations += made
		if err == nil {
			c.Denials, err = queries.ForgetDenials(ctx, tx, db.ForgetDenialsParams(p))
		}
		if err == nil {
			c.Events, err = queries.ForgetEvents(ctx, tx, db.ForgetEventsParams(p))
		}
		if err == nil {
			c.Sums, err = queries.ForgetUsage(ctx, tx, db.ForgetUsageParams(p))
		}
		if err == nil && g.algorithm == algorithm.Balance {
			c.Entries, err = queries.ForgetLedger(ctx, tx, db.ForgetLedgerParams{Policy: g.policy, Keys: g.keys})
		}
		return c, err
	})
}
