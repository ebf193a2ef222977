package commands

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
)

// opened is what a page needs: an address and a database.
type opened struct {
	listeners []net.Listener
	host, url string
	pool      *pgxpool.Pool
	server    string // such as "PostgreSQL 15.4"
	logger    *slog.Logger
}

// listen listens on addr and opens the database. The caller closes what it returns.
func listen(cmd *cobra.Command, addr string, open func(*cobra.Command) (*pgxpool.Pool, error)) (_ *opened, err error) {
	o := &opened{logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if o.listeners, o.url, err = webpage.Listen(cmd.Context(), addr); err != nil {
		return nil, err
	}
	if o.host, _, err = net.SplitHostPort(addr); err != nil {
		return nil, err
	}
	if o.pool, err = open(cmd); err != nil {
		return nil, err
	}
	version, err := connect.ServerVersion(cmd.Context(), o.pool)
	version, _, _ = strings.Cut(version, " ") // without the package's name
	o.server = "PostgreSQL " + version
	return o, err
}

func (o *opened) close() {
	if o.pool != nil {
		o.pool.Close()
	}
	for _, l := range o.listeners {
		_ = l.Close() // already closed if Serve ran
	}
}

// run prints the result and serves the page until the command's context ends. use is what
// those who reach the page can do with it.
func (o *opened) run(cmd *cobra.Command, out *cli.Output, page interface {
	Serve(context.Context, ...net.Listener) error
}, use string, result any, text string) error {
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	if !webpage.Loopback(o.host) {
		fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: listening on %v: everyone who reaches that address can %s the page\n", o.listeners[0].Addr(), use)
	}
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(ctx, o.listeners...) }()
	err := out.Print(cmd, result, text)
	if err != nil {
		stop()
	}
	return errors.Join(err, <-ended)
}
