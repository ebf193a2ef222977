package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
)

// connectTimeout holds unless the URL has a connect_timeout.
const connectTimeout = 10 * time.Second

// open connects to the database that the flags or, without them, DATABASE_URL
// name, and says on stderr which one that is. The caller closes the pool.
func (a *app) open(cmd *cobra.Command) (*pgxpool.Pool, error) {
	return a.openOr(cmd, noDatabase)
}

// fallback is what openOr does where no database is named.
type fallback int

const (
	noDatabase       fallback = iota // it fails and names the ways there are
	embeddedDatabase                 // it takes the embedded server
)

// openOr is open with a choice of what holds where no database is named.
func (a *app) openOr(cmd *cobra.Command, otherwise fallback) (*pgxpool.Pool, error) {
	if err := a.embedded.check(cmd, a.databaseURL, otherwise); err != nil {
		return nil, err
	}
	if a.embedded.wanted() || otherwise == embeddedDatabase && !a.databaseNamed() {
		return a.openEmbedded(cmd)
	}
	address, from := a.databaseURL, "--database-url"
	if address == "" {
		address, from = os.Getenv("DATABASE_URL"), "DATABASE_URL"
	}
	if address == "" {
		return nil, errors.New("no database is named: set DATABASE_URL or pass --database-url, such as postgres://app@localhost:5432/shop; or pass --embedded, or --data-dir with a directory, for a PostgreSQL that pglimit runs itself")
	}
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %s; take a form such as postgres://user:password@host:5432/database", from, unparsable(err))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "database: %s\n", describe(cfg.ConnConfig))
	return connect(cmd.Context(), cfg)
}

// databaseNamed tells whether the flags or the environment name any database.
func (a *app) databaseNamed() bool {
	return a.embedded.wanted() || a.databaseURL != "" || os.Getenv("DATABASE_URL") != ""
}

// connect opens a pool that answers; an error is the database's.
func connect(ctx context.Context, cfg *pgxpool.Config) (*pgxpool.Pool, error) {
	c := cfg.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "pglimit"
	}
	pool, err := openPool(ctx, cfg)
	if err != nil {
		return nil, cli.DatabaseError(fmt.Errorf("connect: %w", err))
	}
	return pool, nil
}

func openPool(ctx context.Context, cfg *pgxpool.Config) (*pgxpool.Pool, error) {
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// describe names the database without the password.
func describe(c *pgx.ConnConfig) string {
	at := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if strings.HasPrefix(c.Host, "/") { // a socket's directory
		at = fmt.Sprintf("%s port %d", c.Host, c.Port)
	}
	return fmt.Sprintf("%s at %s as %s", cmp.Or(c.Database, c.User), at, c.User)
}

// unparsable says why a connection string cannot be read without quoting any
// of it: where its syntax is broken, nobody can tell which part the password is.
func unparsable(err error) string {
	var parse *pgconn.ParseConfigError
	if !errors.As(err, &parse) {
		return "not a connection string"
	}
	blank := *parse
	blank.ConnString = ""
	text := strings.TrimPrefix(blank.Error(), "cannot parse ``: ")
	reason, _, _ := strings.Cut(text, " (") // what stands in brackets may quote it
	return reason
}
