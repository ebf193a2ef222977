package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/prove"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/limiter"
)

// The requests of the demo for each algorithm: a burst at once, then one at a
// time, which shows how units become available again.
const (
	burstRequests = 8
	laterRequests = 10
	demoPace      = 150 * time.Millisecond
	demoLimit     = 5
	demoPeriod    = time.Second
)

// The duration and the number of workers of the contention test.
const (
	proofTime    = 2 * time.Second
	proofWorkers = 8
)

func newDemo(db *connect.Database, out *cli.Output) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Send one burst through every algorithm",
		Long: fmt.Sprintf(`Show all algorithms in less than 30 seconds. The demo has three parts:

1. It sends the same requests through every algorithm, each with a limit of %d
   per %v: %d at once, then %d more, one every %v. It draws which ones are
   allowed, delayed and denied.
2. It spends units in a transaction, which it rolls back.
3. It tests all algorithms under contention for %v; pglimit prove does the same
   for longer.

It deletes its own keys at the end. In a database that you name it asks before it
runs migrations; elsewhere than on a terminal it needs --yes.`, demoLimit, duration.Format(demoPeriod), burstRequests, laterRequests, duration.Format(demoPace), proofTime),
		Example: `  pglimit demo
  pglimit demo --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, err := db.OpenOrEmbedded(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			if err := migrateAfterAsking(cmd, pool, yes); err != nil {
				return err
			}
			l, err := connect.NewLimiter(cmd, pool)
			if err != nil {
				return err
			}
			to := cmd.OutOrStdout()
			if out.JSON {
				to = io.Discard
			}
			seen, err := runDemo(cmd.Context(), pool, l, &stage{w: to, live: cli.OnTerminal(to)})
			if err != nil {
				return err
			}
			return out.Answer(cmd, seen.Proof.Holds, seen, demoNext)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "run missing migrations without a question")
	return cmd
}

const demoNext = `
Next:
  pglimit allow --help    your own limits, from a shell
  pglimit prove           the contention test on your own server, for 30 seconds
  README.md               the library: a limit in your transaction
  pglimit playground      all algorithms on a web page, with numbers to change
`

// demoResult is the demo's JSON.
type demoResult struct {
	Bursts []burst      `json:"bursts"`
	Spend  []spending   `json:"spend"`
	Proof  prove.Report `json:"proof"`
}

// burst has the answers of one algorithm.
type burst struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Allowed   int               `json:"allowed"`
	Denied    int               `json:"denied"`
	Delayed   int               `json:"delayed"`
	Results   []limiter.Result  `json:"results"`
}

// spending is the units spent at one moment, such as inside the transaction.
type spending struct {
	Moment string  `json:"moment"`
	Spent  float64 `json:"spent"`
}

// runDemo runs the whole demo on the stage.
func runDemo(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter, s *stage) (d demoResult, err error) {
	s.printf("The same requests through every algorithm: %d at once, then one every %v;\nlimit %d per %v.  + allowed  ~ allowed later  - denied\n\n",
		burstRequests, duration.Format(demoPace), demoLimit, duration.Format(demoPeriod))
	for _, algorithm := range limiter.Algorithms() {
		p := limiter.Policy{Name: "demo", Algorithm: algorithm, Limit: demoLimit, Period: demoPeriod}
		b, err := sendBurst(ctx, l, p, fmt.Sprint("burst-", time.Now().UnixNano()), s)
		if err != nil {
			return d, err
		}
		d.Bursts = append(d.Bursts, b)
	}
	s.printf("\n120 units spent in a transaction that is rolled back:\n\n")
	if d.Spend, err = spendAndRollBack(ctx, pool, l); err != nil {
		return d, cli.LimiterError(err)
	}
	for _, moment := range d.Spend {
		s.printf("  %-24s %s spent\n", moment.Moment, cli.Units(moment.Spent))
	}
	s.printf("\nAll algorithms under contention for %v, in units; some clients are killed and some\ntransactions rolled back:\n\n", proofTime)
	if s.err != nil {
		return d, s.err
	}
	if d.Proof, err = prove.Run(ctx, pool, prove.Config{For: proofTime, Workers: proofWorkers, Kill: true}); err != nil {
		return d, cli.LimiterError(err)
	}
	s.printf("%s", proofText(d.Proof))
	return d, s.err
}

// sendBurst sends the requests of one algorithm and draws the answers.
func sendBurst(ctx context.Context, l *limiter.Limiter, p limiter.Policy, key string, s *stage) (b burst, err error) {
	b.Algorithm = p.Algorithm
	defer func() { // after Ctrl-C too
		err = errors.Join(err, cli.LimiterError(l.Reset(context.WithoutCancel(ctx), p, key)))
	}()
	ticker := time.NewTicker(demoPace)
	defer ticker.Stop()
	for i := range burstRequests + laterRequests {
		if i >= burstRequests {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return b, fmt.Errorf("interrupted: %w", ctx.Err())
			}
		}
		r, err := l.Allow(ctx, p, key)
		if err != nil {
			return b, cli.LimiterError(err)
		}
		b.add(r)
		if err := s.draw(b.line()); err != nil {
			return b, err
		}
	}
	return b, s.finish(b.line() + b.totals())
}

// add counts an answer.
func (b *burst) add(r limiter.Result) {
	switch {
	case !r.Allowed:
		b.Denied++
	case r.Delay > 0:
		b.Delayed++
	default:
		b.Allowed++
	}
	b.Results = append(b.Results, r)
}

// line returns the burst in one line: the level as a bar, then a mark for each
// answer, with a gap after the requests sent at once.
func (b *burst) line() string {
	var marks strings.Builder
	var level float64
	for i, r := range b.Results {
		if i == burstRequests {
			marks.WriteByte(' ')
		}
		marks.WriteByte(mark(r))
		level = r.Level
	}
	full := min(demoLimit, max(0, int(math.Ceil(level-1e-6))))
	bar := strings.Repeat("#", full) + strings.Repeat(".", demoLimit-full)
	return fmt.Sprintf("  %-22s [%s] %4.1f  %-*s", b.Algorithm, bar, level, burstRequests+1+laterRequests, marks.String())
}

func mark(r limiter.Result) byte {
	switch {
	case !r.Allowed:
		return '-'
	case r.Delay > 0:
		return '~'
	}
	return '+'
}

// totals returns the end of a finished burst's line.
func (b *burst) totals() string {
	return fmt.Sprintf("  %d allowed, %d delayed, %d denied", b.Allowed, b.Delayed, b.Denied)
}

// spendAndRollBack spends 120 of a budget of 1,000 in a transaction that does not
// commit.
func spendAndRollBack(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter) ([]spending, error) {
	budget := limiter.Policy{Name: "demo-budget", Algorithm: limiter.FixedWindow, Limit: 1000, Period: 30 * 24 * time.Hour}
	key := fmt.Sprint("account-", time.Now().UnixNano())
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return nil, errors.Join(limiter.ErrUnavailable, err)
	}
	defer tx.Rollback(ctx)
	inside, err := l.InTx(tx).AllowN(ctx, budget, key, 120)
	if err != nil {
		return nil, err
	}
	if err := tx.Rollback(ctx); err != nil {
		return nil, errors.Join(limiter.ErrUnavailable, err)
	}
	after, err := l.Check(ctx, budget, key, 0)
	if err != nil {
		return nil, err
	}
	return []spending{{"inside the transaction", inside.Level}, {"after its rollback", after.Level}}, nil
}

// stage draws the demo. On a terminal it redraws the current line as it changes;
// elsewhere it writes each line once it is finished. It keeps its first error.
type stage struct {
	w    io.Writer
	live bool
	err  error
}

func (s *stage) printf(format string, args ...any) {
	if s.err == nil {
		_, s.err = fmt.Fprintf(s.w, format, args...)
	}
}

// restartLine returns to the start of the line and clears it.
const restartLine = "\r" + clearLine

// draw replaces the current line with one that may still change.
func (s *stage) draw(line string) error {
	if s.live {
		s.printf("%s%s", restartLine, line)
	}
	return s.err
}

// finish replaces the current line with its final form.
func (s *stage) finish(line string) error {
	if s.live {
		s.printf("%s", restartLine)
	}
	s.printf("%s\n", line)
	return s.err
}
