package commands

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/playground"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

func newPlayground(db *connect.Database, out *cli.Output) *cobra.Command {
	var addr string
	var yes bool
	cmd := &cobra.Command{
		Use:   "playground",
		Short: "Serve a web page to see limits work",
		Long: `Serve a web page that shows limits at work, until Ctrl-C. The page has:
  - every algorithm, with numbers to change
  - single requests and traffic: steady, in bursts, at a window's edge, a crowd
  - the level over time, and the headers that a client receives
  - a replay: drop an access log on the page to see what policies would have done

/limited/token_bucket?limit=5&period=10s&key=me and similar paths answer curl as
an application behind the middleware does.

Without a database it uses the embedded server. In a database that you name it
asks before it runs migrations; elsewhere than on a terminal it needs --yes. It
counts only under the policy names ` + playground.PolicyName + ` and ` + playground.PolicyName + `-gcra, and deletes the keys
that were used there when it ends. It continues to run while the database is unavailable.

By default only this machine can reach the page; with another --addr, everyone
who reaches the address can use it. A request must name the host of --addr or
the loopback address, so that other sites cannot reach the page through your
browser. With an --addr for all addresses, such as :8080, any host is accepted.`,
		Example: `  pglimit playground
  pglimit playground --addr localhost:0 --json
  pglimit playground --database-url postgres://app@localhost:5432/shop`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return servePlayground(cmd, db, out, addr, yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "run missing migrations without a question")
	cmd.Flags().StringVar(&addr, "addr", "localhost:8080", "`host:port` to listen on; port 0: any free port")
	return cmd
}

// servePlayground serves the playground on addr until the command's context ends.
func servePlayground(cmd *cobra.Command, db *connect.Database, out *cli.Output, addr string, yes bool) error {
	o, err := listen(cmd, addr, db.OpenOrEmbedded)
	if err != nil {
		return err
	}
	defer o.close()
	if err := migrateAfterAsking(cmd, o.pool, yes); err != nil {
		return err
	}
	config := playground.Config{
		Limiter: func(config *limiter.Config) (*limiter.Limiter, error) {
			return connect.NewLimiterWith(cmd, o.pool, config)
		},
		Version: programVersion(), Database: o.server, Host: o.host, Logger: o.logger,
	}
	if flags := db.EmbeddedFlags(); flags != nil {
		config.Database += ", embedded"
		config.Command = append([]string{"pglimit", "allow"}, flags...)
	}
	page, err := playground.New(config)
	if err != nil {
		return err
	}
	return o.run(cmd, out, page, "use", map[string]string{"url": o.url}, "playground: "+o.url+"\n")
}

// migrateAfterAsking runs the migrations that are missing, if any. Without yes it asks first.
// An embedded server has them all.
func migrateAfterAsking(cmd *cobra.Command, pool *pgxpool.Pool, yes bool) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	all, err := sets.Tables.Status(cmd.Context(), db)
	if err != nil {
		return cli.DatabaseError(err)
	}
	missing := 0
	for _, m := range all {
		if !m.Applied {
			missing++
		}
	}
	if missing == 0 {
		return nil
	}
	if !yes {
		c := pool.Config().ConnConfig
		what := fmt.Sprintf("database %s at %s lacks %s of pglimit", printable.Shown(c.Database), c.Host, printable.Count(missing, "migration"))
		if !cli.CanAsk(cmd) {
			return errors.New(what + ": run `pglimit migrate up`, or pass --yes")
		}
		if err := cli.Confirm(cmd, what+": run the missing ones?"); err != nil {
			return err
		}
	}
	return cli.DatabaseError(sets.Tables.Up(cmd.Context(), pool))
}
