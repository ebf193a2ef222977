package migrate

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

var update = flag.Bool("update", false, "write internal/migrate/made")

// TestMade: internal/migrate/made describes what each migration makes on this server, and
// what a restored dump has.
func TestMade(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.EmptyDatabase(t))
	var before []migrate.Part
	for i, set := range []*migrate.Set{sets.Tables, sets.Functions} {
		text := ""
		p := provider(t, pool, set.FS(), goose.WithTableName(set.VersionTable()))
		for _, source := range p.ListSources() {
			must.OK(p.UpTo(t.Context(), source.Version))(t)
			after := standing(t, pool)
			text += difference(source.Version, before, after)
			before = after
		}
		file := "../testdata/repository/internal/migrate/made/" + []string{"tables.txt", "functions.txt"}[i]
		if *update {
			must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
		}
		if string(must.OK(os.ReadFile(file))(t)) != text {
			t.Errorf("%s differs from what the migrations make: run go test ./integration/migrate -run Made -update. Got:\n%s", file, text)
		}
	}
	testworld.Exec(t, pool, `DO $$
DECLARE
    o record;
BEGIN -- as pg_dump does, which writes what the catalogue describes
    FOR o IN SELECT c.conrelid::regclass AS t, c.conname, pg_get_constraintdef(c.oid) AS def FROM pg_constraint AS c WHERE c.contype = 'c' AND c.conrelid::regclass::text LIKE 'pglimit%' LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I, ADD CONSTRAINT %I %s', o.t, o.conname, o.conname, o.def);
    END LOOP;
    FOR o IN SELECT c.oid::regclass AS v, pg_get_viewdef(c.oid) AS def FROM pg_class AS c WHERE c.relkind = 'v' AND c.relname LIKE 'pglimit%' LOOP
        EXECUTE format('CREATE OR REPLACE VIEW %s AS %s', o.v, o.def);
    END LOOP;
END $$`)
	if text := difference(0, before, standing(t, pool)); text != "" {
		t.Errorf("a restored dump differs: write this in the form that stays as it is, such as without BETWEEN before AND:\n%s", text)
	}
}

// standing returns what stands.
func standing(t *testing.T, pool *pgxpool.Pool) (all []migrate.Part) {
	t.Helper()
	must.Succeed(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		all, err = migrate.Standing(t.Context(), tx)
		return err
	}))
	return all
}

// difference renders the parts that a migration makes and undoes, a line for each object.
func difference(version int64, before, after []migrate.Part) (text string) {
	var last migrate.Part
	for i, p := range append(slices.Clone(before), after...) {
		if slices.Contains(before, p) && slices.Contains(after, p) {
			continue
		}
		if p.Kind != last.Kind || p.Name != last.Name {
			text += fmt.Sprintf("\n%d\t%s\t%s", version, p.Kind, p.Name)
		}
		text += "\t" + strings.Repeat("-", max(0, min(1, len(before)-i))) + p.Text
		last = p
	}
	return strings.TrimPrefix(text+"\n", "\n")
}
