package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/installed"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/shards"
)

// Distribution is how [Distribute] spreads the tables.
type Distribution struct {
	// Shards is the number of shards of each table, from 1 to 1024. Default: that of the
	// distributed tables, or two for each node, at least 4.
	Shards int
	// Undo moves the rows of all shards back to the coordinator.
	Undo bool
}

// Plan says what [Distribute] does, or would do.
type Plan struct {
	// Found is the cluster as it was before, and Shards the number of shards as planned.
	Found  *Cluster
	Shards int
	// Statements are SQL statements without a semicolon, in order; none if all is done.
	Statements []string

	tables []installed.Object // the tables whose rows move
}

// PlanFor returns the statements of [Distribute]. It only reads.
func PlanFor(ctx context.Context, pool *pgxpool.Pool, d Distribution) (Plan, error) {
	return distribute(ctx, pool, d, false)
}

// Distribute spreads the tables of keys over the nodes of a Citus cluster, by key, and
// creates the functions through which statements reach one shard. It does in one
// transaction what is not yet done: none of it, or all. Roles that may write to the tables
// may execute the functions. Policies, overrides and the janitor's lease stay on the
// coordinator.
//
// Rows move to the shards. Meanwhile the tables that move are locked, and decisions wait
// for their end. If other transactions leave no gap for about ten seconds, Distribute
// returns an error, and nothing was changed.
//
// It returns [ErrCluster] where there is no cluster with workers, or not the coordinator, or
// if other roles may create objects in the tables' schema of a node.
func Distribute(ctx context.Context, pool *pgxpool.Pool, d Distribution) (Plan, error) {
	return distribute(ctx, pool, d, true)
}

func distribute(ctx context.Context, pool *pgxpool.Pool, d Distribution, apply bool) (plan Plan, err error) {
	if d.Shards < 0 || d.Shards > maxShards {
		return plan, fmt.Errorf("%w: shards is %d: pass 1 to %d, or 0 for the default", ErrCluster, d.Shards, maxShards)
	}
	for try := 0; ; try++ {
		err = migrate.Await(ctx, "pglimit", func() (held string, err error) {
			plan, held, err = distributeOnce(ctx, pool, d, apply, lockWait(try))
			return held, err
		})
		var answer *pgconn.PgError
		busy := errors.Is(err, errBusy) || errors.As(err, &answer) && answer.Code == "40P01" // nothing moved yet, or all came back
		switch {
		case err == nil:
			return plan, nil
		case !busy:
			return Plan{}, err
		case try == lockAttempts:
			return Plan{}, fmt.Errorf("%w: end it, or stop the traffic, and run this again", errBusy)
		}
		select {
		case <-ctx.Done():
			return Plan{}, ctx.Err()
		case <-time.After(10*time.Millisecond + 3*lockWait(try)): // others get their turn
		}
	}
}

const (
	maxShards    = 1024
	lockAttempts = 44
)

// errBusy is returned if the tables could not be locked.
var errBusy = errors.New("pglimit: a transaction has had locks on the tables for too long")

// lockWait is how long the tables' locks are waited for: 1, 2, 4 … 128 ms in turn. Short
// waits find a gap in traffic, and long ones its end, below PostgreSQL's deadlock_timeout.
func lockWait(try int) time.Duration { return time.Millisecond << (try % 8) }

func distributeOnce(ctx context.Context, pool *pgxpool.Pool, d Distribution, apply bool, wait time.Duration) (plan Plan, held string, err error) {
	options := pgx.TxOptions{AccessMode: pgx.ReadOnly}
	if apply {
		options = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	}
	err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		if apply {
			if held, err = migrate.TryLock(ctx, tx); err != nil || held != "" {
				return err
			}
		}
		if err := refuseNode(ctx, tx); err != nil {
			return err
		}
		all, err := installed.Read(ctx, tx)
		if err != nil {
			return err
		}
		g := &coordinator{all}
		if plan, err = g.planDistribution(ctx, d); err != nil || !apply {
			return err
		}
		if err := lockTables(ctx, tx, plan.tables, wait); err != nil {
			return err
		}
		for _, s := range plan.Statements {
			if _, err := tx.Exec(ctx, s); err != nil {
				return explainDistribution(s, err)
			}
		}
		return nil
	})
	return plan, held, err
}

// lockTables locks the tables before their rows move, so that no other statement fails with
// a deadlock.
func lockTables(ctx context.Context, tx pgx.Tx, tables []installed.Object, wait time.Duration) error {
	if len(tables) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1::text, true)`, fmt.Sprint(wait.Milliseconds())); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "LOCK TABLE "+names(tables)+" IN ACCESS EXCLUSIVE MODE")
	var answer *pgconn.PgError
	if errors.As(err, &answer) && answer.Code == "55P03" {
		return errBusy
	}
	if err == nil {
		_, err = tx.Exec(ctx, `SELECT set_config('lock_timeout', '0', true)`)
	}
	return err
}

// refuseNode returns an error unless tx is in a database of a coordinator.
func refuseNode(ctx context.Context, tx pgx.Tx) error {
	citus, err := shards.Citus(ctx, tx)
	if err == nil && !citus {
		return fmt.Errorf("%w: the database has no extension citus: install Citus on each node, run CREATE EXTENSION citus in this database of each, and add the workers with citus_add_node", ErrCluster)
	}
	var worker bool
	if err == nil {
		err = tx.QueryRow(ctx, `SELECT g.groupid <> 0::int4 FROM pg_catalog.pg_dist_local_group AS g`).Scan(&worker)
	}
	switch {
	case err != nil:
		return fmt.Errorf("pglimit: look for Citus: %w", err)
	case worker:
		return fmt.Errorf("%w: this is a worker: connect to the coordinator", ErrCluster)
	}
	return nil
}

// planDistribution returns what is left to do.
func (g *coordinator) planDistribution(ctx context.Context, d Distribution) (plan Plan, err error) {
	c, err := g.readCluster(ctx)
	if err != nil {
		return plan, err
	}
	var owns bool
	if err := g.Tx.QueryRow(ctx, `SELECT pg_has_role($1::oid, 'USAGE')`, g.Tables[0].Owner).Scan(&owns); err != nil {
		return plan, fmt.Errorf("pglimit: read the tables' owner: %w", err)
	}
	if err := c.refuse(g, owns, d.Undo); err != nil {
		return plan, err
	}
	plan.Found, plan.Shards = c, c.Shards
	if d.Undo {
		return plan, g.planUndo(ctx, &plan)
	}
	if c.Shards == 0 && len(c.Distributed) > 0 {
		return plan, fmt.Errorf("%w: some are, without the table that places the others: run with --undo first, then again", ErrCluster)
	}
	if c.Shards > 0 && d.Shards > 0 && d.Shards != c.Shards {
		return plan, fmt.Errorf("%w: they have %d shards, not %d: leave --shards out, or run with --undo first", ErrCluster, c.Shards, d.Shards)
	}
	if err := g.planSpread(ctx, d, &plan); err != nil {
		return plan, err
	}
	if len(plan.Statements) > 0 { // functions after tables, in one transaction
		plan.Statements = append([]string{`SET LOCAL citus.multi_shard_modify_mode = 'sequential'`}, plan.Statements...)
	}
	return plan, nil
}

// planUndo appends the statements that move the rows back.
func (g *coordinator) planUndo(ctx context.Context, plan *Plan) error {
	plan.Shards = 0
	for _, f := range g.ShardFunctions {
		plan.Statements = append(plan.Statements, "DROP FUNCTION "+f.Signature())
	}
	for _, t := range g.keyed() {
		if slices.Contains(plan.Found.Distributed, t.Own) {
			plan.tables = append(plan.tables, t)
			plan.Statements = append(plan.Statements, "SELECT undistribute_table("+literal(t.Name)+")")
		}
	}
	if len(plan.tables) == 0 {
		return nil
	}
	// Citus creates the views again, without their rights.
	rows, err := g.Tx.Query(ctx, `SELECT format('ALTER VIEW %I.%I OWNER TO %I', n.nspname, c.relname, pg_get_userbyid(c.relowner)), 0 AS place, c.relname
		FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = ANY ($1::oid[]) AND c.relkind = 'v'
		UNION ALL
		SELECT format('GRANT %s ON %I.%I TO %s', string_agg(a.privilege_type, ', ' ORDER BY a.privilege_type), n.nspname, c.relname,
			CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)::text) END), 1, c.relname
		FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace, aclexplode(c.relacl) AS a
		WHERE c.oid = ANY ($1::oid[]) AND c.relkind = 'v' AND a.grantee <> c.relowner
		GROUP BY n.nspname, c.relname, a.grantee
		ORDER BY 2, 3, 1`, installed.OIDs(g.Readable))
	if err != nil {
		return fmt.Errorf("pglimit: read the rights on the views: %w", err)
	}
	var statement, view string
	var place int
	_, err = pgx.ForEachRow(rows, []any{&statement, &place, &view}, func() error {
		plan.Statements = append(plan.Statements, statement)
		return nil
	})
	if err != nil {
		return fmt.Errorf("pglimit: read the rights on the views: %w", err)
	}
	return nil
}

// planSpread appends the statements that distribute what is local, and replace functions
// that are not this release's.
func (g *coordinator) planSpread(ctx context.Context, d Distribution, plan *Plan) error {
	c := plan.Found
	if c.Shards == 0 {
		plan.Shards = d.Shards
		if d.Shards == 0 {
			plan.Shards = c.defaultShards()
		}
	}
	keyed := g.keyed()
	first := keyed[slices.IndexFunc(keyed, isFirst)]
	slices.SortStableFunc(keyed, func(a, b installed.Object) int { // first, which the others are placed by
		switch {
		case isFirst(a):
			return -1
		case isFirst(b):
			return 1
		}
		return 0
	})
	for _, t := range keyed {
		if !slices.Contains(c.Local, t.Own) {
			continue
		}
		where := "colocate_with => " + literal(first.Name)
		if isFirst(t) {
			where = fmt.Sprintf("colocate_with => 'none', shard_count => %d", plan.Shards)
		}
		plan.tables = append(plan.tables, t)
		plan.Statements = append(plan.Statements,
			fmt.Sprintf("SELECT create_distributed_table(%s, 'key', %s)", literal(t.Name), where),
			fmt.Sprintf("SELECT truncate_local_data_after_distributing_table(%s)", literal(t.Name)))
	}
	if len(c.Missing) == 0 && !c.Outdated {
		return nil
	}
	return g.planFunctions(ctx, plan, first)
}

// explainDistribution adds the next step to the error of a statement.
func explainDistribution(statement string, err error) error {
	next := ""
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		next = map[string]string{
			"42704": ": create the role on each worker too",
			"08006": ": see that the coordinator reaches the workers, and the owner of the tables may log in there",
			"25006": ": this is a replica or a read-only session: connect to the primary",
		}[answer.Code]
	}
	first, _, _ := strings.Cut(strings.TrimSpace(statement), "\n")
	return fmt.Errorf("pglimit: %s: %w%s", first, err, next)
}

// literal quotes a string for SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// names joins the names of objects.
func names(all []installed.Object) string {
	var each []string
	for _, o := range all {
		each = append(each, o.Name)
	}
	return strings.Join(each, ", ")
}
