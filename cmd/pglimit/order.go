package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/limiter"
)

// order is the JSON answer of block, unblock and reset.
type order struct {
	Verb      string            `json:"verb"`
	Name      string            `json:"name"`
	Algorithm limiter.Algorithm `json:"algorithm"`
	Key       string            `json:"key"`
	For       float64           `json:"for_s,omitempty"`
	// Found reports whether there was something to work on: a row, or for
	// unblock a block in force.
	Found bool `json:"found"`
}

// rowHelp says which flags matter to a verb that has no ask.
const rowHelp = `A key is found by --name and --algorithm: give those that the asks were made
with. Asks with --calendar or --aligned are of fixed_window, those with --tick
of leaky_bucket, and those of wait are of leaky_bucket_queue. Limit, period and
burst do not matter. A key has a row from its first ask until the janitor deletes
it, an hour or more after the row holds nothing.`

// row reports whether a key had a row before an order.
type row struct{ there, blocked bool }

// ordered says what an order did to a key that stood as before, and whether the
// order found what it was for.
type ordered func(p limiter.Policy, before row) (text string, found bool)

// order runs a verb that has no Result; o has the verb's name and the key. If
// the verb found nothing to work on, the answer is no.
func (a *app) order(cmd *cobra.Command, f *policyflags.Flags, o order, say ordered, do func(*limiter.Limiter, limiter.Policy) error) error {
	p, err := f.RowPolicy()
	if err != nil {
		return err
	}
	o.Name, o.Algorithm = p.Name, p.Algorithm
	pool, err := a.db.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := connect.NewLimiter(pool)
	if err != nil {
		return err
	}
	before, unread := readRow(cmd.Context(), pool, p, o.Key)
	if err := do(l, p); err != nil {
		return cli.LimiterError(err) // which says more than the error of reading
	}
	if unread != nil {
		return cli.DatabaseError(fmt.Errorf("%s is done, but whether there was a row is unknown: %w", o.Verb, unread))
	}
	text, found := say(p, before)
	o.Found = found
	return a.out.Answer(cmd, found, o, text+"\n")
}

// readRow returns how a key stands, by the database's clock. It locks nothing:
// what others do before the order that follows is not seen.
func readRow(ctx context.Context, pool *pgxpool.Pool, p limiter.Policy, key string) (r row, err error) {
	var until, updated int64
	var now time.Time
	err = pool.QueryRow(ctx, "SELECT blocked_until_us, updated_at_us, clock_timestamp() FROM "+
		pgx.Identifier{"pglimit_" + string(p.Algorithm)}.Sanitize()+" WHERE policy = $1 AND key = $2",
		p.Name, keys.Stored(key, connect.KeySecret())).Scan(&until, &updated, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		return row{}, nil
	}
	return row{there: true, blocked: until > max(updated, now.UnixMicro())}, err
}

// done and noRow tell a person about a key, with the policy and the algorithm
// that were looked under.
func done(what string, p limiter.Policy) string {
	return fmt.Sprintf("%s (%s, %s)", what, p.Name, p.Algorithm)
}

func noRow(key string, p limiter.Policy) string {
	return fmt.Sprintf("%s had no row under policy %s, algorithm %s", key, p.Name, p.Algorithm)
}
