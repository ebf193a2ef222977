package contender

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const leakyTable = `
CREATE TABLE bench_leaky (
    name       text COLLATE "C" PRIMARY KEY,
    level      float8 NOT NULL,
    leaked_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX bench_leaky_expires ON bench_leaky (expires_at)`

// leakyDelete is a naive leaky bucket: a row with a level, an index on expiry, and a
// DELETE of expired rows on every hit. Two things favour it: the DELETE compares with
// now(), which the index can serve (it cannot serve clock_timestamp()), and commits do not
// wait for the disk.
var leakyDelete = Contender{
	ID: "leaky-delete", What: "leaky bucket upsert, then a DELETE of all expired rows, on every hit, synchronous_commit = off",
	Server: onPostgres, Keeps: soon, Commit: "off", State: "leaky", Aside: true,
	Open: func(e *Env, r Rule) (Decider, error) {
		return &leakyDecider{e.Postgres.Pool, float64(r.Burst), float64(r.Limit) / r.Period.Seconds()}, nil
	},
}

type leakyDecider struct {
	pool           *pgxpool.Pool
	capacity, leak float64 // units; units per second
}

// Decide adds a unit if it fits; otherwise no row is returned. A row is deleted once it
// has been empty for as long as it takes to drain.
func (d *leakyDecider) Decide(ctx context.Context, key string) (allowed bool, err error) {
	c, err := d.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer c.Release()
	var level float64
	err = c.QueryRow(ctx, `
		INSERT INTO bench_leaky AS t (name, level, leaked_at, expires_at)
		SELECT $1, 1, at, at + make_interval(secs => 2 * $2::float8 / $3::float8) FROM clock_timestamp() AS at
		ON CONFLICT (name) DO UPDATE SET
			level = 1 + GREATEST(0, t.level - $3 * extract(epoch FROM EXCLUDED.leaked_at - t.leaked_at)),
			leaked_at = EXCLUDED.leaked_at, expires_at = EXCLUDED.expires_at
		WHERE 1 + GREATEST(0, t.level - $3 * extract(epoch FROM EXCLUDED.leaked_at - t.leaked_at)) <= $2
		RETURNING level`, key, d.capacity, d.leak).Scan(&level)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return false, err
	}
	allowed = err == nil
	_, err = c.Exec(ctx, `DELETE FROM bench_leaky WHERE expires_at < now()`)
	return allowed, err
}

func (d *leakyDecider) Used(ctx context.Context, key string) (level float64, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT coalesce(sum(GREATEST(0, level - $2::float8 * extract(epoch FROM clock_timestamp() - leaked_at))), 0)
		FROM bench_leaky WHERE name = $1`, key, d.leak).Scan(&level)
	return level, err
}
