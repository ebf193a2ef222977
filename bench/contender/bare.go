package contender

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// bareTable is stored as the limiter's own tables are, so that both update in
// place.
const bareTable = `
CREATE TABLE bench_bare (
    n      bigint NOT NULL,
    policy text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    PRIMARY KEY (policy, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1)`

// BareUpsert counts a unit of policy $1 and key $2.
const BareUpsert = `INSERT INTO bench_bare AS t (policy, key, n) VALUES ($1, $2, 1)
	ON CONFLICT (policy, key) DO UPDATE SET n = t.n + 1 RETURNING n`

// bare counts and does not limit: the least that a decision in PostgreSQL can cost.
func bare(id, commit string) Contender {
	return Contender{
		ID: id, Commit: commit,
		Open: func(e *Env, r Rule) (Decider, error) { return &bareDecider{e.Pool, r}, nil },
	}
}

type bareDecider struct {
	pool *pgxpool.Pool
	rule Rule
}

func (d *bareDecider) Decide(ctx context.Context, key string) (float64, error) {
	var n int64
	err := d.pool.QueryRow(ctx, BareUpsert, d.rule.Name, key).Scan(&n)
	if err != nil || n > int64(d.rule.Burst) {
		return 0, err
	}
	return 1, nil
}

func (d *bareDecider) Used(ctx context.Context, key string) (n float64, err error) {
	err = d.pool.QueryRow(ctx, `SELECT coalesce(sum(n), 0)::float8 FROM bench_bare WHERE policy = $1 AND key = $2`,
		d.rule.Name, key).Scan(&n)
	return n, err
}
