package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/internal/migrations"
)

func checkTables(ctx context.Context, p *patient) (Check, error) {
	all, err := rows[struct {
		Schema string
		Usable bool
	}](ctx, p, `SELECT quote_ident(n.nspname::text), has_schema_privilege(n.oid, 'USAGE')
		FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.relname = 'pglimit_token_bucket' AND c.relkind IN ('r', 'p') ORDER BY 1`)
	if err != nil {
		return Check{}, err
	}
	var schemas []string
	for _, s := range all {
		schemas = append(schemas, s.Schema)
	}
	if p.home == "" && len(all) == 1 && !all[0].Usable {
		return Check{Verdict: Fail, Message: fmt.Sprintf("the tables are in schema %s, which is not open to role %s", schemas[0], p.role),
			Fix: fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", schemas[0], p.role)}, nil
	}
	return judgeTables(p.home, schemas, p.path), nil
}

// judgeTables judges where the tables are. home is the schema that statements use.
func judgeTables(home string, schemas, path []string) Check {
	others := slices.DeleteFunc(slices.Clone(schemas), func(s string) bool { return s == home })
	switch {
	case home == "" && len(schemas) > 0:
		return Check{Verdict: Fail, Message: fmt.Sprintf("the tables are in schema %s, which is not in the search_path (%s)", strings.Join(schemas, ", "), strings.Join(path, ", ")),
			Fix: "end the connection string in ?search_path=" + schemas[0]}
	case home == "":
		return Check{Verdict: Fail, Message: fmt.Sprintf("no schema of the search_path (%s) has pglimit's tables", strings.Join(path, ", ")), Fix: "pglimit migrate up"}
	case len(others) > 0:
		return Check{Verdict: Warn, Message: fmt.Sprintf("statements use schema %s, and schema %s has tables too: programs with another search_path count apart", home, strings.Join(others, ", ")),
			Fix: "use one search_path in all programs, and drop the tables that none uses"}
	}
	return Check{Message: "the tables are in schema " + home}
}

func checkMigrations(ctx context.Context, p *patient) (Check, error) {
	if err := p.needsTables(); err != nil {
		return Check{}, err
	}
	all, err := migrations.Tables.Status(ctx, p.db)
	if err != nil {
		return Check{}, err
	}
	applied, pending := split(all)
	if len(applied) > 0 {
		return judgeMigrations(applied, pending, "pglimit migrate up"), nil
	}
	// Another tool records what has run. MissingGrants returns an error if a table is missing.
	if _, err := migrations.MissingGrants(ctx, p.db); err != nil {
		return Check{Verdict: Fail, Message: strings.TrimPrefix(err.Error(), "pglimit: "), Fix: "run this release's migrations with the tool that ran the others"}, nil
	}
	return Check{Message: "another tool records the migrations, and this release's tables are there"}, nil
}

func checkFunctions(ctx context.Context, p *patient) (Check, error) {
	all, err := migrations.Functions.Status(ctx, p.db)
	if err != nil {
		return Check{}, err
	}
	applied, pending := split(all)
	if len(applied) == 0 {
		return Check{Message: "the SQL functions are not installed, or another tool records them"}, nil
	}
	return judgeMigrations(applied, pending, "pglimit migrate up --functions"), nil
}

func split(all []migrations.Migration) (applied, pending []string) {
	for _, m := range all {
		name := fmt.Sprintf("%05d %s", m.Version, m.Name)
		if m.Applied {
			applied = append(applied, name)
		} else {
			pending = append(pending, name)
		}
	}
	return applied, pending
}

// judgeMigrations judges a set of migrations, of which some have run.
func judgeMigrations(applied, pending []string, fix string) Check {
	if len(pending) > 0 {
		return Check{Verdict: Fail, Message: fmt.Sprintf("%d of this release's %d migrations have not run: %s", len(pending), len(applied)+len(pending), strings.Join(pending, ", ")), Fix: fix}
	}
	return Check{Message: fmt.Sprintf("all %d migrations have run", len(applied))}
}

func checkGrants(ctx context.Context, p *patient) (Check, error) {
	missing, err := migrations.MissingGrants(ctx, p.db)
	if err != nil {
		return Check{}, err
	}
	if len(missing) == 0 {
		return Check{Message: fmt.Sprintf("role %s has all rights that the library, the command and the janitor need", p.role)}, nil
	}
	return Check{Verdict: Fail, Message: fmt.Sprintf("role %s lacks rights that the library, the command or the janitor needs", p.role),
		Fix: strings.Join(missing, "; "), Details: missing}, nil
}

func checkUnlogged(_ context.Context, p *patient) (Check, error) {
	if err := p.needsTables(); err != nil {
		return Check{}, err
	}
	c := Check{Message: "all tables are logged"}
	for _, t := range p.tables {
		if t.kind != "p" {
			c = worse(c, Check{Verdict: Fail, Details: []string{t.quoted + " is not logged"}, Fix: fmt.Sprintf("ALTER TABLE %s SET LOGGED", t.quoted)})
		}
	}
	if c.Verdict != OK {
		c.Message = fmt.Sprintf("%d tables are not logged: they are empty after a crash and on replicas", len(c.Details))
	}
	return c, nil
}
