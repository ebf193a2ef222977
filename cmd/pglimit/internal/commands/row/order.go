package row

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

// order is one call of a Limiter's method that works on a row and returns no
// Result.
type order struct {
	verb, key string
	lasts     time.Duration // of a block
	do        func(*limiter.Limiter, limiter.Policy) error
	// text describes what the order did to a row whose earlier state was before.
	// found reports whether there was something to change.
	text func(p limiter.Policy, before state) (text string, found bool)
}

// state is the state of a key's row before an order.
type state struct{ exists, blocked bool }

// result is an order's JSON.
type result struct {
	Verb      string            `json:"verb"`
	Name      string            `json:"name"`
	Algorithm limiter.Algorithm `json:"algorithm"`
	Key       string            `json:"key"`
	For       float64           `json:"for_s,omitempty"`
	// Found reports whether there was something to change: a row or, for
	// unblock, an active block.
	Found bool `json:"found"`
}

// run executes the order. If there was nothing to change, the answer is no.
func (o order) run(cmd *cobra.Command, db *connect.Database, out *cli.Output, flags *policyflags.Flags) error {
	p, err := flags.RowPolicy()
	if err != nil {
		return err
	}
	pool, err := db.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := connect.NewLimiter(pool)
	if err != nil {
		return err
	}
	before, unread := readState(cmd.Context(), pool, p, o.key)
	if err := o.do(l, p); err != nil {
		return cli.LimiterError(err) // more specific than unread
	}
	if unread != nil {
		return cli.DatabaseError(fmt.Errorf("%s is done, but it is unknown whether there was a row: %w", o.verb, unread))
	}
	text, found := o.text(p, before)
	return out.Answer(cmd, found, result{o.verb, p.Name, p.Algorithm, o.key, o.lasts.Seconds(), found}, text+"\n")
}

// readState returns the state of a key's row by the database's clock. It locks
// nothing, so it misses changes between it and the order.
func readState(ctx context.Context, pool *pgxpool.Pool, p limiter.Policy, key string) (s state, err error) {
	var until, updated int64
	var now time.Time
	err = pool.QueryRow(ctx, "SELECT blocked_until_us, updated_at_us, clock_timestamp() FROM "+
		pgx.Identifier{"pglimit_" + string(p.Algorithm)}.Sanitize()+" WHERE policy = $1 AND key = $2",
		p.Name, keys.Stored(key, connect.KeySecret())).Scan(&until, &updated, &now)
	if errors.Is(err, pgx.ErrNoRows) {
		return state{}, nil
	}
	return state{exists: true, blocked: until > max(updated, now.UnixMicro())}, err
}

// done and noRow also name the policy and the algorithm: a wrong one is the usual
// reason why a row is not found.
func done(what string, p limiter.Policy) string {
	return fmt.Sprintf("%s (%s, %s)", what, p.Name, p.Algorithm)
}

func noRow(key string, p limiter.Policy) string {
	return fmt.Sprintf("%s had no row under policy %s, algorithm %s", key, p.Name, p.Algorithm)
}
