package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/limiter"
)

const (
	badShown  = 3                   // how many bad lines are told one by one
	maxReplay = 30 * 24 * time.Hour // for which a session is kept
)

func newReplay(a *app) *cobra.Command {
	var flags policyFlags
	cmd := &cobra.Command{
		Use:   "replay FILE|-",
		Short: "Tell what a policy would have done to a web access log",
		Long: `Tell what a policy would have done to a web access log: in the common or the
combined format, packed by gzip or not; - is standard input. Each client address
is a key, each request costs --cost, and the log's own times are the clock, in
order of time.

It needs no database: it decides in memory. With --database-url, --embedded or
--data-dir it decides by SQL there, to the same result, on a temporary table: it
leaves nothing behind, and takes the right to make one. DATABASE_URL alone does
not make it use a database.

Lines that cannot be read are counted, told of on stderr and passed over.`,
		Example: `  pglimit replay --limit 60 --period 1m access.log
  pglimit replay --algorithm sliding_window_counter --limit 1000 --period 1h access.log.gz --json
  zcat access.log.*.gz | pglimit replay --limit 60 --period 1m --block-for 10m -
  go run github.com/pglimit/pglimit/cmd/pglimit@latest replay --limit 60 --period 1m access.log`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := flags.read()
			if err != nil {
				return err
			}
			log, err := readLog(cmd, args[0])
			if err != nil {
				return err
			}
			if len(log.events) == 0 {
				return fmt.Errorf("%s: none of its %d lines is of an access log; one looks like %s", args[0], log.bad, accesslog.Example)
			}
			decide := replayInMemory
			if a.databaseURL != "" || a.embedded.wanted() {
				decide = a.replayInSQL
			}
			report, err := decide(cmd, p, flags.cost, log)
			if err != nil {
				return err
			}
			return a.print(cmd, report, report.text(p))
		},
	}
	flags.registerNumbers(cmd, limiter.TokenBucket)
	return cmd
}

// accessLog is a log as it is replayed: who, by number, and when.
type accessLog struct {
	keys   []string
	events []accessEvent
	bad    int
}

type accessEvent struct {
	at  int64 // Unix microseconds
	key int32
}

// readLog reads a whole log and puts it in order of time; requests of one
// second stay in the order they were logged in.
func readLog(cmd *cobra.Command, name string) (*accessLog, error) {
	in := cmd.InOrStdin()
	size := int64(-1)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in = file
	}
	bar := replayBar(cmd, size, "reading")
	defer bar.Close()
	text, err := accesslog.Open(io.TeeReader(in, bar))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	log := &accessLog{}
	numbers := map[string]int32{}
	err = accesslog.Lines(text, func(number int, line []byte, long bool) error {
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		client, at, err := accesslog.Parse(string(line))
		if long {
			err = fmt.Errorf("longer than %d bytes", accesslog.MaxLine)
		}
		if err == nil && len(client) > 1024 {
			err = errors.New("a client's address of more than 1,024 bytes")
		}
		if err != nil {
			log.bad++
			if log.bad <= badShown {
				fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: line %d: %v: passed over\n", number, err)
			}
			return nil
		}
		key, known := numbers[client]
		if !known {
			key = int32(len(log.keys))
			numbers[client] = key
			log.keys = append(log.keys, client)
		}
		log.events = append(log.events, accessEvent{at.UnixMicro(), key})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if more := log.bad - badShown; more > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: and %d more lines that could not be read\n", more)
	}
	slices.SortStableFunc(log.events, func(a, b accessEvent) int { return int(min(1, max(-1, a.at-b.at))) })
	return log, nil
}

// replayBar is a bar on stderr if a person watches, else nothing. Of an unknown
// size (-1) it shows that something moves.
func replayBar(cmd *cobra.Command, size int64, what string) *progressbar.ProgressBar {
	to := cmd.ErrOrStderr()
	if !onTerminal(to) {
		return progressbar.DefaultBytesSilent(size)
	}
	return progressbar.NewOptions64(size,
		progressbar.OptionSetDescription(what), progressbar.OptionSetWriter(to),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
}

// replayInMemory decides without a database.
func replayInMemory(cmd *cobra.Command, p limiter.Policy, cost float64, log *accessLog) (*replayReport, error) {
	return replay(cmd, p, cost, log, func(config *limiter.Config) (*limiter.Limiter, error) {
		return limiter.NewMemory(config), nil
	})
}

// replayInSQL decides in the database, on a temporary table that stands before
// the policy's own in one session: nothing is left behind however it ends, and
// no janitor sees rows whose time, the log's, has long passed.
func (a *app) replayInSQL(cmd *cobra.Command, p limiter.Policy, cost float64, log *accessLog) (*replayReport, error) {
	named, err := a.open(cmd)
	if err != nil {
		return nil, err
	}
	defer named.Close()
	table := "pglimit_" + string(p.Algorithm)
	config := named.Config()
	config.MaxConns, config.MaxConnLifetime, config.MaxConnIdleTime = 1, maxReplay, maxReplay
	var connected atomic.Bool
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if connected.Swap(true) {
			return errors.New("the connection was lost, and what it had counted: run it again")
		}
		_, err := conn.Exec(ctx, fmt.Sprintf("CREATE TEMPORARY TABLE %s (LIKE %s INCLUDING ALL)", table, table))
		return err
	}
	session, err := pgxpool.NewWithConfig(cmd.Context(), config)
	if err != nil {
		return nil, database(err)
	}
	defer session.Close()
	if err := session.Ping(cmd.Context()); err != nil {
		var answer *pgconn.PgError
		if errors.As(err, &answer) && answer.Code == "42P01" {
			err = limiter.ErrNotMigrated
		}
		return nil, database(fmt.Errorf("a temporary table to decide on: %w", err))
	}
	return replay(cmd, p, cost, log, func(config *limiter.Config) (*limiter.Limiter, error) {
		return limiter.New(session, config)
	})
}

// replay asks for each request, at its time.
func replay(cmd *cobra.Command, p limiter.Policy, cost float64, log *accessLog, make func(*limiter.Config) (*limiter.Limiter, error)) (*replayReport, error) {
	var now int64
	l, err := make(&limiter.Config{Now: func() time.Time { return time.UnixMicro(now) }, DenyCacheTTL: -1})
	if err != nil {
		return nil, err
	}
	bar := replayBar(cmd, int64(len(log.events)), "deciding")
	defer bar.Close()
	report := newReplayReport(log)
	for i, e := range log.events {
		now = e.at
		r, err := l.AllowN(cmd.Context(), p, log.keys[e.key], cost)
		if err != nil {
			return nil, decisionError(err)
		}
		report.count(e, r.Allowed)
		if i%1000 == 999 {
			_ = bar.Set(i + 1)
		}
	}
	report.finish(log)
	return report, nil
}
