package commands

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

const maxReplay = 30 * 24 * time.Hour // longest life of a session

// openSession returns a pool of one session, in which temporary tables hide the
// tables of the candidates' algorithms. The session leaves nothing behind, however
// it ends. No janitor sees its rows, whose times are the log's and long past.
func openSession(cmd *cobra.Command, config *pgxpool.Config, candidates []replay.Candidate) (*pgxpool.Pool, error) {
	config.MaxConns, config.MaxConnLifetime, config.MaxConnIdleTime = 1, maxReplay, maxReplay
	var connected atomic.Bool
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if connected.Swap(true) {
			return errors.New("the connection was lost with everything it had counted: run replay again")
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
		return nil, cli.DatabaseError(fmt.Errorf("create a temporary table: %w", err))
	}
	return session, nil
}

// emptyLimiter returns a limiter for the next candidate. It deletes the counts of
// the candidate before, which may have the same algorithm and name.
func emptyLimiter(ctx context.Context, session *pgxpool.Pool, candidates []replay.Candidate, config *limiter.Config) (*limiter.Limiter, error) {
	// pg_temp protects the tables with real counts.
	tables := "pg_temp." + strings.Join(tablesOf(candidates), ", pg_temp.")
	if _, err := session.Exec(ctx, "TRUNCATE "+tables); err != nil {
		return nil, err
	}
	// No caller waits for a decision, and a timeout would end the whole replay.
	config.Timeout, config.Logger = time.Minute, slog.New(slog.DiscardHandler)
	return limiter.New(session, config)
}

// tablesOf returns the tables of the candidates' algorithms, each once.
func tablesOf(candidates []replay.Candidate) []string {
	var tables []string
	for _, a := range algorithm.Tables {
		if slices.ContainsFunc(candidates, func(c replay.Candidate) bool { return algorithm.Name(c.Policy.Algorithm).Table() == a }) {
			tables = append(tables, "pglimit_"+string(a))
		}
	}
	return tables
}
