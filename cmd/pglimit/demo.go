package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// What the demo sends: a burst of asks against a limit of fewer units.
const (
	demoAsks   = 8
	demoLimit  = 5
	demoPeriod = 10 * time.Second
)

func newDemo(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Send one burst through every algorithm",
		Long: fmt.Sprintf(`Send one burst of %d asks through every algorithm, each with a limit of %d per %v,
and show what was allowed, denied and delayed; then spend inside a transaction
that is rolled back.

It runs the migrations, and forgets its own keys when it is done.`, demoAsks, demoLimit, demoPeriod),
		Example: `  pglimit demo
  pglimit demo --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pool, err := a.openOr(cmd, embeddedDatabase)
			if err != nil {
				return err
			}
			defer pool.Close()
			if err := migrations.Up(cmd.Context(), pool); err != nil {
				return database(err)
			}
			l, err := newLimiter(pool)
			if err != nil {
				return err
			}
			show, err := runDemo(cmd.Context(), pool, l)
			if err != nil {
				return decisionError(err)
			}
			var text strings.Builder
			show.write(&text)
			return a.print(cmd, show, text.String())
		},
	}
}

// demo is what was seen.
type demo struct {
	Bursts []demoBurst    `json:"bursts"`
	Spend  []demoSpending `json:"spend"`
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

func runDemo(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter) (d demo, err error) {
	for _, algorithm := range limiter.Algorithms() {
		p := limiter.Policy{Name: "demo", Algorithm: algorithm, Limit: demoLimit, Period: demoPeriod}
		burst, err := sendBurst(ctx, l, p, fmt.Sprint("burst-", time.Now().UnixNano()))
		if err != nil {
			return d, err
		}
		d.Bursts = append(d.Bursts, burst)
	}
	d.Spend, err = spendAndRollBack(ctx, pool, l)
	return d, err
}

func sendBurst(ctx context.Context, l *limiter.Limiter, p limiter.Policy, key string) (demoBurst, error) {
	b := demoBurst{Algorithm: p.Algorithm}
	for range demoAsks {
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
	}
	return b, l.Reset(ctx, p, key)
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

func (d demo) write(w io.Writer) {
	fmt.Fprintf(w, "%d asks at once, limit %d per %v (+ allowed, ~ allowed later, - denied):\n\n", demoAsks, demoLimit, demoPeriod)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range d.Bursts {
		var marks strings.Builder
		var delays []string
		var retry time.Duration
		for _, r := range b.Results {
			switch {
			case !r.Allowed:
				marks.WriteByte('-')
				retry = r.RetryAfter
			case r.Delay > 0:
				marks.WriteByte('~')
				delays = append(delays, fmt.Sprint(r.Delay.Round(time.Second)))
			default:
				marks.WriteByte('+')
			}
		}
		note := ""
		if len(delays) > 0 {
			note = "in " + strings.Join(delays, " ") + "; "
		}
		fmt.Fprintf(table, "  %s\t%s\t%d allowed, %d delayed, %d denied\t%sretry after %v\n",
			b.Algorithm, &marks, b.Allowed, b.Delayed, b.Denied, note, retry.Round(10*time.Millisecond))
	}
	_ = table.Flush()
	fmt.Fprint(w, "\nA spend of 120 in a transaction that is rolled back:\n\n")
	for _, s := range d.Spend {
		fmt.Fprintf(w, "  %-24s %v spent\n", s.Moment, s.Spent)
	}
	fmt.Fprint(w, "\nNext: `pglimit allow --help` to try limits of your own, README.md for the library.\n")
}
