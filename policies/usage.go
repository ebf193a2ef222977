package policies

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

// UsageSum is the units that a key has spent in an hour or a day: see limiter.Policy.UsageBy.
type UsageSum struct {
	At    time.Time `json:"at"`    // where the hour or day begins, in UTC
	Units float64   `json:"units"` // spent, less those given back in it: it may be negative
}

// maxSums is the largest number of sums that UsageSince returns.
const maxSums = 10_000

// UsageSince returns the units that a key has spent under a policy since a moment: a sum for each
// hour or day in which units were spent or given back, oldest first, with that of the moment
// itself. by is limiter.Hour, or limiter.Day to add the hours of each day of UTC. Under a policy
// with UsageBy Day both return days. At most the newest 10,000 sums are returned.
//
// The sums are those of the policy's name, whether the policy exists or not. Without any UsageSince
// returns none. It locks nothing. Policies of New have no sums: UsageSince returns
// limiter.ErrUnsupported. It returns limiter.ErrInvalid for another by.
func (p *Policies) UsageSince(ctx context.Context, policy, key string, since time.Time, by limiter.Calendar) ([]UsageSum, error) {
	d, ok := p.rows.(*database)
	span := map[limiter.Calendar]time.Duration{limiter.Hour: time.Hour, limiter.Day: 24 * time.Hour}[by].Microseconds()
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: UsageSince of policies without a database", store.ErrUnsupported)
	case span == 0:
		return nil, store.Invalid("by", strconv.Quote(string(by)), "must be hour or day")
	}
	var rows []db.UsageSinceRow
	err := d.statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
		rows, err = d.statements.UsageSince(ctx, tx, db.UsageSinceParams{
			Policy: policy, Key: keys.Stored(key, p.config.KeySecret), SinceUs: max(0, since.UnixMicro()) / span * span, ByUs: span, MaxRows: maxSums,
		})
		return err
	})
	if err == nil && rows == nil {
		err = ctx.Err()
	}
	sums := make([]UsageSum, len(rows))
	for i, r := range rows {
		sums[i] = UsageSum{timeOf(r.AtUs), r.Units}
	}
	slices.Reverse(sums)
	return sums, err
}
