// Package cluster spreads pglimit's tables over the nodes of a Citus cluster, and reads how they
// are spread.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/installed"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/strangers"
)

// Cluster is what a Citus cluster has of pglimit's tables.
type Cluster struct {
	// Version is that of Citus.
	Version string `json:"version"`
	// Shards is the number of shards of each distributed table, 0 if none is distributed.
	Shards int `json:"shards"`
	// Nodes are those that may have shards, in the order of their names.
	Nodes []Node `json:"nodes"`
	// Distributed and Local are the tables of keys that are distributed and that are not, in
	// the library's order.
	Distributed []string `json:"distributed"`
	Local       []string `json:"local"`
	// Lost is the number of shards that have no active placement on a node that is in use.
	Lost int `json:"lost"`
	// Missing are functions of this release that do not exist, and Outdated reports whether
	// those that do are another release's.
	Missing  []string `json:"missing_functions"`
	Outdated bool     `json:"outdated_functions"`
	// Exposed are lines on nodes where other roles may create objects in the tables' schema,
	// or which did not answer, with the next step.
	Exposed []string `json:"exposed_nodes"`
}

// Node is a node that may have shards.
type Node struct {
	// Name is host:port.
	Name string `json:"name"`
	// Shards is the number of shards of each table that it has.
	Shards int `json:"shards"`
	// Synced reports whether it has the metadata, without which it runs no function.
	Synced bool `json:"synced"`
}

// coordinator reads and changes the cluster by its coordinator, on which the objects are.
type coordinator struct{ *installed.Objects }

// Read reads what the cluster has of the tables in tx's search_path. It returns nil
// where there is no Citus. The transaction's search_path is pg_catalog's from then on.
func Read(ctx context.Context, tx db.DBTX) (*Cluster, error) {
	citus, err := shards.Citus(ctx, tx)
	if err != nil || !citus {
		return nil, err
	}
	all, err := installed.Read(ctx, tx)
	if err != nil {
		return nil, err
	}
	return (&coordinator{all}).readCluster(ctx)
}

// ReadOf is [Read] in a transaction of pool.
func ReadOf(ctx context.Context, pool *pgxpool.Pool) (c *Cluster, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		c, err = Read(ctx, tx)
		return err
	})
	return c, err
}

// What a cluster has. $1 is the table pglimit_token_bucket.
const (
	citusOf = `SELECT e.extversion, 
			(SELECT count(*) FROM pg_dist_shard AS s WHERE s.logicalrelid::oid = $1::oid),
			(SELECT count(*) FROM pg_dist_shard AS s WHERE s.logicalrelid::oid = $1::oid AND NOT EXISTS (
				SELECT FROM pg_dist_placement AS p JOIN pg_dist_node AS n ON n.groupid = p.groupid
				WHERE p.shardid = s.shardid AND p.shardstate = 1 AND n.noderole = 'primary' AND n.isactive))
		FROM pg_extension AS e WHERE e.extname = 'citus'`
	nodesOf = `SELECT n.nodename || ':' || n.nodeport, n.hasmetadata AND n.metadatasynced,
			(SELECT count(*) FROM pg_dist_placement AS p JOIN pg_dist_shard AS s ON s.shardid = p.shardid
			 WHERE p.groupid = n.groupid AND s.logicalrelid::oid = $1::oid)
		FROM pg_dist_node AS n WHERE n.noderole = 'primary' AND n.isactive AND n.shouldhaveshards ORDER BY 1`
	distributedOf = `SELECT p.logicalrelid::oid FROM pg_dist_partition AS p WHERE p.partmethod = 'h' AND p.logicalrelid::oid = ANY ($1::oid[])`
)

func (g *coordinator) readCluster(ctx context.Context) (*Cluster, error) {
	c := &Cluster{Distributed: []string{}, Local: []string{}, Missing: []string{}, Exposed: []string{}}
	keyed := g.keyed()
	first := keyed[slices.IndexFunc(keyed, isFirst)].OID
	err := g.Tx.QueryRow(ctx, citusOf, first).Scan(&c.Version, &c.Shards, &c.Lost)
	if err != nil {
		return nil, fmt.Errorf("pglimit: read Citus's version: %w", err)
	}
	rows, err := g.Tx.Query(ctx, nodesOf, first)
	if err == nil {
		c.Nodes, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (n Node, err error) {
			return n, row.Scan(&n.Name, &n.Synced, &n.Shards)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the cluster's nodes: %w", err)
	}
	var distributed []uint32
	if rows, err = g.Tx.Query(ctx, distributedOf, installed.OIDs(keyed)); err == nil {
		distributed, err = pgx.CollectRows(rows, pgx.RowTo[uint32])
	}
	if err != nil {
		return nil, fmt.Errorf("pglimit: read which tables are distributed: %w", err)
	}
	for _, t := range keyed {
		if slices.Contains(distributed, t.OID) {
			c.Distributed = append(c.Distributed, t.Own)
		} else {
			c.Local = append(c.Local, t.Own)
		}
	}
	return c, errors.Join(g.readFunctions(ctx, c), g.readExposed(ctx, c))
}

// readExposed looks for strangers in the tables' schema, on every node.
func (g *coordinator) readExposed(ctx context.Context, c *Cluster) error {
	var owner string
	err := g.Tx.QueryRow(ctx, `SELECT quote_literal(quote_ident(pg_get_userbyid($1::oid)::text))`, g.Tables[0].Owner).Scan(&owner)
	if err != nil {
		return fmt.Errorf("pglimit: read the tables' owner: %w", err)
	}
	home := g.Home
	command := `SELECT pg_catalog.json_agg(e) FROM (` + strings.NewReplacer(
		"$1::int8", "pg_catalog.to_regrole("+owner+")",
		"pg_catalog.current_schemas(false)", "ARRAY["+literal(home.Own)+"::name]",
		"pg_catalog.current_setting('search_path')", literal(home.Name)).Replace(strangers.Query) + `) AS e (schema, owner, creator, missing)`
	rows, err := g.Tx.Query(ctx, `SELECT 'this node', true, (`+command+`)::text
		UNION ALL SELECT nodename || ':' || nodeport, success, result FROM run_command_on_workers($1::text) ORDER BY 1`, command)
	if err != nil {
		return fmt.Errorf("pglimit: look for other roles on the nodes: %w", err)
	}
	var node string
	var answered bool
	var found *string
	_, err = pgx.ForEachRow(rows, []any{&node, &answered, &found}, func() error {
		var all []struct{ Schema, Owner, Creator string }
		switch {
		case !answered:
			c.Exposed = append(c.Exposed, node+" does not say who may create objects there: "+*found)
		case found != nil && *found != "":
			if err := json.Unmarshal([]byte(*found), &all); err != nil {
				return err
			}
		}
		for _, a := range all {
			e := strangers.Exposure{Schema: a.Schema, Owner: a.Owner}
			if a.Creator != "" {
				e.Creators = []string{a.Creator}
			}
			c.Exposed = append(c.Exposed, "on "+node+" "+e.String())
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("pglimit: look for other roles on the nodes: %w", err)
	}
	return nil
}

// readFunctions reads which of the functions exist.
func (g *coordinator) readFunctions(ctx context.Context, c *Cluster) error {
	want := shardFunctions()
	for _, f := range want {
		if !slices.ContainsFunc(g.ShardFunctions, func(o installed.Object) bool { return o.Own == f.name }) {
			c.Missing = append(c.Missing, f.name)
		}
	}
	if len(c.Missing) > 0 {
		return nil
	}
	err := g.Tx.QueryRow(ctx, `SELECT coalesce(obj_description($1::oid, 'pg_proc'), '') <> $2::text`,
		g.ShardFunctions[0].OID, functionMark(g.Home.Name)).Scan(&c.Outdated)
	if err != nil {
		return fmt.Errorf("pglimit: read the release of the functions: %w", err)
	}
	c.Outdated = c.Outdated || len(g.ShardFunctions) != len(want) ||
		slices.ContainsFunc(g.ShardFunctions, func(o installed.Object) bool { return o.Owner != g.Tables[0].Owner })
	return nil
}

// keyed are the tables with a row per key, which a cluster distributes, in the order in
// which statements lock them, but for reservations.
func (g *coordinator) keyed() []installed.Object {
	var names []string
	for _, n := range algorithm.Tables {
		names = append(names, "pglimit_"+string(n))
	}
	names = append(names, "pglimit_balance", "pglimit_attempt", "pglimit_slot", "pglimit_reservation", "pglimit_denial", "pglimit_key_count", "pglimit_event", "pglimit_usage", "pglimit_ledger")
	return slices.DeleteFunc(slices.Clone(g.Tables), func(o installed.Object) bool { return !slices.Contains(names, o.Own) })
}

// isFirst reports whether t is the table that the others are placed by.
func isFirst(t installed.Object) bool { return t.Own == "pglimit_token_bucket" }

// ErrCluster is returned by [PlanFor] and [Distribute] if the tables cannot be
// distributed there, or not as asked. The message names the next step. Nothing was changed.
var ErrCluster = errors.New("pglimit: the tables cannot be distributed")

// refuse returns why tables cannot be distributed there.
func (c *Cluster) refuse(g *coordinator, owns, undo bool) error {
	var unsynced []string
	for _, n := range c.Nodes {
		if !n.Synced {
			unsynced = append(unsynced, n.Name)
		}
	}
	switch {
	case len(c.Nodes) == 0:
		return fmt.Errorf("%w: no active node may have shards: run SELECT citus_add_node('HOST', PORT) for each worker", ErrCluster)
	case len(unsynced) > 0:
		return fmt.Errorf("%w: %s lack the cluster's metadata: run SELECT start_metadata_sync_to_all_nodes()", ErrCluster, strings.Join(unsynced, ", "))
	case len(c.Exposed) > 0 && !undo:
		return fmt.Errorf("%w: %s", ErrCluster, strings.Join(c.Exposed, "; "))
	case !owns:
		return fmt.Errorf("%w: the connection's role does not own %s: connect as their owner", ErrCluster, g.Tables[0].Name)
	}
	return nil
}

// defaultShards returns the number of shards that tables get: few, so that the keys of a
// statement to one shard are many.
func (c *Cluster) defaultShards() int { return max(4, 2*len(c.Nodes)) }

// Summary says in a line where the keys are.
func (c *Cluster) Summary() string {
	if c.Shards == 0 {
		return fmt.Sprintf("Citus %s: the tables are not distributed", c.Version)
	}
	var nodes []string
	for _, n := range slices.SortedFunc(slices.Values(c.Nodes), func(a, b Node) int { return cmp.Compare(a.Name, b.Name) }) {
		nodes = append(nodes, fmt.Sprintf("%s has %d", n.Name, n.Shards))
	}
	return fmt.Sprintf("Citus %s: the tables are distributed by key, in %d shards: %s", c.Version, c.Shards, strings.Join(nodes, ", "))
}
