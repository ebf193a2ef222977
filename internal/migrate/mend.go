package migrate

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pglimit/pglimit/internal/strangers"
)

// prepare makes what stands equal to what the migrations on record make, and to the record,
// before others up to version to run. It only looks, without a lock, if all is so.
func (s *Set) prepare(ctx context.Context, db *sql.DB, to int64) (steps []Step, err error) {
	steps, held, err := s.mend(ctx, db, to, false)
	if err != nil || held == "" {
		return nil, err
	}
	err = Await(ctx, "pglimit: migrate", func() (held string, err error) {
		steps, held, err = s.mend(ctx, db, to, true)
		return held, err
	})
	return steps, err
}

// mend does what look finds, in one transaction with the lock of migrations. A transaction
// that has locked a table is waited for in short steps, as the lock is. Without apply mend
// only looks, and held is not empty if there is something to do.
func (s *Set) mend(ctx context.Context, db *sql.DB, to int64, apply bool) (steps []Step, held string, err error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return nil, "", s.explain(err)
	}
	defer tx.Rollback()
	if apply {
		if err := tx.QueryRowContext(ctx, fmt.Sprintf(tryLock, "pg_try_advisory_xact_lock"), lockID).Scan(&held); err != nil || held != "" {
			return nil, held, err
		}
	}
	l, err := s.look(ctx, tx, to)
	if err != nil || l.done() || !apply {
		return nil, strings.Repeat("to do", len(l.steps)+len(l.lost)), err
	}
	if l.record == "" {
		i := slices.IndexFunc(parts(s.made), func(p Part) bool { return slices.ContainsFunc(l.stands, p.of) })
		return nil, "", fmt.Errorf("pglimit: migrate: %s already exists: %s", parts(s.made)[i].Name, s.elsewhere())
	}
	if _, err := tx.ExecContext(ctx, `SELECT pg_catalog.set_config('lock_timeout'::text, '250ms'::text, true)`); err != nil {
		return nil, "", s.explain(err)
	}
	for _, statement := range s.again(l) {
		if _, err := tx.ExecContext(ctx, statement); sqlState(err) == "55P03" {
			return nil, "a transaction that has locked a table", nil
		} else if err != nil {
			return nil, "", s.unmended(l.steps, statement, err)
		}
	}
	if len(l.lost) > 0 { // goose undoes in the order of the record's ids
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`WITH was AS (DELETE FROM %[1]s RETURNING version_id, tstamp, is_applied)
			INSERT INTO %[1]s (version_id, is_applied, tstamp) SELECT v.version_id, true, coalesce(max(v.tstamp), pg_catalog.now()::timestamp)
			FROM (SELECT w.version_id, w.tstamp FROM was AS w WHERE w.is_applied UNION ALL SELECT l.v, NULL::timestamp FROM pg_catalog.unnest('{%[2]s}'::bigint[]) AS l (v)) AS v
			GROUP BY v.version_id ORDER BY v.version_id`, l.record, strings.Join(l.lost, ",")))
		if err != nil {
			return nil, "", s.explain(err)
		}
	}
	after, err := s.look(ctx, tx, to)
	if err == nil && !after.done() {
		err = s.unmended(after.steps, "", errors.New("it stays so"))
	}
	if err == nil {
		err = s.explain(tx.Commit())
	}
	return l.steps, "", err
}

// look is what a database has of a set, by its record and by what stands.
type look struct {
	record string // the record's table, as SQL; empty: there is none
	stands []Part
	ran    []file   // of migrations on record, or that only stand
	steps  []Step   // of those of which something is wrong
	lost   []string // versions that stand and are not on record, and 0, with which goose begins
}

func (l look) done() bool { return len(l.steps)+len(l.lost) == 0 }

// look finds what to mend of the migrations on record, and of others up to version to. If a
// later release has migrated, it is nothing: that release changed what stands. It returns
// strangers.ErrExposed if it is that of functions, a migration is to run and other roles may create objects.
func (s *Set) look(ctx context.Context, tx *sql.Tx, to int64) (l look, err error) {
	applied, record, err := s.appliedAt(ctx, tx, first)
	if err == nil {
		l.stands, err = standing(func(statement string, args ...any) (rows, error) { return tx.QueryContext(ctx, statement, args...) }, first)
	}
	if err != nil || len(s.later(applied)) > 0 {
		return l, s.explain(err)
	}
	pending := false
	l.record = record
	if record == "" && s.functions {
		l.stands = nil // their first migration finds out whose they are
	}
	for i, p := range s.present(l.stands) {
		wrong := p.Wrong()
		if _, ok := applied[p.Version]; !ok && len(p.Present) > 0 && p.Version <= to {
			l.lost, wrong = append(l.lost, fmt.Sprint(p.Version)), append(wrong, "its record missing")
		} else if !ok {
			pending = pending || p.Version <= to
			continue
		}
		l.ran = append(l.ran, s.list()[i])
		if len(wrong) > 0 {
			l.steps = append(l.steps, Step{Version: p.Version, Name: p.Name, Again: wrong})
		}
	}
	if _, zero := applied[0]; !zero && record != "" {
		l.lost = append(l.lost, "0")
	}
	if !s.functions || l.done() && !pending {
		return l, nil
	}
	return l, strangers.Refuse(ctx, tx)
}

// heads finds the statements of a migration of tables, and what they make or change.
var heads = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:(CREATE|DROP) (?:OR REPLACE |UNIQUE )?(TABLE|VIEW|FUNCTION|INDEX|TRIGGER|TYPE) |ALTER TABLE |INSERT INTO |UPDATE |DELETE FROM |DO )([a-z0-9_]*)(?: +SET \((fillfactor)|(?: [A-Z ]+)? ON ([a-z_]+)(?: FOR| REFERENCING|;))?`)
})

// constraint finds the name of a constraint, as SQL.
var constraint = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^CONSTRAINT ("(?:[^"]|"")*"|\S+)`)
})

// again returns the statements that make again what is wrong: those of the migrations' files.
// What is missing is made and changed as it was the first time; the functions are made as a
// whole.
func (s *Set) again(l look) (all []string) {
	wrong := slices.DeleteFunc(parts(s.made), func(p Part) bool { return slices.ContainsFunc(l.stands, p.is) })
	for _, p := range wrong {
		if p.Kind != "TABLE" || !slices.ContainsFunc(l.stands, p.of) || !slices.ContainsFunc(l.ran, func(f file) bool { return f.version == p.version }) {
			continue
		}
		change := " ADD " + p.Text
		if c := constraint().FindStringSubmatch(p.Text); c != nil {
			change = " DROP CONSTRAINT IF EXISTS " + c[1] + "," + change
		}
		all = append(all, "ALTER TABLE "+p.Name+change)
	}
	for _, f := range l.ran {
		up := s.plain(f, false)
		if s.functions {
			all = append(all, up)
			continue
		}
		found := append(heads().FindAllStringIndex(up, -1), []int{len(up)})
		for i, at := range found[:len(found)-1] {
			statement := up[at[0]:found[i+1][0]]
			verb, o := target(statement)
			changed := slices.ContainsFunc(wrong, func(p Part) bool { return p.of(o) && p.version == f.version })
			switch there := slices.ContainsFunc(l.stands, o.of); {
			case !there && verb == "DROP": // what is made later is another one
				all = slices.DeleteFunc(all, func(s string) bool { _, made := target(s); return made.of(o) })
			case !there && slices.ContainsFunc(wrong, o.of):
				all = append(all, statement)
			case !there || !changed || verb != "CREATE" || o.Kind == "TABLE":
			case o.Kind == "INDEX" || o.Kind == "TRIGGER":
				all = append(all, "DROP "+o.Kind+" "+o.Name, statement)
			default:
				all = append(all, "CREATE OR REPLACE"+strings.TrimPrefix(strings.TrimPrefix(statement, "CREATE"), " OR REPLACE"))
			}
		}
	}
	isType := func(s string) bool { return strings.HasPrefix(s, "CREATE TYPE ") } // a table may have a column of it
	types := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !isType(s) })
	return append(types, slices.DeleteFunc(all, isType)...)
}

// target returns what a statement makes or changes, and its verb: CREATE, DROP or "".
func target(statement string) (verb string, o Part) {
	m := heads().FindStringSubmatch(statement)
	if m == nil {
		return "", Part{}
	}
	o = Part{Kind: cmp.Or(m[2], "TABLE"), Name: m[3]}
	if m[4] != "" {
		o.Kind, o.Name = "OPTION", m[4]+" of "+m[3]
	} else if m[5] != "" {
		o.Name += " ON " + m[5]
	}
	return m[1], o
}

// unmended is the error if what is wrong cannot be made again, because of a statement.
func (s *Set) unmended(steps []Step, statement string, err error) error {
	var wrong []string
	for _, step := range steps {
		wrong = append(wrong, step.Again...)
	}
	err = fmt.Errorf("nothing was changed: make again what is wrong (%s): %w", strings.Join(wrong, "; "), err)
	switch {
	case slices.Contains([]string{"42501", "25006", "23514", "23505"}, sqlState(err)): // explain has the next step
	case s.functions:
		err = fmt.Errorf("%w: run `pglimit migrate down --to 0 --functions`, `pglimit migrate up --functions` and `pglimit migrate grants`", err)
	case statement != "":
		_, o := target(statement)
		err = fmt.Errorf("%w: drop it with what it holds, and run this again: DROP %s %s CASCADE", err, o.Kind, o.Name)
	}
	return s.explain(err)
}
