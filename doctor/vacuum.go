package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
)

// Thresholds of the checks of tables.
const (
	leastUpdates  = 10_000    // below, a HOT share says little
	leastHOT      = 0.90      // of updates
	leastDead     = 10_000    // dead rows below this are no bloat
	mostDead      = 0.40      // dead rows' share of all rows
	leastSize     = 256 << 20 // bytes below this are no bloat
	mostRowBytes  = 4096      // bytes of a table per row; a log's row may have any size
	vacuumOverdue = time.Hour
)

// statistics are those of one table.
type statistics struct {
	Oid     uint32
	Live    int64
	Dead    int64
	Updates int64
	HOT     int64
	Bytes   int64
	Vacuum  *time.Time // the last one
	Now     time.Time
	Drops   []string // of indexes that updates change
}

// otherIndexes are tables whose updates change indexes of the migrations.
var otherIndexes = []string{"pglimit_reservation", "pglimit_override", "pglimit_policy_history"}

const statisticsOf = `SELECT s.relid, s.n_live_tup, s.n_dead_tup, s.n_tup_upd, s.n_tup_hot_upd, pg_relation_size(s.relid),
	GREATEST(s.last_autovacuum, s.last_vacuum), clock_timestamp(),
	ARRAY(SELECT CASE WHEN k.oid IS NULL THEN 'DROP INDEX ' || quote_ident(n.nspname::text) || '.' || quote_ident(c.relname::text)
			ELSE 'ALTER TABLE ' || quote_ident(n.nspname::text) || '.' || quote_ident(s.relname::text) || ' DROP CONSTRAINT ' || quote_ident(k.conname::text) END
		FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
		LEFT JOIN pg_constraint AS k ON k.conindid = c.oid AND k.conrelid = s.relid
		WHERE i.indrelid = s.relid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL OR NOT i.indkey::int2[] <@
			(SELECT array_agg(a.attnum) FROM pg_attribute AS a JOIN pg_index AS p ON p.indrelid = a.attrelid AND p.indisprimary
			WHERE a.attrelid = s.relid AND (a.attnum = ANY (p.indkey::int2[]) OR a.attname = 'expires_at_us'))) ORDER BY 1)
	FROM pg_stat_user_tables AS s WHERE s.relid = ANY ($1::oid[]) ORDER BY s.relname`

func (p *patient) statistics(ctx context.Context) ([]statistics, error) {
	return rows[statistics](ctx, p, statisticsOf, p.oids())
}

func checkHOT(ctx context.Context, p *patient) (Check, error) {
	all, err := p.statistics(ctx)
	if err != nil {
		return Check{}, err
	}
	c := Check{Message: "no index or setting of the tables ends HOT updates"}
	for _, s := range all {
		c = worse(c, judgeHOT(s, p.named(s.Oid)))
	}
	if c.Verdict != OK {
		c.Message = fmt.Sprintf("under %.0f %% of the updates of %d tables are HOT: the others write to every index", 100*leastHOT, len(c.Details))
	}
	return c, nil
}

// judgeHOT judges what ends HOT updates if many were none. Old transactions, which check
// snapshots finds, do too, and the counters also have the updates of before a fix.
func judgeHOT(s statistics, t table) Check {
	share := float64(s.HOT) / max(1, float64(s.Updates))
	if s.Updates < leastUpdates || share >= leastHOT || slices.Contains(otherIndexes, t.name) {
		return Check{}
	}
	fixes := s.Drops
	if !slices.ContainsFunc(t.options, func(o string) bool { return strings.HasPrefix(o, "fillfactor=") }) {
		fixes = append(fixes, fmt.Sprintf("ALTER TABLE %s SET (fillfactor = 70)", t.quoted))
	}
	if len(fixes) == 0 {
		return Check{}
	}
	return Check{Verdict: Warn, Details: []string{fmt.Sprintf("%s: %.1f %% of %d updates are HOT", t.quoted, 100*share, s.Updates)}, Fix: strings.Join(fixes, "; ")}
}

func checkBloat(ctx context.Context, p *patient) (Check, error) {
	all, err := p.statistics(ctx)
	if err != nil {
		return Check{}, err
	}
	var c Check
	var bytes, dead int64
	for _, s := range all {
		bytes, dead = bytes+s.Bytes, dead+s.Dead
		c = worse(c, judgeBloat(s, p.named(s.Oid)))
	}
	c.Message = fmt.Sprintf("the tables take %d MB, with %d dead rows", bytes>>20, dead)
	if c.Verdict != OK {
		c.Message += fmt.Sprintf("; bloated: %s", printable.Count(len(c.Details), "table"))
	}
	return c, nil
}

// judgeBloat judges a table's dead rows and its size.
func judgeBloat(s statistics, t table) (c Check) {
	share := float64(s.Dead) / max(1, float64(s.Live+s.Dead))
	switch {
	case s.Dead >= leastDead && share >= mostDead:
		c.Verdict = Warn
		c.Details = []string{fmt.Sprintf("%s: %.0f %% of %d rows are dead", t.quoted, 100*share, s.Live+s.Dead)}
		c.Fix = "VACUUM " + t.quoted
	case s.Bytes >= leastSize && s.Bytes/max(1, s.Live) > mostRowBytes && t.name != "pglimit_sliding_window_log":
		c.Verdict = Warn
		c.Details = []string{fmt.Sprintf("%s: %d MB for %d rows; the space is used again", t.quoted, s.Bytes>>20, s.Live)}
		c.Fix, c.NextStep = "VACUUM FULL "+t.quoted, "run it at a quiet time: it locks the table"
	}
	return c
}

func checkAutovacuum(ctx context.Context, p *patient) (Check, error) {
	all, err := p.statistics(ctx)
	if err != nil {
		return Check{}, err
	}
	var c Check
	for _, name := range []string{"track_counts", "autovacuum"} {
		if p.settings[name].value == "off" {
			one := p.system(name, "on")
			one.Verdict, one.Details = Fail, []string{name + " is off"}
			c, c.FixAs = worse(c, one), p.fixer(admin)
		}
	}
	for _, s := range all {
		c = worse(c, judgeAutovacuum(s, p.named(s.Oid)))
	}
	c.Message = "autovacuum is on for all tables"
	if c.Verdict != OK {
		c.Message = "dead rows stay: " + c.Details[0]
	}
	return c, nil
}

// judgeAutovacuum judges whether a table is vacuumed.
func judgeAutovacuum(s statistics, t table) Check {
	if slices.Contains(t.options, "autovacuum_enabled=false") || slices.Contains(t.options, "autovacuum_enabled=off") {
		return Check{Verdict: Fail, Details: []string{"autovacuum is off for " + t.quoted}, Fix: fmt.Sprintf("ALTER TABLE %s RESET (autovacuum_enabled)", t.quoted)}
	}
	overdue := s.Dead > 50+s.Live && s.Dead >= leastDead
	if overdue && (s.Vacuum == nil || s.Now.Sub(*s.Vacuum) > vacuumOverdue) {
		last := "never"
		if s.Vacuum != nil {
			last = duration.Format(s.Now.Sub(*s.Vacuum).Round(time.Minute)) + " ago"
		}
		return Check{Verdict: Warn, Details: []string{fmt.Sprintf("%s has %d dead rows and was vacuumed %s", t.quoted, s.Dead, last)},
			Fix: "VACUUM " + t.quoted, NextStep: "see check snapshots if they stay"}
	}
	return Check{}
}
