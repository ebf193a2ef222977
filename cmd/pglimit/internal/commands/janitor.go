package commands

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

func newJanitor(db *connect.Database, out *cli.Output) *cobra.Command {
	var once bool
	var config janitor.Config
	cmd := &cobra.Command{
		Use:   "janitor",
		Short: "Delete empty rows and give expired reservations back",
		Long: `Delete the rows of keys that have nothing counted, and give expired reservations
back. It sweeps at once and then every --interval, until Ctrl-C, and logs each
sweep on stdout. Deleting an empty row changes no decision: it only frees space.
An empty row is deleted within an hour and one sweep. Rows in use are examined
once an hour.

Any number of janitors may run, also in applications: a lease in the database
lets one of them sweep at a time. A failed sweep is logged; the next one runs
after the interval.

With --once it sweeps once and reports what it removed. If another janitor has
the lease, it removes nothing, says so and exits with code 0.`,
		Example: `  pglimit janitor --interval 5m
  pglimit janitor --once --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, f := range []string{"interval", "batch-size", "lease"} {
				if v := cmd.Flag(f); v.Changed && (v.Value.String() == "0" || v.Value.String() == "0s") {
					return fmt.Errorf("--%s is 0: leave it out for the default", f)
				}
			}
			if once {
				return sweepOnce(cmd, db, out, config)
			}
			return sweepUntilInterrupted(cmd, db, out, config)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "sweep once and exit")
	cli.DurationVar(flags, &config.Interval, "interval", 0, "`time` from one sweep to the next, 1ms to 24h, varied by up to 10%; default: 1m")
	flags.IntVar(&config.BatchSize, "batch-size", 0, "most `rows` that one statement examines, 1 to 10000; default: 1000")
	cli.DurationVar(flags, &config.Lease, "lease", 0, "`time` after which another janitor replaces one that disappeared, 1s to 72h; default: three intervals, at least 30s")
	return cmd
}

// swept is the JSON of --once.
type swept struct {
	Removed             int64            `json:"removed"`
	ByTable             map[string]int64 `json:"by_table"`
	Kept                int64            `json:"kept"`
	ReservationsExpired int64            `json:"reservations_expired"`
	HeldElsewhere       bool             `json:"held_elsewhere"`
}

// sweepOnce sweeps once and prints what it removed.
func sweepOnce(cmd *cobra.Command, db *connect.Database, out *cli.Output, config janitor.Config) error {
	// Stdout has only the result, so warnings go to stderr.
	config.Logger = cli.Warnings(cmd.ErrOrStderr(), slog.LevelError)
	pool, err := db.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	j, err := janitor.New(pool, &config)
	if err != nil {
		return err
	}
	removed, err := j.Sweep(cmd.Context())
	if err != nil {
		return cli.DatabaseError(err)
	}
	result := swept{removed.Total(), map[string]int64{}, removed.Kept, removed.ReservationsExpired, removed.HeldElsewhere}
	maps.Copy(result.ByTable, removed.ByTable)
	return out.Print(cmd, result, result.text())
}

func (s swept) text() string {
	if s.HeldElsewhere {
		return "nothing removed: another janitor has the lease\n"
	}
	var text strings.Builder
	fmt.Fprintln(&text, "TABLE\tREMOVED")
	for _, name := range slices.Sorted(maps.Keys(s.ByTable)) {
		fmt.Fprintf(&text, "%s\t%d\n", name, s.ByTable[name])
	}
	fmt.Fprintf(&text, "all\t%d\n", s.Removed)
	if s.Kept > 0 {
		fmt.Fprintf(&text, "%d in use were examined and kept\n", s.Kept)
	}
	if s.ReservationsExpired > 0 {
		fmt.Fprintf(&text, "%s given back\n", printable.Count(s.ReservationsExpired, "expired reservation"))
	}
	return cli.Aligned(text.String())
}

// sweepUntilInterrupted sweeps until Ctrl-C and logs each sweep on stdout.
func sweepUntilInterrupted(cmd *cobra.Command, db *connect.Database, out *cli.Output, config janitor.Config) error {
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	lines := &reportingWriter{w: cmd.OutOrStdout(), failed: stop}
	options := &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: plainLog}
	config.Logger = slog.New(slog.NewTextHandler(lines, options))
	if out.JSON {
		config.Logger = slog.New(slog.NewJSONHandler(lines, options))
	}
	pool, err := db.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	j, err := janitor.New(pool, &config)
	if err != nil {
		return err
	}
	// The janitor logs a failed sweep and continues. Report a failure at the start,
	// such as missing tables, as an error.
	l, err := connect.NewLimiter(cmd, pool)
	if err != nil {
		return err
	}
	p := limiter.Policy{Name: "janitor", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Second}
	if _, err := l.Check(ctx, p, "start", 0); err != nil {
		return cli.LimiterError(err)
	}
	if err := j.Run(ctx); err != nil {
		return err
	}
	if cmd.Context().Err() != nil {
		return nil // Ctrl-C is the normal end
	}
	return context.Cause(ctx)
}

// plainLog adapts log lines to a command: sweeps are INFO, not DEBUG, and no line
// names the program.
func plainLog(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.LevelKey && a.Value.Any() == slog.LevelDebug {
		a.Value = slog.AnyValue(slog.LevelInfo)
	}
	if a.Key == slog.MessageKey {
		a.Value = slog.StringValue(strings.TrimPrefix(a.Value.String(), "pglimit: "))
	}
	return a
}

// reportingWriter passes write errors to failed, because a logger ignores them.
type reportingWriter struct {
	w      io.Writer
	failed context.CancelCauseFunc
}

func (w *reportingWriter) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.w, printable.Escape(string(p)))
	if err != nil {
		w.failed(err)
	}
	return len(p), err
}
