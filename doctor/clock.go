package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
)

// Bounds of the clocks' differences. Decisions use only the database's clock. This
// program's clock matters to what it shows, and to reservations and blocks that it computes.
const (
	clockWarn = 2 * time.Second
	clockFail = 5 * time.Minute
	// ahead is how far a row's time may be in the future: a decision that waits for its
	// row's lock writes the time at which it began.
	ahead = 2 * time.Second
)

func checkClock(ctx context.Context, p *patient) (Check, error) {
	var offset, roundTrip time.Duration
	err := p.begin(ctx, func(tx db.DBTX) error {
		for try := range 3 { // the fastest reading is the most exact
			var server time.Time
			sent, began := p.config.Now(), time.Now()
			if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&server); err != nil {
				return err
			}
			if took := time.Since(began); try == 0 || took < roundTrip {
				offset, roundTrip = server.Sub(sent.Add(took/2)), took
			}
		}
		return nil
	})
	return judgeClock(offset, roundTrip), err
}

// judgeClock judges how far the database's clock is ahead of this program's.
func judgeClock(offset, roundTrip time.Duration) Check {
	exact := roundTrip / 2
	sure := max(offset.Abs()-exact, 0)
	which := "ahead of"
	if offset < 0 {
		which = "behind"
	}
	c := Check{Message: fmt.Sprintf("the database's clock is %v %s this program's, give or take %v", offset.Abs().Round(time.Microsecond), which, exact.Round(time.Microsecond))}
	switch {
	case sure > clockFail:
		c.Verdict = Fail
	case sure > clockWarn:
		c.Verdict = Warn
	}
	if c.Verdict != OK {
		c.NextStep = "set both machines' clocks by NTP, such as with chrony; after the database's clock was ahead, see check future"
	}
	return c
}

// The tables up to wholeRows rows are read whole by check future, and of larger ones a
// sample of about sampleRows rows and the topRows rows that expire last.
const (
	wholeRows  = 1_000_000
	sampleRows = 200_000
	topRows    = 1000
)

func checkFuture(ctx context.Context, p *patient) (Check, error) {
	c := Check{Message: "no row's time is ahead of the database's clock"}
	var sampled int
	total := int64(0)
	for _, t := range p.tables {
		if !limits[t.name] {
			continue
		}
		from := t.quoted + " AS t"
		if t.rows > wholeRows {
			sampled++
			from = fmt.Sprintf(`(SELECT s.policy, s.updated_at_us FROM %[1]s AS s TABLESAMPLE SYSTEM (%[2]g)
				UNION ALL (SELECT l.policy, l.updated_at_us FROM %[1]s AS l ORDER BY l.expires_at_us DESC LIMIT %[3]d)) AS t`, t.quoted, 100*sampleRows/t.rows, topRows)
		}
		found, err := rows[struct {
			Policy string
			Rows   int64
			Most   int64
		}](ctx, p, fmt.Sprintf(`SELECT t.policy, count(*), max(t.updated_at_us - c.us)::int8 FROM %s,
			(SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS us) AS c
			WHERE t.updated_at_us > c.us + %d GROUP BY t.policy ORDER BY 2 DESC, 1 LIMIT 20`, from, ahead.Microseconds()))
		if err != nil {
			return Check{}, err
		}
		if len(found) == 0 {
			continue
		}
		one := Check{Verdict: Fail, Fix: fmt.Sprintf("DELETE FROM %s WHERE updated_at_us > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %d", t.quoted, ahead.Microseconds())}
		for _, f := range found {
			total += f.Rows
			one.Details = append(one.Details, fmt.Sprintf("%s: %s of policy %s, up to %s ahead", t.quoted, printable.Count(f.Rows, "key"), f.Policy, duration.Format(microseconds(f.Most).Round(time.Second))))
		}
		c = worse(c, one)
	}
	if total > 0 {
		c.Message = fmt.Sprintf("the times of %d keys are ahead of the database's clock, so that these keys leak nothing until then; deleting the rows forgets what they used", total)
	}
	if sampled > 0 {
		c.Message += fmt.Sprintf(" (%d large tables were sampled)", sampled)
	}
	return c, nil
}

// limits are the tables of the algorithms.
var limits = map[string]bool{
	"pglimit_leaky_bucket": true, "pglimit_leaky_bucket_queue": true, "pglimit_token_bucket": true,
	"pglimit_fixed_window": true, "pglimit_sliding_window_counter": true, "pglimit_sliding_window_log": true,
}

// microseconds converts us, which may be more than a Duration holds.
func microseconds(us int64) time.Duration {
	const most = int64(1<<63-1) / 1000
	return time.Duration(min(us, most)) * time.Microsecond
}
