// Package playground has the subcommand that serves the playground.
package playground

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
	"github.com/pglimit/pglimit/internal/playground"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// New returns the command playground.
func New(db *connect.Database, out *cli.Output) *cobra.Command {
	var addr string
	cmd := &cobra.Command{
		Use:   "playground",
		Short: "Serve a web page to see limits work",
		Long: `Serve a web page on which limits can be seen at work, until Ctrl-C: every
algorithm with its numbers to change, asks one by one or in bursts, what is held
as it leaks, and the headers that a client would see. An access log dropped on
the page tells what policies would have done. Beside the page,
/limited/token_bucket?limit=5&period=10s&key=me and the like answer curl as an
application behind the middleware would.

Without a database it takes the embedded server. It runs the migrations, counts
under the policy name ` + playground.PolicyName + ` alone, and forgets the keys that were used there
when it ends. A database that goes away does not end it.

Whoever reaches the address can use the page: it listens on this machine alone
unless --addr says otherwise. Requests have to name the host of --addr or the
loopback's, so that other sites' names cannot reach it through a browser; when it
listens on all addresses, as with --addr :8080, they may name any.`,
		Example: `  pglimit playground
  pglimit playground --addr localhost:0 --json
  pglimit playground --database-url postgres://app@localhost:5432/shop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, db, out, addr) },
	}
	cmd.Flags().StringVar(&addr, "addr", "localhost:8080", "`host:port` to listen on; port 0 is any that is free")
	return cmd
}

// serving is the command's JSON.
type serving struct {
	URL string `json:"url"`
}

// serve serves the playground on addr until the command's context ends.
func serve(cmd *cobra.Command, db *connect.Database, out *cli.Output, addr string) error {
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	listeners, url, err := playground.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer func() {
		for _, l := range listeners {
			_ = l.Close() // unless Serve has
		}
	}()
	pool, err := db.OpenOrEmbedded(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return cli.DatabaseError(err)
	}
	config := playground.Config{
		Limiter: func(config *limiter.Config) (*limiter.Limiter, error) { return connect.NewLimiterWith(pool, config) },
		Version: version.Program(),
		Logger:  slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
	}
	if config.Host, _, err = net.SplitHostPort(addr); err != nil {
		return err
	}
	server, err := connect.ServerVersion(ctx, pool)
	if err != nil {
		return err
	}
	server, _, _ = strings.Cut(server, " ") // without the packager's addition
	config.Database = "PostgreSQL " + server
	if flags := db.EmbeddedFlags(); flags != nil {
		config.Database += ", embedded"
		config.Command = append([]string{"pglimit", "allow"}, flags...)
	}
	page, err := playground.New(config)
	if err != nil {
		return err
	}
	if !playground.Loopback(config.Host) {
		fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: listening on %v: whoever reaches that address can use the page\n", listeners[0].Addr())
	}
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(ctx, listeners...) }()
	err = out.Print(cmd, serving{url}, "playground: "+url+"\n")
	if err != nil {
		stop()
	}
	return errors.Join(err, <-ended)
}
