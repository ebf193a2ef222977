package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/printable"
)

// settings are the settings that checks read.
var settings = []string{
	"search_path", "client_encoding", "server_encoding", "autovacuum", "track_counts", "default_transaction_isolation", "default_transaction_read_only",
	"fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names",
	"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout",
	"max_connections", "superuser_reserved_connections", "reserved_connections",
}

// The basics. Other roles' operators may be in the search_path, so all types match
// pg_catalog's exactly.
const (
	basicsOf = `SELECT current_user::text, pg_catalog.quote_ident(current_user::text), pg_catalog.quote_ident(pg_catalog.current_database()::text),
		pg_catalog.current_schemas(false)::text[], pg_catalog.current_setting('server_version_num'::text)::int4,
		pg_catalog.pg_is_in_recovery(), pg_catalog.pg_has_role('pg_read_all_stats'::name, 'USAGE'::text),
		(SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user)`
	settingsOf = `SELECT s.name, CASE WHEN s.name = $2::text THEN s.reset_val ELSE s.setting END, s.source FROM pg_catalog.pg_settings AS s WHERE s.name = ANY ($1::text[])`
	homeOf     = `SELECT n.oid, pg_catalog.quote_ident(n.nspname::text), pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(c.relowner)::text),
			c.relowner, pg_catalog.pg_has_role(c.relowner, 'USAGE'::text)
		FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.oid = pg_catalog.to_regclass('pglimit_token_bucket'::text)::oid`
	tablesOf = `SELECT c.relname::text, pg_catalog.quote_ident(n.nspname::text) || '.'::text || pg_catalog.quote_ident(c.relname::text),
			c.oid, c.relpersistence::text, coalesce(c.reloptions, '{}'::text[]), c.reltuples::float8
		FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		WHERE n.oid = $1::oid AND c.relkind IN ('r'::"char", 'p'::"char") AND c.relname ~~ 'pglimit\_%'::text
		ORDER BY c.relname`
)

// readBasics reads what several checks need, with the settings that the pool's connections
// have. own is statement_timeout if that is too short for it, and "".
func (p *patient) readBasics(ctx context.Context, own string) error {
	return p.transaction(ctx, func(tx db.DBTX) error {
		if own != "" {
			if err := p.bound(ctx, tx); err != nil {
				return err
			}
		}
		if err := tx.QueryRow(ctx, basicsOf).Scan(&p.roleName, &p.role, &p.database, &p.path, &p.version, &p.standby, &p.seesAll, &p.superuser); err != nil {
			return fmt.Errorf("read the server's version: %w", err)
		}
		found, err := tx.Query(ctx, settingsOf, settings, own)
		if err != nil {
			return fmt.Errorf("read the settings: %w", err)
		}
		p.settings = map[string]setting{}
		var name, value, source string
		if _, err := pgx.ForEachRow(found, []any{&name, &value, &source}, func() error {
			p.settings[name] = setting{value, source}
			return nil
		}); err != nil {
			return fmt.Errorf("read the settings: %w", err)
		}
		var home uint32
		err = tx.QueryRow(ctx, homeOf).Scan(&home, &p.home, &p.owner, &p.ownerOID, &p.owns)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for the tables: %w", err)
		}
		found, err = tx.Query(ctx, tablesOf, home)
		if err != nil {
			return fmt.Errorf("list the tables: %w", err)
		}
		p.tables, err = pgx.CollectRows(found, func(row pgx.CollectableRow) (t table, err error) {
			return t, row.Scan(&t.name, &t.quoted, &t.oid, &t.kind, &t.options, &t.rows)
		})
		if err != nil {
			return fmt.Errorf("list the tables: %w", err)
		}
		return nil
	})
}

// oids are those of the tables.
func (p *patient) oids() []uint32 {
	all := []uint32{}
	for _, t := range p.tables {
		all = append(all, t.oid)
	}
	return all
}

// named returns the table with that oid.
func (p *patient) named(oid uint32) table {
	return p.tables[slices.IndexFunc(p.tables, func(t table) bool { return t.oid == oid })]
}

// has returns the table with that name and whether it exists.
func (p *patient) has(name string) (table, bool) {
	i := slices.IndexFunc(p.tables, func(t table) bool { return t.name == name })
	if i < 0 {
		return table{}, false
	}
	return p.tables[i], true
}

// alter returns the fix that changes a setting for the role's next connections.
func (p *patient) alter(name, value string) Check {
	if p.settings[name].source == "client" {
		return Check{NextStep: fmt.Sprintf("remove %s from the connection string or the pool's settings", name)}
	}
	return Check{Fix: fmt.Sprintf("ALTER ROLE %s IN DATABASE %s SET %s = %s", p.role, p.database, name, value)}
}

// system returns the fix that changes a setting of the server.
func (p *patient) system(name, value string) Check {
	if p.settings[name].source == "command line" {
		return Check{NextStep: fmt.Sprintf("start the server with %s = %s: its command line sets it", name, value)}
	}
	return Check{Fix: fmt.Sprintf("ALTER SYSTEM SET %s = %s; SELECT pg_reload_conf()", name, literal(value))}
}

// as returns c, a fix, with what was found.
func (c Check) as(v Verdict, message string) Check {
	c.Verdict, c.Message = v, message
	return c
}

// hidden returns the line of a check that misses other roles' sessions.
func (p *patient) hidden(message string) Check {
	return Check{Verdict: Unchecked, Message: message, Fix: "GRANT pg_read_all_stats TO " + p.role, FixAs: p.fixer(admin)}
}

// worse adds what else was found.
func worse(c, one Check) Check {
	c.Verdict = max(c.Verdict, one.Verdict)
	c.Details = append(c.Details, one.Details...)
	c.Fix, c.NextStep = both(c.Fix, one.Fix), both(c.NextStep, one.NextStep)
	return c
}

// both joins two texts unless they are the same.
func both(a, b string) string {
	if a == "" || b == "" || a == b {
		return cmp.Or(a, b)
	}
	return a + "; " + b
}

// literal quotes a string for SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// shell quotes a word for a shell.
var shell = printable.Shell
