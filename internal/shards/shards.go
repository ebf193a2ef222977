// Package shards knows where Citus puts keys: the hash of a key and the ranges of hashes
// that the shards of the limit tables have.
package shards

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
)

// Map is the shards of the distributed limit tables, numbered from 0 in the order of their
// ranges. The tables are co-located: a key has the same number in all of them. A Map does
// not change, so that it is safe for concurrent use. Read another one when shards were
// split. A Map that is too old gives a key another shard's number: a statement for several
// keys must find out whether the node has them all.
type Map struct {
	last []int32 // each shard's highest hash
	keys []string
}

// Read returns the shards of the limit tables in the search_path, or nil if these are not
// distributed. Without Citus, Read is one statement.
func Read(ctx context.Context, tx db.DBTX) (*Map, error) {
	m, err := read(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("pglimit: read the shards of the limit tables: %w", err)
	}
	return m, nil
}

func read(ctx context.Context, tx db.DBTX) (*Map, error) {
	if citus, err := Citus(ctx, tx); err != nil || !citus {
		return nil, err
	}
	rows, err := tx.Query(ctx, ranges, sample)
	if err != nil {
		return nil, err
	}
	var id int64
	var first, last string
	var hashed int32
	m := &Map{}
	next := int64(math.MinInt32)
	_, err = pgx.ForEachRow(rows, []any{&id, &first, &last, &hashed}, func() error {
		if want := Hash(sample); hashed != want {
			return fmt.Errorf("the server hashes %q to %d, not to %d: use a database with encoding UTF8 on a little-endian machine", sample, hashed, want)
		}
		from, err := strconv.ParseInt(first, 10, 32)
		if err != nil {
			return fmt.Errorf("shard %d begins at %q: %w", id, first, err)
		}
		to, err := strconv.ParseInt(last, 10, 32)
		if err != nil {
			return fmt.Errorf("shard %d ends at %q: %w", id, last, err)
		}
		if from != next || to < from {
			return fmt.Errorf("shard %d has hashes %d to %d: want a range that begins at %d", id, from, to, next)
		}
		next = to + 1
		m.last, m.keys = append(m.last, int32(to)), append(m.keys, textOf(int32(from)))
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(m.last) == 0:
		return nil, nil
	case next != math.MaxInt32+1:
		return nil, fmt.Errorf("the last shard ends at %d: want %d", next-1, math.MaxInt32)
	}
	return m, nil
}

// Citus reports whether the database has the extension citus.
func Citus(ctx context.Context, tx db.DBTX) (citus bool, err error) {
	err = tx.QueryRow(ctx, hasCitus).Scan(&citus)
	return citus, err
}

// Of returns the number of the shard that has key.
func (m *Map) Of(key string) int {
	i, _ := slices.BinarySearch(m.last, Hash(key))
	return i
}

// Len returns the number of shards.
func (m *Map) Len() int { return len(m.last) }

// Key returns a text that shard i would have as a key, to route a statement about all keys
// of the shard. It has 12 ASCII characters, control characters among them.
func (m *Map) Key(i int) string { return m.keys[i] }

// sample is hashed by the server as well. Its last character has one byte in LATIN1.
const sample = "pglimit sample \u00fc"

// Other roles may have defined operators, so all types match pg_catalog's exactly.
const (
	hasCitus = `SELECT pg_catalog.to_regclass('pg_catalog.pg_dist_partition'::text) IS NOT NULL`
	ranges   = `
SELECT s.shardid, s.shardminvalue, s.shardmaxvalue, pg_catalog.hashtext($1::text COLLATE "C")
FROM pg_catalog.pg_dist_partition AS p JOIN pg_catalog.pg_dist_shard AS s ON s.logicalrelid::oid = p.logicalrelid::oid
WHERE p.logicalrelid::oid = pg_catalog.to_regclass('pglimit_token_bucket'::text)::oid AND p.partmethod = 'h'::"char"
ORDER BY s.shardminvalue::int8`
)
