package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/janitor"
)

// A sweep is late after some of the janitor's intervals, and far too late after more.
const (
	lateIntervals = 5
	lostIntervals = 60
)

// count renders a number of rows that was counted up to a bound.
func count(n int64) string {
	if n >= janitor.StateBound {
		return fmt.Sprintf("%d or more", n)
	}
	return fmt.Sprint(n)
}

func checkJanitor(ctx context.Context, p *patient) (Check, error) {
	s, err := janitor.ReadStateSQL(ctx, p.db)
	if err != nil {
		return Check{}, err
	}
	return judgeJanitor(s, p.config.JanitorInterval), nil
}

// judgeJanitor judges when the last sweep was, and what waits for the next one.
func judgeJanitor(s janitor.State, interval time.Duration) Check {
	waits := s.DueRows+s.ExpiredReservations > 0
	ago := max(0, s.At.Sub(s.SweptAt))
	c := Check{Message: "no sweep was ever completed"}
	if !s.SweptAt.IsZero() {
		c.Message = fmt.Sprintf("the last sweep ended %s ago, took %s and deleted %s", duration.Format(ago.Round(time.Second)), duration.Format(s.Took.Round(time.Millisecond)), printable.Count(s.Removed, "row"))
	}
	c.Message += fmt.Sprintf("; %s due rows and %s of %s open reservations wait for the next one", count(s.DueRows), count(s.ExpiredReservations), count(s.OpenReservations))
	if s.Lag > 0 {
		c.Message += fmt.Sprintf(", the oldest for %s", duration.Format(s.Lag.Round(time.Second)))
	}
	switch {
	case s.Lag > lostIntervals*interval, !s.SweptAt.IsZero() && ago > lostIntervals*interval && waits:
		c.Verdict = Fail
	case s.Lag > lateIntervals*interval, !s.SweptAt.IsZero() && ago > lateIntervals*interval, s.SweptAt.IsZero() && waits:
		c.Verdict = Warn
	}
	lease := "no janitor has the lease"
	if s.Holder != "" {
		lease = fmt.Sprintf("janitor %s has the lease for another %s", s.Holder, duration.Format(s.LeaseEndsAt.Sub(s.At).Round(time.Second)))
	}
	c.Message += "; " + lease
	switch {
	case c.Verdict != OK && s.Holder != "":
		c.NextStep = "read that process's log: its sweeps fail or take long"
	case c.Verdict != OK:
		c.Fix, c.NextStep = "pglimit janitor --once", "run `pglimit janitor`, or janitor.New(pool, nil) and Run, in one process or in all"
	}
	return c
}
