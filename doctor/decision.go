package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/sqldb"
	"github.com/pglimit/pglimit/limiter"
)

// checkDecision makes a decision of each algorithm on a random key, and rolls them back:
// nobody else has the key, so nobody waits for its rows.
func checkDecision(ctx context.Context, p *patient) (Check, error) {
	l, err := limiter.NewSQL(p.db, &limiter.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return Check{}, err
	}
	defer l.Close()
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return Check{}, err
	}
	defer tx.Rollback()
	if err := p.bound(ctx, sqldb.Tx(tx)); err != nil {
		return Check{}, err
	}
	began := time.Now()
	all := limiter.Algorithms()
	for _, a := range all {
		policy := limiter.Policy{Name: "doctor", Algorithm: a, Limit: 1, Period: time.Second}
		if _, err := l.InSQLTx(tx).Allow(ctx, policy, rand.Text()); err != nil {
			switch sqlState(err) {
			case locked:
				return Check{}, err
			case "42P10": // of ON CONFLICT
				return Check{Verdict: Fail, Message: fmt.Sprintf("%s.pglimit_%s has lost its primary key, so no decision of %s works", p.home, a, a), FixAs: p.fixer(owner),
					Fix: fmt.Sprintf("ALTER TABLE %s.pglimit_%s ADD CONSTRAINT pglimit_%s_pkey PRIMARY KEY (policy, key)", p.home, a, a)}, err
			}
			return Check{Verdict: Fail, Message: fmt.Sprintf("a trial decision of %s failed: %s", a, line(err)), NextStep: correct}, err
		}
	}
	return Check{Message: fmt.Sprintf("%d trial decisions took %s and were rolled back", len(all), duration.Format(time.Since(began).Round(time.Microsecond)))}, nil
}
