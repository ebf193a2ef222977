package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/cluster"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestCitusStrangers: a role that may create objects in the tables' schema of a worker plants
// one that PostgreSQL would prefer to its own. No decision runs it, and that role is found.
func TestCitusStrangers(t *testing.T) {
	ctx := t.Context()
	server := testworld.OwnServer(t)
	address, drop, err := server.CreateDatabase(ctx, "strangers")
	must.Succeed(t, err)
	t.Cleanup(func() { must.Succeed(t, drop(context.Background())) })
	const home = "limits"
	path := testworld.Setting("search_path", home)
	pool := testworld.Connect(t, address, path)
	testworld.Exec(t, pool, `CREATE SCHEMA `+home)
	testworld.Exec(t, pool, `CREATE ROLE strangers_app LOGIN`)
	testworld.Exec(t, pool, `CREATE ROLE stranger LOGIN`)
	must.Succeed(t, sets.Tables.Up(ctx, pool))
	must.OK(grants.Apply(ctx, pool, grants.Roles{Operators: []string{"strangers_app"}}))(t)
	must.OK(cluster.Distribute(ctx, pool, cluster.Distribution{Shards: 4}))(t)
	at := must.OK(pgx.ParseConfig(server.Workers()[0].URL()))(t)
	worker := testworld.Connect(t, address, path, testworld.Setting("citus.enable_ddl_propagation", "off"), func(c *pgxpool.Config) {
		c.ConnConfig.Host, c.ConnConfig.Port, c.ConnConfig.User = at.Host, at.Port, at.User
	})
	testworld.Exec(t, worker, `GRANT ALL ON SCHEMA `+home+` TO stranger`)

	const operator = `"||"(text, bigint) RETURNS text`
	for _, planted := range []string{
		`get_shard_id_for_distribution_column(regclass, text) RETURNS bigint`, `worker_hash(text) RETURNS integer`,
		`unnest(text[]) RETURNS SETOF text`, `format(text, name, text) RETURNS text`, `format(text, text) RETURNS text`, operator,
	} {
		t.Run(planted, func(t *testing.T) {
			name, _, _ := strings.Cut(planted, " RETURNS")
			plant := fmt.Sprintf(`SET ROLE stranger; CREATE FUNCTION %s LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a stranger''s code runs as %%', current_user; END $$`, planted)
			if planted == operator {
				plant += `; CREATE OPERATOR || (LEFTARG = text, RIGHTARG = bigint, FUNCTION = "||")`
			}
			testworld.Exec(t, worker, plant+`; RESET ROLE`)
			defer testworld.Exec(t, worker, `DROP FUNCTION `+name+` CASCADE`)
			app := testworld.Connect(t, address, path, testworld.Setting("role", "strangers_app"))
			l := testworld.NewLimiter(t, app, nil)
			p := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 100, Period: time.Hour}
			for i := range 8 { // on both workers
				must.OK(l.AllowN(ctx, p, fmt.Sprint("k", i), 2))(t)
				must.OK(l.Refund(ctx, p, fmt.Sprint("k", i), 1))(t)
			}
		})
	}

	const found = "stranger may create objects in schema " + home
	if _, err := cluster.Distribute(ctx, pool, cluster.Distribution{}); !errors.Is(err, cluster.ErrCluster) || !strings.Contains(err.Error(), found) {
		t.Errorf("distribute: %v", err)
	}
	report := must.OK(doctor.Run(ctx, pool, &doctor.Config{Only: []string{"cluster"}}))(t)
	if c := report.Checks[len(report.Checks)-1]; c.Verdict != doctor.Warn || !strings.Contains(strings.Join(c.Details, " "), found) {
		t.Errorf("doctor: %+v", c)
	}
	testworld.Exec(t, worker, `REVOKE CREATE ON SCHEMA `+home+` FROM stranger`)
	testworld.Exec(t, pool, `ALTER FUNCTION pglimit_shard(text, text[]) OWNER TO strangers_app`)
	if again := must.OK(cluster.Distribute(ctx, pool, cluster.Distribution{}))(t); !again.Found.Outdated ||
		testworld.Value[string](t, pool, `SELECT proowner::regrole::text FROM pg_proc WHERE proname = 'pglimit_shard'`) == "strangers_app" {
		t.Errorf("another role's function was kept: %+v", again.Found)
	}
}
