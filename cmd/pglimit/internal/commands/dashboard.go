package commands

import (
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
)

func newDashboard(db *connect.Database, out *cli.Output) *cobra.Command {
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

The page only reads. With --write it can also change policies and overrides, and
block, unblock and reset keys, in a browser that opened the URL that the command prints: the URL ends with a random
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
		RunE: func(cmd *cobra.Command, _ []string) error { return serveDashboard(cmd, db, out, addr, write) },
	}
	cmd.Flags().StringVar(&addr, "addr", "localhost:8090", "`host:port` to listen on; port 0: any free port")
	cmd.Flags().BoolVar(&write, "write", false, "let the page change policies, overrides and keys, by the URL that is printed")
	return cmd
}

// serveDashboard serves the dashboard on addr until the command's context ends.
func serveDashboard(cmd *cobra.Command, db *connect.Database, out *cli.Output, addr string, write bool) error {
	o, err := listen(cmd, addr, db.Open)
	if err != nil {
		return err
	}
	defer o.close()
	data, err := dashboard.Open(cmd.Context(), o.pool, connect.KeySecret(), o.logger)
	if err != nil {
		return cli.LimiterError(err)
	}
	defer data.Close()
	config := dashboard.Config{
		Source: data, Version: programVersion(), Database: connect.Describe(o.pool) + ", " + o.server,
		Hashed: connect.KeySecret() != nil, Host: o.host, Logger: o.logger,
	}
	text := ""
	if write {
		config.Token = dashboard.NewToken()
		o.url += "/#token=" + config.Token
		text = "Everyone who has this URL can change policies, overrides and keys.\n"
	}
	page, err := dashboard.New(config)
	if err != nil {
		return err
	}
	result := struct {
		URL   string `json:"url"`
		Write bool   `json:"write"`
	}{o.url, write}
	return o.run(cmd, out, page, "read", result, "dashboard: "+o.url+"\n"+text)
}
