package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/cluster"
)

func checkCluster(ctx context.Context, p *patient) (Check, error) {
	var c *cluster.Cluster
	err := p.atHome(ctx, func(tx db.DBTX) (err error) {
		c, err = cluster.Read(ctx, tx)
		return err
	})
	return judgeCluster(c), err
}

// judgeCluster judges what a Citus cluster has of the tables; nil is none.
func judgeCluster(c *cluster.Cluster) Check {
	if c == nil {
		return Check{Message: "one server has the tables: there is no Citus"}
	}
	const distribute = "pglimit migrate distribute"
	found := Check{Message: c.Summary()}
	most, least := 0, c.Shards
	for _, n := range c.Nodes {
		most, least = max(most, n.Shards), min(least, n.Shards)
		if !n.Synced {
			found = worse(found, Check{Verdict: Fail, Details: []string{n.Name + " lacks the cluster's metadata, so that its statements fail"},
				Fix: "SELECT start_metadata_sync_to_all_nodes()", FixAs: "a superuser"})
		}
	}
	for _, line := range c.Exposed {
		found = worse(found, Check{Verdict: Warn, Details: []string{line}, NextStep: "connect to that node and take the right to create objects away"})
	}
	switch {
	case len(c.Distributed) == 0:
		if len(c.Missing) == 0 {
			found = worse(found, Check{Verdict: Warn, Details: []string{"functions of distributed tables are left"}, Fix: distribute + " --undo"})
		}
		return found
	case len(c.Local) > 0:
		found = worse(found, Check{Verdict: Fail, Details: []string{"not distributed, as the others are: " + strings.Join(c.Local, ", ")}, Fix: distribute})
	}
	if len(c.Missing) > 0 {
		found = worse(found, Check{Verdict: Fail, Details: []string{"no decision finds its shard without " + strings.Join(c.Missing, ", ")}, Fix: distribute})
	} else if c.Outdated {
		found = worse(found, Check{Verdict: Warn, Details: []string{"the functions are another release's"}, Fix: distribute})
	}
	if c.Lost > 0 {
		found = worse(found, Check{Verdict: Fail, Details: []string{fmt.Sprintf("%d shards are on no node in use: their keys get no decision", c.Lost)},
			NextStep: "start the node again, or restore it: SELECT * FROM pg_dist_node shows all"})
	}
	if most-least > 1 {
		found = worse(found, Check{Verdict: Warn, Details: []string{fmt.Sprintf("one node has %d shards and another %d", most, least)}, Fix: "SELECT citus_rebalance_start()"})
	}
	return found
}
