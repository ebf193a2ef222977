package prove

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
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

// dbClient sends requests over one pool.
type dbClient struct {
	*limiter.Limiter
	pool *pgxpool.Pool
}

// newClients opens n pools to the database of pool, with a connection for each worker. On the
// server the connections have the application name name, which identifies them.
func newClients(ctx context.Context, pool *pgxpool.Pool, name string, n, workers int) (all []client, err error) {
	defer func() {
		if err != nil {
			closeAll(all)
		}
	}()
	for range n {
		config := pool.Config()
		config.ConnConfig.RuntimeParams["application_name"] = name
		config.MaxConns, config.MinConns, config.MinIdleConns = int32((workers+n-1)/n), 0, 0
		own, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return all, fmt.Errorf("connect: %w", err)
		}
		c := &dbClient{pool: own}
		all = append(all, c)
		if err := connectAll(ctx, own); err != nil {
			return all, err
		}
		if c.Limiter, err = limiter.New(own, &limiter.Config{Timeout: requestTimeout, DisableDenyCache: true, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			return all, err
		}
	}
	return all, nil
}

// connectAll opens all of a pool's connections in advance.
func connectAll(ctx context.Context, pool *pgxpool.Pool) error {
	most := int(pool.Config().MaxConns)
	var held []*pgxpool.Conn
	defer func() {
		for _, c := range held {
			c.Release()
		}
	}()
	for range most {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("open a connection for each worker: use fewer workers, or give the server more connections: %w", err)
		}
		held = append(held, c)
	}
	return nil
}

func closeAll(clients []client) {
	for _, c := range clients {
		c.(*dbClient).pool.Close()
	}
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

// killNowAndThen lets the server end one of the connections called name every killEvery. A slow
// server gets longer, so that transactions end between two of these. It returns how many were
// ended.
func killNowAndThen(ctx context.Context, pool *pgxpool.Pool, name string) (killed int64, err error) {
	for pause := killEvery; ; {
		select {
		case <-ctx.Done():
			return killed, nil
		case <-time.After(pause):
		}
		began := time.Now()
		tag, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM (
			SELECT pid FROM pg_stat_activity
			WHERE application_name = $1 AND usename = current_user AND datname = current_database()
			ORDER BY random() LIMIT 1) AS victim`, pooler.Mode(pool), name)
		if err != nil && ctx.Err() == nil {
			return killed, fmt.Errorf("end one of the proof's connections: %w", err)
		}
		killed += tag.RowsAffected()
		pause = max(killEvery, 30*time.Since(began))
	}
}

const (
	cleanupTimeout = 5 * time.Second
	leaveEvery     = 10 * time.Millisecond
)

// Queries for whether connections of the proof still exist, and whether any is busy. A
// pooler keeps idle connections for later clients, under the name of the last client.
const (
	stillThere = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1)"
	stillBusy  = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND state <> 'idle')"
)

// cleanUp deletes all rows of the run. The server may still execute a request of a
// disconnected client, which would create rows later. So cleanUp first waits until the
// connections called name are gone or, behind a pooler, idle. Then it deletes until
// no row is left.
func cleanUp(ctx context.Context, pool *pgxpool.Pool, name, run string, behindPooler bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	inTheWay := stillThere
	if behindPooler {
		inTheWay = stillBusy
	}
	for {
		err := untilFalse(ctx, pool, inTheWay, name)
		var deleted int64
		if err == nil {
			deleted, err = deleteAll(ctx, pool, run)
		}
		if err != nil {
			return fmt.Errorf("clean up: %w; %s", err, byHand(run))
		}
		if deleted == 0 {
			return nil
		}
	}
}

// deleteAll deletes the rows of the run, and returns their number.
func deleteAll(ctx context.Context, pool *pgxpool.Pool, run string) (deleted int64, err error) {
	tables := []string{"pglimit_reservation"}
	for _, a := range algorithm.Tables {
		tables = append(tables, "pglimit_"+string(a))
	}
	for _, table := range tables {
		tag, err := pool.Exec(ctx, "DELETE FROM "+pgx.Identifier{table}.Sanitize()+" WHERE policy = ANY ($1::text[])",
			pooler.Mode(pool), policyNames(run))
		if err != nil {
			return deleted, err
		}
		deleted += tag.RowsAffected()
	}
	return deleted, nil
}

// byHand returns the instruction for the user if cleaning up failed.
func byHand(run string) string {
	return fmt.Sprintf("delete the rows whose policy begins with %s from pglimit's tables", prefix(run))
}

// untilFalse waits until a query about the connections called name returns false.
func untilFalse(ctx context.Context, pool *pgxpool.Pool, query, name string) error {
	tick := time.NewTicker(leaveEvery)
	defer tick.Stop()
	for {
		var is bool
		err := pool.QueryRow(ctx, query, pooler.Mode(pool), name).Scan(&is)
		if err != nil || !is {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the proof's connections do not end: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// ErrReadOnly is in the error for a server that refuses to write.
var ErrReadOnly = errors.New("nothing was tested")

// readWrite returns an ErrReadOnly if the server refuses to write. It names the server, the
// reason and the next step.
func readWrite(ctx context.Context, pool *pgxpool.Pool) error {
	var standby bool
	var readOnly, setBy string
	err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery(), setting, source
		FROM pg_settings WHERE name = 'default_transaction_read_only'`, pooler.Mode(pool)).Scan(&standby, &readOnly, &setBy)
	if err != nil {
		return fmt.Errorf("ask whether the server is read-only: %w", err)
	}
	to := pool.Config().ConnConfig
	return judgeReadOnly(fmt.Sprintf("database %s on %s", to.Database, net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port)))), standby, readOnly == "on", setBy)
}

func judgeReadOnly(server string, standby, readOnly bool, setBy string) error {
	switch {
	case standby:
		return fmt.Errorf("%w: %s is read-only, because the server is a standby: connect to the primary "+
			"(several hosts and target_session_attrs=read-write in the URL find it)", ErrReadOnly, server)
	case readOnly:
		return fmt.Errorf("%w: %s is read-only, because default_transaction_read_only is on (set by: %s): turn it off, or add "+
			"options=-cdefault_transaction_read_only%%3Doff to the URL", ErrReadOnly, server, setBy)
	}
	return nil
}
