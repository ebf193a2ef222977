package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/internal/prove"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// What the demo sends against each algorithm: a burst at once, then one ask at
// a time, so that it shows how each gives back.
const (
	demoBurstAsks = 8
	demoLaterAsks = 10
	demoPace      = 150 * time.Millisecond
	demoLimit     = 5
	demoPeriod    = time.Second
	demoProof     = 2 * time.Second
	demoWorkers   = 8
)

func newDemo(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Send one burst through every algorithm",
		Long: fmt.Sprintf(`Send the same asks through every algorithm, each with a limit of %d per %v: %d at
once, then %d more, one every %v; draw what is allowed, delayed and denied as it
happens. Then spend in a transaction that is rolled back, and put all algorithms
under contention for %v, as pglimit prove does for longer.

It runs the migrations, and forgets its own keys when it is done. It takes less
than 30 seconds.`, demoLimit, demoPeriod, demoBurstAsks, demoLaterAsks, demoPace, demoProof),
		Example: `  pglimit demo
  pglimit demo --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, err := a.db.OpenOrEmbedded(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			if err := migrations.Up(cmd.Context(), pool); err != nil {
				return cli.DatabaseError(err)
			}
			l, err := connect.NewLimiter(pool)
			if err != nil {
				return err
			}
			to := cmd.OutOrStdout()
			if a.out.JSON {
				to = io.Discard
			}
			show, err := runDemo(cmd.Context(), pool, l, &stage{w: to, live: cli.OnTerminal(to)})
			if err != nil {
				return err
			}
			return a.out.Answer(cmd, show.Proof.Holds, show, demoNext)
		},
	}
}

const demoNext = `
Next:
  pglimit allow --help    limits of your own, from a shell
  pglimit prove           this contention on a server of yours, for 30 seconds
  README.md               the library: a limit in your transaction
  pglimit playground      all of it on a web page, with its numbers to change
`

// demo is what was seen.
type demo struct {
	Bursts []demoBurst    `json:"bursts"`
	Spend  []demoSpending `json:"spend"`
	Proof  prove.Report   `json:"proof"`
}

type demoBurst struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Allowed   int               `json:"allowed"`
	Denied    int               `json:"denied"`
	Delayed   int               `json:"delayed"`
	Results   []limiter.Result  `json:"results"`
}

type demoSpending struct {
	Moment string  `json:"moment"`
	Spent  float64 `json:"spent"`
}

// runDemo runs it all, in view of the audience before the stage.
func runDemo(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter, s *stage) (d demo, err error) {
	s.printf("The same asks through every algorithm: %d at once, then one every %v;\nlimit %d per %v.  + allowed  ~ allowed later  - denied\n\n",
		demoBurstAsks, demoPace, demoLimit, demoPeriod)
	for _, algorithm := range limiter.Algorithms() {
		p := limiter.Policy{Name: "demo", Algorithm: algorithm, Limit: demoLimit, Period: demoPeriod}
		burst, err := sendBurst(ctx, l, p, fmt.Sprint("burst-", time.Now().UnixNano()), s)
		if err != nil {
			return d, demoError(err)
		}
		d.Bursts = append(d.Bursts, burst)
	}
	s.printf("\nA spend of 120 in a transaction that is rolled back:\n\n")
	if d.Spend, err = spendAndRollBack(ctx, pool, l); err != nil {
		return d, demoError(err)
	}
	for _, moment := range d.Spend {
		s.printf("  %-24s %v spent\n", moment.Moment, moment.Spent)
	}
	s.printf("\nAll algorithms under contention for %v, clients killed and transactions rolled\nback among them, in units:\n\n", demoProof)
	if s.err != nil {
		return d, s.err
	}
	if d.Proof, err = prove.Run(ctx, pool, prove.Config{For: demoProof, Workers: demoWorkers, Kill: true}); err != nil {
		return d, demoError(err)
	}
	s.printf("%s", proofText(d.Proof))
	return d, s.err
}

// demoError marks what the database is to blame for: a stage that cannot be
// drawn on is not among that.
func demoError(err error) error {
	var lost stageError
	if errors.As(err, &lost) {
		return lost.error
	}
	return cli.LimiterError(err)
}

func sendBurst(ctx context.Context, l *limiter.Limiter, p limiter.Policy, key string, s *stage) (b demoBurst, err error) {
	b.Algorithm = p.Algorithm
	// Forgotten after Ctrl-C too.
	defer func() {
		err = errors.Join(err, l.Reset(context.WithoutCancel(ctx), p, key))
	}()
	pace := time.NewTicker(demoPace)
	defer pace.Stop()
	for i := range demoBurstAsks + demoLaterAsks {
		if i >= demoBurstAsks {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return b, fmt.Errorf("interrupted: %w", ctx.Err())
			}
		}
		r, err := l.Allow(ctx, p, key)
		if err != nil {
			return b, err
		}
		switch {
		case !r.Allowed:
			b.Denied++
		case r.Delay > 0:
			b.Delayed++
		default:
			b.Allowed++
		}
		b.Results = append(b.Results, r)
		if err := s.draw(b); err != nil {
			return b, err
		}
	}
	return b, s.drawn(b)
}

// spendAndRollBack takes 120 of a budget of 1,000 in a transaction that does
// not commit.
func spendAndRollBack(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter) ([]demoSpending, error) {
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
	return []demoSpending{{"inside the transaction", inside.Level}, {"after its rollback", after.Level}}, nil
}
