// Package dashboard has the subcommand that serves the page for operators.
package dashboard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/version"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/internal/dashboard/source"
	"github.com/pglimit/pglimit/internal/site"
)

// New returns the command dashboard.
func New(db *connect.Database, out *cli.Output) *cobra.Command {
	var addr string
	var write bool
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a web page for operators: policies, keys, denials",
		Long: `Serve a web page for operators, until Ctrl-C. The page has:
  - denials over time by policy, and the keys that are limited most
  - the policies in the database, and what changed in them
  - every key under every policy: units in use, blocks, reservations, overrides
  - the doctor's checks, with fixes

The page only reads. With --write it can also block, unblock and reset keys, in a
browser that opened the URL that the command prints: the URL ends with a random
token, which browsers do not send to servers as part of the address. The token
is valid until the command ends.

By default only this machine can reach the page. All its users can read it, and
with another --addr everyone who reaches the address. A request must name the
host of --addr or the loopback address, so that other sites cannot reach the page
through your browser. With an --addr for all addresses, such as :8090, any host
is accepted.

The page continues to run while the database is unavailable, and shows the data
that it had. Keys are neither logged nor in addresses that a server sees.`,
		Example: `  pglimit dashboard
  pglimit dashboard --write
  pglimit dashboard --addr localhost:0 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, db, out, addr, write) },
	}
	cmd.Flags().StringVar(&addr, "addr", "localhost:8090", "`host:port` to listen on; port 0: any free port")
	cmd.Flags().BoolVar(&write, "write", false, "let the page block, unblock and reset keys, by the URL that is printed")
	return cmd
}

// serving is the command's JSON.
type serving struct {
	URL   string `json:"url"`
	Write bool   `json:"write"`
}

// serve serves the dashboard on addr until the command's context ends.
func serve(cmd *cobra.Command, db *connect.Database, out *cli.Output, addr string, write bool) error {
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	listeners, url, err := site.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range listeners {
			_ = l.Close() // already closed if Serve ran
		}
	}()
	pool, err := db.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	server, err := connect.ServerVersion(ctx, pool)
	if err != nil {
		return err
	}
	server, _, _ = strings.Cut(server, " ") // without the package's name
	logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	data, err := source.New(ctx, pool, connect.KeySecret(), logger)
	if err != nil {
		return cli.LimiterError(err)
	}
	defer data.Close()
	config := dashboard.Config{
		Source: data, Version: version.Program(), Database: connect.Describe(pool) + ", PostgreSQL " + server,
		Hashed: connect.KeySecret() != nil, Logger: logger,
	}
	if config.Host, _, err = net.SplitHostPort(addr); err != nil {
		return err
	}
	if write {
		config.Token = dashboard.NewToken()
		url += "/#token=" + config.Token
	}
	page, err := dashboard.New(config)
	if err != nil {
		return err
	}
	if !site.Loopback(config.Host) {
		fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: listening on %v: everyone who reaches that address can read the page\n", listeners[0].Addr())
	}
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(ctx, listeners...) }()
	text := "dashboard: " + url + "\n"
	if write {
		text += "Everyone who has this URL can block, unblock and reset keys.\n"
	}
	err = out.Print(cmd, serving{url, write}, text)
	if err != nil {
		stop()
	}
	return errors.Join(err, <-ended)
}
