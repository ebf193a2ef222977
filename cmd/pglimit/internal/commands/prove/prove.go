// Package prove has the subcommand that tests the limits of a database under
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
		Short: "Test your database's limits under contention",
		Long: `Test the limits of your database under contention, and compare what was admitted
with what each algorithm allows. --workers send requests of 1 to 3 units for a
few keys of each algorithm, over several connection pools, for --for in total.
  - Some requests are in transactions; half of those are rolled back.
  - Some clients close their connection before the answer.
  - The server ends some of the test's connections.
  - Some keys have several plans in turn: other limits, bursts and periods. The
    most generous of each bound them together.
  - A transaction locks the rows of some keys. Requests for other keys must be
    answered meanwhile.
  - Some keys leak in whole ticks, some have aligned windows, and some those of
    a calendar. No window may be admitted more than its limit, and answers must
    name its end.
  - Some keys are requested together, by AllowAll. What is counted of them must
    agree.
  - Some units are reserved, and then settled for less or more, cancelled or
    left to expire, and that twice now and then. Units reserved and settled may
    never be above the limit, and what is counted must fit the answers.

The columns count units, except PER SECOND, which counts requests:
  ASKED     requested
  ADMITTED  allowed to a client and, in a transaction, committed; of
            reservations the most at one time
  ALLOWED   the most that the policies admit to these keys in that time
  UNKNOWN   requested without an answer: maybe counted, but not admitted

The server's log shows the ended connections; --kill=false ends none. Behind a
pooler such as PgBouncer none are ended, because other clients may share them;
its name, version and mode are shown, as far as it tells them. A read-only
server is named before anything is sent. Two limits of a day or of an hour may
be admitted if that ends during the test. Reservations expire from --for 10s on.
In transaction mode the database's URL may need
?default_query_exec_mode=exec (or cache_describe).

The keys belong to separate policies and are deleted at the end, also after
Ctrl-C. The test uses three connections more than workers.

Exit code 0: no key was admitted more than is allowed or counted wrongly, and no
locked row delayed other keys; 1: otherwise; 3: the database failed.`,
		Example: `  pglimit prove
  pglimit prove --for 5s
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
			config.Through = func(description string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "through a pooler: %s; no connections are ended\n", description)
			}
			report, err := prove.Run(cmd.Context(), pool, config)
			done()
			if err != nil {
				return explain(cmd.Context(), err)
			}
			return out.Answer(cmd, report.Holds, report, Text(report))
		},
	}
	flags := cmd.Flags()
	cli.DurationVar(flags, &config.For, "for", 30*time.Second, "`duration` of the test, shared by the algorithms")
	flags.IntVar(&config.Workers, "workers", 32, "`number` of concurrent clients, 1 to 1000")
	flags.BoolVar(&config.Kill, "kill", true, "end some of the test's connections")
	return cmd
}

// explain marks an error of prove.Run for its exit code.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted before there was a result: %w", err)
	}
	switch {
	case errors.Is(err, prove.ErrConfig):
		return err
	case errors.Is(err, pooler.ErrStatements), errors.Is(err, prove.ErrReadOnly):
		return cli.DatabaseError(err) // also if the lost statement caused another error
	}
	return cli.LimiterError(err)
}

// progress returns functions that show the progress of a proof on a terminal.
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
				_ = bar.Finish() // failing to draw the bar is not an error
				return
			case <-tick.C:
				_ = bar.Set64(min(time.Since(start), lasts).Milliseconds() * 99 / 100)
			}
		}
	}()
	return func(a limiter.Algorithm) { bar.Describe(fmt.Sprintf("%-22s", a)) }, func() { close(stop); <-stopped }
}
