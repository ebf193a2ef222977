package pooler

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	nameTimeout = 2 * time.Second
	console     = "pgbouncer" // PgBouncer's own database; PgCat answers to the name too
	shareTries  = 4
)

// Describe returns a pooler's name, version and mode, as far as they can be known, such as
// "PgBouncer 1.18.0 in transaction mode". Call it if one is Between.
func Describe(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	shared, err := shares(ctx, pool)
	if err != nil {
		return "", err
	}
	is := name(ctx, pool)
	if shared {
		return is + " in transaction mode", nil
	}
	return is, nil
}

// name asks a pooler for its name and version, which it may tell its administrators only.
func name(ctx context.Context, pool *pgxpool.Pool) string {
	ctx, cancel := context.WithTimeout(ctx, nameTimeout)
	defer cancel()
	config := pool.Config().ConnConfig.Config.Copy()
	config.Database = console
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return nameless(err)
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, "SHOW VERSION").ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) == 0 {
		return nameless(err)
	}
	return string(results[0].Rows[0][0])
}

// nameless returns the name of a pooler that refused to tell its version with err.
func nameless(err error) string {
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "bouncer") && sqlState(err) == protocolViolation {
		return "PgBouncer, of a version that it tells its administrators only,"
	}
	return "one that does not tell its name"
}

// shares reports whether two clients were seen on one connection to the server, as in
// transaction mode. In session mode each client keeps its own.
func shares(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	if pool.Config().MaxConns < 2 {
		return false, nil
	}
	seen := map[int64]int{}
	var clients [2]*pgxpool.Conn
	for i := range clients {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return false, err
		}
		defer c.Release()
		clients[i] = c
	}
	for range shareTries {
		for i, c := range clients {
			var pid int64
			if err := c.QueryRow(ctx, "SELECT pg_backend_pid()", Mode(pool)).Scan(&pid); err != nil {
				return false, err
			}
			if other, ok := seen[pid]; ok && other != i {
				return true, nil
			}
			seen[pid] = i
		}
	}
	return false, nil
}
