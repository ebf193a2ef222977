package testworld

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/cluster"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Citus reports whether the server is a Citus cluster.
func Citus() bool { return len(server.Workers()) > 0 }

// distribute distributes the tables over the workers, if the server is a Citus cluster.
func distribute(ctx context.Context, pool *pgxpool.Pool) error {
	if !Citus() {
		return nil
	}
	_, err := cluster.Distribute(ctx, pool, cluster.Distribution{Shards: 8})
	return err
}

// EachShard calls f with what sends a statement to one shard of the distributed tables, for
// each, or with the pool if they are not distributed.
func EachShard(t *testing.T, pool *pgxpool.Pool, f func(tx db.DBTX)) {
	t.Helper()
	m, err := shards.Read(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	if m == nil {
		f(pool)
		return
	}
	for i := range m.Len() {
		f(exec.OnShard(pool, m.Key(i)))
	}
}

// onNodes returns a query of the sum of what a query for a number returns on all nodes.
func onNodes(query string) string {
	if !Citus() {
		return query
	}
	return "SELECT sum(result::bigint)::bigint FROM run_command_on_all_nodes($on_node$" + query + "$on_node$)"
}

// compact is a statement as a cluster's shards get it: without comments, on one line.
func compact(text string) string {
	return strings.Join(strings.Fields(sqlComment.ReplaceAllString(text, "")), " ")
}

// statements are the statements of db/ by their compact text.
var statements = sync.OnceValues(func() (map[string]string, error) {
	texts, err := QueryTexts()
	all := map[string]string{}
	for _, text := range texts {
		all[compact(text)] = text
	}
	return all, err
})

// asWritten returns the statement that a call of pglimit_on_shard sends, as db/ has it, and
// any other statement as it is.
func asWritten(sql string, args []any) string {
	const text = 3 // its argument
	if !strings.Contains(sql, "pglimit_on_shard(") || len(args) <= text {
		return sql
	}
	sent, _ := args[text].(string)
	all, err := statements()
	if written, ok := all[strings.TrimSuffix(sent, " RETURNING ''::text")]; ok && err == nil {
		return written
	}
	return sql
}
