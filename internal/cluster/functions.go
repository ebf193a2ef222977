package cluster

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/installed"
)

//go:embed shards.sql.tmpl
var functionsSQL string

// shardFunction is a function of shards.sql.tmpl.
type shardFunction struct {
	name, types string
	delegated   bool // to the node that has the shard of its first argument, shard_key
}

var functionHead = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^CREATE OR REPLACE FUNCTION :home\.(\w+)\(([^)]*)\)`)
})

// shardFunctions returns the functions that reach one shard.
func shardFunctions() (all []shardFunction) {
	for _, m := range functionHead().FindAllStringSubmatch(functionsSQL, -1) {
		f := shardFunction{name: m[1]}
		var types []string
		for i, argument := range strings.Split(m[2], ", ") {
			name, kind, _ := strings.Cut(argument, " ")
			types = append(types, kind)
			f.delegated = f.delegated || i == 0 && name == "shard_key"
		}
		f.types = strings.Join(types, ", ")
		all = append(all, f)
	}
	return all
}

// functionStatements are those of shards.sql.tmpl, which end in $pglimit$, for tables in schema home.
func functionStatements(home string) (all []string) {
	tag := "$pglimit$"
	for strings.Contains(home, tag) { // it would end the functions' bodies
		tag = "$_" + tag[1:]
	}
	names := strings.NewReplacer("$pglimit$", tag, ":home", home, ":'home'", literal(home), ":'bucket'", literal(home+".pglimit_token_bucket"))
	for _, s := range strings.SplitAfter(functionsSQL, "$pglimit$;\n") {
		if i := strings.Index(s, "CREATE OR REPLACE"); i >= 0 {
			all = append(all, names.Replace(strings.TrimSuffix(strings.TrimSpace(s[i:]), ";")))
		}
	}
	return all
}

// functionMark names the functions of this release for tables in schema home, in a comment on
// the first.
func functionMark(home string) string {
	return fmt.Sprintf("pglimit migrate distribute, %x", sha256.Sum256([]byte(strings.Join(functionStatements(home), ""))))[:52]
}

// planFunctions appends the statements that create the functions.
func (g *coordinator) planFunctions(ctx context.Context, plan *Plan, first installed.Object) error {
	grantees, err := g.writers(ctx, first)
	if err != nil {
		return err
	}
	var owner string
	if err := g.Tx.QueryRow(ctx, `SELECT quote_ident(pg_get_userbyid($1::oid)::text)`, first.Owner).Scan(&owner); err != nil {
		return fmt.Errorf("pglimit: read the tables' owner: %w", err)
	}
	home := g.Home.Name
	for _, f := range g.ShardFunctions {
		if f.Owner != first.Owner || !slices.ContainsFunc(shardFunctions(), func(r shardFunction) bool { return r.name == f.Own && r.types == f.Types }) {
			plan.Statements = append(plan.Statements, "DROP FUNCTION "+f.Signature())
		}
	}
	plan.Statements = append(plan.Statements, functionStatements(home)...)
	for _, f := range shardFunctions() {
		name := home + "." + f.name + "(" + f.types + ")"
		placed := ""
		if f.delegated {
			placed = ", '$1', colocate_with => " + literal(first.Name) + ", force_delegation => true"
		}
		plan.Statements = append(plan.Statements,
			"SELECT create_distributed_function("+literal(name)+placed+")",
			"ALTER FUNCTION "+name+" OWNER TO "+owner,
			"REVOKE ALL ON FUNCTION "+name+" FROM PUBLIC")
		for _, r := range grantees {
			plan.Statements = append(plan.Statements, "GRANT EXECUTE ON FUNCTION "+name+" TO "+r)
		}
	}
	f := shardFunctions()[0]
	plan.Statements = append(plan.Statements, "COMMENT ON FUNCTION "+home+"."+f.name+"("+f.types+") IS "+literal(functionMark(home)))
	return nil
}

// writers returns the roles that may write to a table, other than its owner, as SQL.
func (g *coordinator) writers(ctx context.Context, t installed.Object) ([]string, error) {
	rows, err := g.Tx.Query(ctx, `SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)::text) END
		FROM pg_class AS c, aclexplode(c.relacl) AS a
		WHERE c.oid = $1::oid AND a.privilege_type = 'INSERT' AND a.grantee <> c.relowner ORDER BY 1`, t.OID)
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the rights on %s: %w", t.Name, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the rights on %s: %w", t.Name, err)
	}
	return all, nil
}
