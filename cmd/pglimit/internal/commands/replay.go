package commands

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

const badShown = 3 // number of bad lines that are reported individually

func newReplay(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	var others []string
	var html, key, since, until string
	var suggests bool
	var most replay.Bounds
	cmd := &cobra.Command{
		Use:   "replay FILE|-",
		Short: "Report what policies would have done to a web access log",
		Long: `Report what a policy would have done to the requests of a web access log. Each
line is in the common or the combined format or in JSON, as Caddy writes it and
nginx with escape=json. The log may be compressed with gzip; - is standard input.
Each client address is a key, each request costs --cost, and the log's times are
the clock. Requests are decided in order of time.

--key names another field as the key:
- remote_addr, user, method, path (without the query), status, referer or
  user_agent, in all formats that have it, and host in JSON
- in JSON, a request header such as X-Api-Key, or the path of any field, such as
  request.headers.X-Api-Key; of a list, the first value
Requests without that field are skipped like lines that cannot be read.

--candidate adds a second and a third policy to compare. Its fields have the
names and the defaults of the flags.

--policy NAME, or policy=NAME in --candidate, reads a policy from the database
that DATABASE_URL or the flags name, without its overrides. A shadow policy is
replayed as if it were enforced.

--since and --until leave out earlier and later requests. Times without a zone are
in UTC. No key has counted anything before --since.

--html also writes the report as a web page: one file without scripts or
references to other sites.

Decisions are made in memory, without a database. With --database-url,
--embedded or --data-dir they are made by SQL, with the same result, on temporary
tables, which the database user must be allowed to create. DATABASE_URL alone
does not select SQL.

Lines that cannot be read are counted, reported on stderr and skipped.

` + suggestHelp + `

--max-clients and --max-requests bound the memory, also for input that never
ends. A client takes about 500 bytes and twice its name, a request up to 36 bytes.`,
		Example: `  pglimit replay --limit 60 --period 1m access.log
  pglimit replay --algorithm sliding_window_counter --limit 1000 --period 1h access.log.gz --json
  pglimit replay --limit 60 --candidate algorithm=sliding_window_log,limit=60,period=1m --html report.html access.log
  pglimit replay --policy login --candidate limit=60,period=1m --since 2026-05-17 access.log
  pglimit replay --limit 600 --period 1m --key request.headers.X-Api-Key caddy.log
  pglimit replay --suggest --policy api access.log
  zcat access.log.*.gz | pglimit replay --limit 60 --period 1m --block-for 10m -
  go run github.com/pglimit/pglimit/cmd/pglimit@latest replay --limit 60 --period 1m access.log`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			parser, err := accesslog.NewParser(key)
			if err != nil {
				return fmt.Errorf("--key: %w", err)
			}
			for name, value := range map[string]int{"max-clients": most.Clients, "max-requests": most.Requests} {
				if value < 1 || value > math.MaxInt32 {
					return fmt.Errorf("--%s is %d: must be from 1 to %d", name, value, math.MaxInt32)
				}
			}
			if most.Since, most.Until, err = readTimes(since, until); err != nil {
				return err
			}
			if suggests {
				return suggest(cmd, out, parser, args[0], most)
			}
			wanted, err := readCandidates(&flags, others)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("html") {
				if err := checkPage(html, args[0]); err != nil {
					return err
				}
			}
			var pool *pgxpool.Pool
			if db.NamedByFlags() || slices.ContainsFunc(wanted, func(c candidate) bool { return c.named != "" }) {
				if pool, err = db.Open(cmd); err != nil {
					return err
				}
				defer pool.Close()
			}
			candidates, err := findCandidates(cmd, pool, wanted)
			if err != nil {
				return err
			}
			log, err := readLog(cmd, out, parser, args[0], most)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			newLimiter := replay.InMemory
			if db.NamedByFlags() {
				session, err := openSession(cmd, pool.Config(), candidates)
				if err != nil {
					return err
				}
				defer session.Close()
				newLimiter = func(config *limiter.Config) (*limiter.Limiter, error) {
					return emptyLimiter(cmd.Context(), session, candidates, config)
				}
			}
			bar := progressBar(cmd, int64(log.Requests()*len(candidates)), "deciding")
			report, err := replay.Run(cmd.Context(), log, candidates, newLimiter, func(done int) { _ = bar.Set(done) })
			_ = bar.Close()
			if err != nil {
				return cli.LimiterError(err)
			}
			if html != "" {
				if err := writePage(html, report); err != nil {
					return err
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: the page is in %s\n", html)
			}
			return out.Print(cmd, report, reportText(report))
		},
	}
	flags.RegisterDecision(cmd)
	cmd.Flags().StringArrayVar(&others, "candidate", nil, "another `policy` to compare, such as algorithm=gcra,limit=60,period=1m,cost=1; at most twice")
	cmd.Flags().StringVar(&html, "html", "", "also write the report as a web page to this `file`, replacing it")
	cmd.Flags().BoolVar(&suggests, "suggest", false, "propose limits from the log instead of replaying --limit")
	cmd.Flags().StringVar(&key, "key", accesslog.DefaultKey, "`field` that is the key of a request, such as user, path or X-Api-Key")
	cmd.Flags().StringVar(&since, "since", "", "leave out requests before this `time` in UTC, such as 2026-05-17 or \"2026-05-17 10:05\"")
	cmd.Flags().StringVar(&until, "until", "", "leave out requests from this `time` on; a date is the end of that day")
	cmd.Flags().IntVar(&most.Clients, "max-clients", replay.DefaultClients, "largest `number` of keys in the log")
	cmd.Flags().IntVar(&most.Requests, "max-requests", replay.DefaultRequests, "largest `number` of requests in the log")
	_ = cmd.RegisterFlagCompletionFunc("candidate", cobra.NoFileCompletions)
	_ = cmd.RegisterFlagCompletionFunc("key", cobra.FixedCompletions(accesslog.KeyNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.MarkFlagFilename("html", "html")
	return cmd
}

// readTimes parses --since and --until.
func readTimes(since, until string) (from, to time.Time, err error) {
	if since != "" {
		if from, err = time.Parse(time.DateOnly, since); err != nil {
			from, err = policyfile.ParseEnd(since, time.UTC)
		}
		if err != nil {
			return from, to, fmt.Errorf("--since is %.40q: use a date such as 2026-05-17, or a time such as 2026-05-17T10:05:00Z or \"2026-05-17 10:05\"", since)
		}
	}
	if until != "" {
		if to, err = policyfile.ParseEnd(until, time.UTC); err != nil {
			return from, to, fmt.Errorf("--until is %.40q: %w", until, err)
		}
		if !to.After(from) {
			return from, to, fmt.Errorf("--until is %.40q: that is not after --since %s", until, since)
		}
	}
	return from, to, nil
}

// readLog reads the named log within bounds and reports bad lines on stderr.
func readLog(cmd *cobra.Command, out *cli.Output, parser *accesslog.Parser, name string, most replay.Bounds) (*replay.Log, error) {
	in, size, title := cmd.InOrStdin(), int64(-1), "standard input"
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		info, err := file.Stat()
		if err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in, title = file, filepath.Base(name)
	}
	bar := progressBar(cmd, size, "reading")
	defer bar.Close()
	bad := 0
	log, err := replay.Read(cmd.Context(), parser, io.TeeReader(in, bar), most, func(number int, err error) {
		bad++
		if bad <= badShown {
			out.BadLine(cmd, number, fmt.Errorf("%w: skipped", err))
		}
	})
	var large *replay.TooLargeError
	if errors.As(err, &large) {
		return nil, fmt.Errorf("%w: raise --max-%s if this machine has the memory, or replay a part of the log", err, large.What)
	}
	if err != nil {
		return nil, err
	}
	if more := bad - badShown; more > 0 {
		out.BadLine(cmd, 0, fmt.Errorf("and %s that could not be read", printable.Count(more, "more line")))
	}
	log.Name = title
	return log, nil
}

// progressBar returns a bar on stderr that only a terminal shows. A size of -1 is
// unknown: the bar then shows activity without a percentage.
func progressBar(cmd *cobra.Command, size int64, what string) *progressbar.ProgressBar {
	to := cmd.ErrOrStderr()
	if !cli.OnTerminal(to) {
		return progressbar.DefaultBytesSilent(size)
	}
	return progressbar.NewOptions64(size,
		progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(to),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
}
