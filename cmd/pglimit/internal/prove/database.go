package prove

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
)

const (
	requestTimeout = 10 * time.Second // of one request; long, because a busy server is not a failed one
	killEvery      = 250 * time.Millisecond
)

// server is the database of a proof, asked over connections that the proof does not end.
type server struct {
	pool         *pgxpool.Pool
	run          string // is in the names of the run's policies
	name         string // application name of the proof's connections
	behindPooler bool
}

// clock returns the time of the server's clock.
func (s *server) clock(ctx context.Context) (now time.Time, err error) {
	err = s.pool.QueryRow(ctx, "SELECT clock_timestamp()", pooler.Mode(s.pool)).Scan(&now)
	return now, err
}

// dbClient sends requests over one pool.
type dbClient struct {
	*limiter.Limiter
	pool *pgxpool.Pool
}

// newClients opens n pools, with a connection for each worker. On the server the connections
// have the application name s.name, which identifies them. Close the pools after an error too.
func (s *server) newClients(ctx context.Context, n, workers int) (all []client, err error) {
	for range n {
		config := s.pool.Config()
		config.ConnConfig.RuntimeParams["application_name"] = s.name
		config.MaxConns, config.MinConns, config.MinIdleConns = int32((workers+n-1)/n), 0, 0
		own, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return all, fmt.Errorf("connect: %w", err)
		}
		c := &dbClient{pool: own}
		all = append(all, c)
		if c.Limiter, err = limiter.New(own, &limiter.Config{Timeout: requestTimeout, DisableDenyCache: true, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			return all, err
		}
		for range config.MaxConns {
			conn, err := own.Acquire(ctx)
			if err != nil {
				return all, fmt.Errorf("open a connection for each worker: use fewer workers, or give the server more connections: %w", err)
			}
			defer conn.Release() // when all are open
		}
	}
	return all, nil
}

// InTx is client's.
func (c *dbClient) InTx(ctx context.Context, commit bool, do func(verbs.Limiter) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	tx, err := c.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	err = do(c.Limiter.InTx(tx))
	if err != nil || !commit {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// pause waits, and returns the cause if ctx ends meanwhile.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// killNowAndThen ends one of the proof's connections every killEvery, until ctx ends. A slow
// server gets longer, so that transactions end between two of these. It returns how many were
// ended.
func (s *server) killNowAndThen(ctx context.Context) (killed int64, err error) {
	for next := killEvery; ; {
		if pause(ctx, next) != nil {
			return killed, nil
		}
		began := time.Now()
		tag, err := s.pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM (
			SELECT pid FROM pg_stat_activity
			WHERE application_name = $1 AND usename = current_user AND datname = current_database()
			ORDER BY random() LIMIT 1) AS victim`, pooler.Mode(s.pool), s.name)
		if err != nil && ctx.Err() == nil {
			return killed, fmt.Errorf("end one of the proof's connections: %w", err)
		}
		killed += tag.RowsAffected()
		next = max(killEvery, 30*time.Since(began))
	}
}

const (
	cleanupTimeout = 5 * time.Second
	leaveEvery     = 10 * time.Millisecond
)

// cleanUp deletes all rows of the run. The server may still execute a request of a
// disconnected client, which would create rows later. So before it deletes, cleanUp waits until
// the proof's connections are gone. A pooler keeps idle connections for later clients, under the
// name of the last client. It deletes until no row is left.
func (s *server) cleanUp(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for deleted := int64(1); deleted > 0 && err == nil; {
		var there bool
		err = s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND NOT ($2 AND state = 'idle'))",
			pooler.Mode(s.pool), s.name, s.behindPooler).Scan(&there)
		if err == nil && !there {
			deleted, err = s.deleteAll(ctx)
		} else if err == nil && pause(ctx, leaveEvery) != nil {
			err = fmt.Errorf("the proof's connections do not end: %w", ctx.Err())
		}
	}
	if err != nil {
		return fmt.Errorf("clean up: %w; delete the rows whose policy begins with %s from pglimit's tables", err, prefix(s.run))
	}
	return nil
}

// deleteAll deletes the rows of the run, and returns their number.
func (s *server) deleteAll(ctx context.Context) (deleted int64, err error) {
	var policies []string
	for _, k := range kinds {
		policies = append(policies, policyName(s.run, k))
	}
	for _, table := range append([]algorithm.Name{"reservation"}, algorithm.Tables[:]...) {
		tag, err := s.pool.Exec(ctx, "DELETE FROM pglimit_"+string(table)+" WHERE policy = ANY ($1::text[])", pooler.Mode(s.pool), policies)
		if err != nil {
			return deleted, err
		}
		deleted += tag.RowsAffected()
	}
	return deleted, nil
}
