// Package prove has the subcommand that puts the limits of a database under
// contention.
package prove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/prove"
	"github.com/pglimit/pglimit/limiter"
)

// New returns the command prove.
func New(db *connect.Database, out *cli.Output) *cobra.Command {
	config := prove.Config{}
	cmd := &cobra.Command{
		Use:   "prove",
		Short: "Put your database's limits under contention, and count",
		Long: `Put the limits of your database under contention, and hold what was admitted to
what each algorithm allows: for --for in all, --workers ask for a few keys of
each algorithm in turn, over several pools of connections, in asks of 1 to 3
units. Some ask in transactions, of which half are rolled back; some close their
connection before they have an answer; and the server is told now and then to
end one of the proof's own connections. Some keys are asked for under two limits
in turn, as after a change of plan: the larger limit bounds both together. The
rows of some keys are held by a transaction until others were asked for: those
keys must be answered meanwhile.

ADMITTED is what clients were told they may, and what was committed; ALLOWED what
the policies admit to these keys in that time; UNKNOWN was asked by clients that
never had an answer, so it may be counted but was not admitted. All are units;
PER SECOND are asks. The server's log shows the connections that were ended;
--kill=false ends none. Behind a pooler such as PgBouncer none are ended either,
as others may share them. In transaction mode it may need
?default_query_exec_mode=exec (or cache_describe) in the database's URL.

The keys belong to policies of its own and are deleted at the end, also after
Ctrl-C. It takes as many connections as workers, and three more.

Exit code 0: nothing was admitted beyond what is allowed, and no held row stalled
other keys; 1: it was, or one did; 3: the database failed.`,
		Example: `  pglimit prove
  pglimit prove --for 5m --workers 100 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Validate(); err != nil {
				return err
			}
			pool, err := db.Open(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			show, done := progress(cmd.ErrOrStderr(), config.For)
			config.Progress = show
			report, err := prove.Run(cmd.Context(), pool, config)
			done()
			if err != nil {
				return explain(cmd.Context(), err)
			}
			return out.Answer(cmd, report.Holds, report, Text(report))
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&config.For, "for", 30*time.Second, "`time` that it takes, shared by the algorithms")
	flags.IntVar(&config.Workers, "workers", 32, "how `many` ask at once, 1 to 1000")
	flags.BoolVar(&config.Kill, "kill", true, "end connections of its own")
	return cmd
}

// explain marks an error of a proof for its exit code.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted before there was a result: %w", err)
	}
	switch {
	case errors.Is(err, prove.ErrConfig):
		return err
	case errors.Is(err, pooler.ErrStatements):
		return cli.DatabaseError(err) // whichever error the lost statement caused
	}
	return cli.LimiterError(err)
}

// progress returns functions that show on a terminal how far a proof is.
func progress(w io.Writer, lasts time.Duration) (show func(limiter.Algorithm), done func()) {
	if !cli.OnTerminal(w) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions64(lasts.Milliseconds(),
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionClearOnFinish())
	start := time.Now()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				_ = bar.Finish() // a bar that cannot be drawn is no failure
				return
			case <-tick.C:
				_ = bar.Set64(min(time.Since(start), lasts).Milliseconds() * 99 / 100)
			}
		}
	}()
	return func(a limiter.Algorithm) { bar.Describe(fmt.Sprintf("%-22s", a)) }, func() { close(stop); <-stopped }
}
