package postgres

import (
	"context"
	"slices"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// Where Citus distributes the tables by key, the node that has a key's shard executes the
// statement, against the shard's own tables: pglimit_on_shard of the migrations. So all
// statements are those of one server, and a row's lock, its time limit and the durability
// are those of the node. A statement for many keys has keys of one shard. What this process
// knows of the shards may be old: the node compares, and a statement that fits no longer
// is sent again.

// bringLockTimeout gives the nodes of op's keys the lock_timeout of the caller's transaction.
// That may have changed since the last request, or have gone from a node by a rollback to a
// savepoint. Citus commits the nodes in two phases by itself.
func (p Store) bringLockTimeout(ctx context.Context, op *store.Op) error {
	keys := []string{op.Key}
	if len(op.Groups) > 0 {
		keys = keysOf(op.Groups)
	}
	return exec.Translate(p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		keys := p.oneOfEachShard(keys)
		if len(keys) == 0 {
			return nil
		}
		return exec.BringLockTimeout(ctx, tx, p.differs, keys)
	}), p.tx)
}

// oneOfEachShard returns one key of each shard that has some; none if the tables are not
// distributed.
func (p Store) oneOfEachShard(keys []string) (firsts []string) {
	if p.owners.Shards() == nil {
		return nil
	}
	seen := map[int]bool{}
	for _, key := range keys {
		if shard, _ := p.Shard(key); key != "" && !seen[shard] {
			seen[shard] = true
			firsts = append(firsts, key)
		}
	}
	return firsts
}

func keysOf(groups []*store.Group) []string {
	keys := make([]string, len(groups))
	for i, g := range groups {
		keys[i] = g.Key
	}
	return keys
}

// Shard returns the number of the key's shard, and that of all shards: 0 of 1 if the tables
// are not distributed.
func (p Store) Shard(key string) (n, of int) {
	if m := p.owners.Shards(); m != nil {
		return m.Of(key), m.Len()
	}
	return 0, 1
}

// at returns tx for a statement about one key.
func (p Store) at(tx db.DBTX, key string) db.DBTX {
	if p.owners.Shards() == nil {
		return tx
	}
	return exec.OnShard(tx, key)
}

// atAll is at for rows of one shard.
func (p Store) atAll(tx db.DBTX, rows []*store.Row) db.DBTX {
	if p.owners.Shards() == nil {
		return tx
	}
	keys := make([]string, len(rows))
	for i, r := range rows {
		keys[i] = r.Query.Key
	}
	return exec.OnShard(tx, keys...)
}

// takeMany takes rows in one statement for each shard, and returns the first error. A shard
// whose node is away, or has a locked row, keeps no other from being taken. What was decided
// is not taken again.
func (p Store) takeMany(ctx context.Context, tx db.DBTX, t *statement.Table, rows []*store.Row, now *int64) (first error) {
	if p.owners.Shards() == nil {
		return t.TakeMany(ctx, tx, rows, now)
	}
	undecided := slices.DeleteFunc(slices.Clone(rows), func(r *store.Row) bool { return r.Outcome.Decided })
	for _, part := range p.parts(undecided) {
		if err := t.TakeMany(ctx, p.atAll(tx, part), part, now); first == nil {
			first = err
		}
	}
	return first
}

// lockedRows marks the rows that other transactions have locked.
func (p Store) lockedRows(ctx context.Context, tx db.DBTX, rows []*store.Row) ([]bool, error) {
	t := statement.Of(rows[0].Query.Algorithm)
	if p.owners.Shards() == nil {
		return t.Locked(ctx, tx, rows)
	}
	locked := make(map[*store.Row]bool, len(rows))
	for _, part := range p.parts(rows) {
		found, err := t.Locked(ctx, p.atAll(tx, part), part)
		if err != nil {
			return nil, err
		}
		for i, r := range part {
			locked[r] = found[i]
		}
	}
	inOrder := make([]bool, len(rows))
	for i, r := range rows {
		inOrder[i] = locked[r]
	}
	return inOrder, nil
}

// parts returns the rows of each shard that has some, in their order.
func (p Store) parts(rows []*store.Row) [][]*store.Row {
	parts := make([][]*store.Row, p.owners.Shards().Len())
	for _, r := range rows {
		i, _ := p.Shard(r.Query.Key)
		parts[i] = append(parts[i], r)
	}
	return slices.DeleteFunc(parts, func(part []*store.Row) bool { return len(part) == 0 })
}

// inLockOrder returns groups, which are in the lock order of one server, in that of
// distributed tables: by table, shard, policy and key.
func (p Store) inLockOrder(groups []*store.Group) []*store.Group {
	if p.owners.Shards() == nil {
		return groups
	}
	groups = slices.Clone(groups)
	slices.SortStableFunc(groups, func(a, b *store.Group) int {
		switch {
		case a.Last:
			return 1
		case b.Last:
			return -1
		case a.Algorithm != b.Algorithm:
			return a.Algorithm.Index() - b.Algorithm.Index()
		}
		return p.compareShards(a, b)
	})
	return groups
}

// together reports whether one statement may take both groups.
func (p Store) together(a, b *store.Group) bool {
	return !p.routed && !a.Last && !b.Last && a.Algorithm == b.Algorithm && p.compareShards(a, b) == 0
}

func (p Store) compareShards(a, b *store.Group) int {
	n, _ := p.Shard(a.Key)
	m, _ := p.Shard(b.Key)
	return n - m
}
