package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
)

const maxReplay = 30 * 24 * time.Hour // how long a session is kept

// openSession returns a pool of one session, in which temporary tables hide those
// of the candidates' algorithms. Nothing is left behind however it ends, and no
// janitor sees rows whose time, the log's, has long passed.
func openSession(cmd *cobra.Command, db *connect.Database, candidates []replay.Candidate) (*pgxpool.Pool, error) {
	named, err := db.Open(cmd)
	if err != nil {
		return nil, err
	}
	defer named.Close()
	config := named.Config()
	config.MaxConns, config.MaxConnLifetime, config.MaxConnIdleTime = 1, maxReplay, maxReplay
	var connected atomic.Bool
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if connected.Swap(true) {
			return errors.New("the connection was lost, and what it had counted: run it again")
		}
		for _, table := range tablesOf(candidates) {
			if _, err := conn.Exec(ctx, fmt.Sprintf("CREATE TEMPORARY TABLE %s (LIKE %s INCLUDING ALL)", table, table)); err != nil {
				return err
			}
		}
		return nil
	}
	session, err := pgxpool.NewWithConfig(cmd.Context(), config)
	if err != nil {
		return nil, cli.DatabaseError(err)
	}
	if err := session.Ping(cmd.Context()); err != nil {
		session.Close()
		var answer *pgconn.PgError
		if errors.As(err, &answer) && answer.Code == "42P01" {
			err = limiter.ErrNotMigrated
		}
		return nil, cli.DatabaseError(fmt.Errorf("a temporary table to decide on: %w", err))
	}
	return session, nil
}

// emptyLimiter returns a limiter for the next candidate. It deletes what the one
// before it counted, perhaps under the same algorithm and name.
func emptyLimiter(ctx context.Context, session *pgxpool.Pool, candidates []replay.Candidate, config *limiter.Config) (*limiter.Limiter, error) {
	// pg_temp rules out the tables with real counts.
	tables := "pg_temp." + strings.Join(tablesOf(candidates), ", pg_temp.")
	if _, err := session.Exec(ctx, "TRUNCATE "+tables); err != nil {
		return nil, err
	}
	// No caller waits for a decision, and one timeout would waste the whole replay.
	config.Timeout = time.Minute
	return limiter.New(session, config)
}

// tablesOf returns the tables that the candidates decide on, each once.
func tablesOf(candidates []replay.Candidate) []string {
	var tables []string
	for _, a := range limiter.Algorithms() {
		for _, c := range candidates {
			if c.Policy.Algorithm == a {
				tables = append(tables, "pglimit_"+string(a))
				break
			}
		}
	}
	return tables
}
