package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
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
			Fix: p.grants(), FixAs: "the owner of the tables"}, nil
	}
	return judgeTables(p.home, schemas, p.path, p.alter("search_path", strings.Join(append([]string{p.settings["search_path"].value}, schemas[:min(1, len(schemas))]...), ", "))), nil
}

// grants returns the command that gives the role all rights.
func (p *patient) grants() string {
	return fmt.Sprintf("pglimit migrate grants %s --apply", shell(p.roleName))
}

// judgeTables judges where the tables are. home is the schema that statements use, and add
// the fix that adds the first of schemas to the search_path.
func judgeTables(home string, schemas, path []string, add Check) Check {
	others := slices.DeleteFunc(slices.Clone(schemas), func(s string) bool { return s == home })
	switch {
	case home == "" && len(schemas) > 0:
		if add.Fix == "" {
			add.NextStep = "end the connection string in ?search_path=" + schemas[0]
		}
		return add.as(Fail, fmt.Sprintf("the tables are in schema %s, which is not in the search_path (%s)", strings.Join(schemas, ", "), strings.Join(path, ", ")))
	case home == "":
		return Check{Verdict: Fail, Message: fmt.Sprintf("no schema of the search_path (%s) has pglimit's tables", strings.Join(path, ", ")), Fix: "pglimit migrate up", FixAs: "the role that migrates"}
	case len(others) > 0:
		return Check{Verdict: Warn, Message: fmt.Sprintf("statements use schema %s, and schema %s has tables too: programs with another search_path count apart", home, strings.Join(others, ", ")),
			NextStep: "use one search_path in all programs, and drop the tables that none uses"}
	}
	return Check{Message: "the tables are in schema " + home}
}

func checkMigrations(ctx context.Context, p *patient) (Check, error) {
	return p.migrated(ctx, sets.Tables, "pglimit migrate up")
}

func checkFunctions(ctx context.Context, p *patient) (Check, error) {
	return p.migrated(ctx, sets.Functions, "pglimit migrate up --functions")
}

// migrated judges what the database has of a set of migrations.
func (p *patient) migrated(ctx context.Context, set *migrate.Set, fix string) (Check, error) {
	all, err := set.Status(ctx, p.db)
	unread := sqlState(err) == forbidden
	if err != nil && !unread {
		return Check{}, err
	}
	var objects []migrate.Presence
	err = p.atHome(ctx, func(tx db.DBTX) error {
		objects, err = set.Present(ctx, tx)
		return err
	})
	if err != nil {
		return Check{}, err
	}
	if len(all) > len(objects) {
		return Check{Message: fmt.Sprintf("a later release has run migrations up to %05d", all[len(all)-1].Version)}, nil
	}
	_, recorded := p.has(set.VersionTable())
	switch {
	case unread:
		return judgeObjects(objects, nil, "this role may not read the record of migrations", Check{Fix: fix}), nil
	case !recorded:
		return judgeObjects(objects, nil, "another tool records the migrations", Check{NextStep: "run this release's migrations with the tool that ran the others, or what `pglimit migrate print` has of them"}), nil
	}
	var pending []string
	for _, m := range all {
		if !m.Applied {
			pending = append(pending, fmt.Sprintf("%05d %s", m.Version, m.Name))
		}
	}
	return judgeObjects(objects, pending, fmt.Sprintf("all %d migrations have run", len(all)), Check{Fix: fix}), nil
}

// judgeObjects judges what the database has of what a set creates. known is what is known of
// what has run, pending has not, and run is what runs the rest.
func judgeObjects(all []migrate.Presence, pending []string, known string, run Check) Check {
	present := 0
	for _, m := range all {
		present += len(m.Present)
		run.Details = append(run.Details, m.Wrong()...)
	}
	switch {
	case present == 0:
		return Check{Message: "not installed"}
	case len(pending) > 0:
		run.Details = nil
		return run.as(Fail, fmt.Sprintf("%d of this release's %d migrations have not run: %s", len(pending), len(all), strings.Join(pending, ", ")))
	case len(run.Details) > 0:
		return run.as(Fail, known+", and something of this release is missing or changed: "+run.Details[0])
	}
	return Check{Message: known + ", and all that this release creates is there"}
}

func checkGrants(ctx context.Context, p *patient) (Check, error) {
	missing, reads, err := grants.Missing(ctx, p.db)
	if err != nil {
		return Check{}, err
	}
	c := Check{Message: fmt.Sprintf("role %s has all rights that the library, the command and the janitor need", p.role)}
	switch {
	case len(missing) > 0:
		c = Check{Verdict: Fail, Message: fmt.Sprintf("role %s lacks rights that the library, the command or the janitor needs", p.role), Fix: p.grants()}
	case len(reads) > 0:
		c = Check{Verdict: Warn, Message: fmt.Sprintf("role %s may decide, and lacks rights that the command needs", p.role), Fix: p.grants()}
	}
	c.Details = append(missing, reads...)
	return c, nil
}

func checkUnlogged(_ context.Context, p *patient) (Check, error) {
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
