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

// What sweeps now, and from then on.
const (
	sweepNow     = "pglimit janitor --once"
	startJanitor = "run `pglimit janitor`, or janitor.New(pool, nil) and Run, in one process or in all"
)

func checkDue(ctx context.Context, p *patient) (Check, error) {
	s, err := janitor.ReadStateSQL(ctx, p.db)
	if err != nil {
		return Check{}, err
	}
	return judgeDue(s, p.config.JanitorInterval), nil
}

// judgeDue judges what waits for a sweep.
func judgeDue(s janitor.State, interval time.Duration) Check {
	c := Check{Message: fmt.Sprintf("%s due rows and %s of %s open reservations wait for the janitor", count(s.DueRows), count(s.ExpiredReservations), count(s.OpenReservations))}
	if s.Lag > 0 {
		c.Message += fmt.Sprintf(", the oldest for %s", duration.Format(s.Lag.Round(time.Second)))
	}
	switch {
	case s.Lag > lostIntervals*interval:
		c.Verdict = Fail
	case s.Lag > lateIntervals*interval:
		c.Verdict = Warn
	}
	if c.Verdict != OK {
		c.Fix, c.NextStep = sweepNow, startJanitor
	}
	return c
}

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

// judgeJanitor judges when the last sweep was.
func judgeJanitor(s janitor.State, interval time.Duration) Check {
	waits := s.DueRows+s.ExpiredReservations > 0
	lease := "no janitor has the lease"
	if s.Holder != "" {
		lease = fmt.Sprintf("janitor %s has the lease for another %s", s.Holder, duration.Format(s.LeaseEndsAt.Sub(s.At).Round(time.Second)))
	}
	if s.SweptAt.IsZero() {
		c := Check{Message: "no sweep was ever completed, and nothing waits for one; " + lease}
		if waits {
			c = Check{Verdict: Warn, Message: "no sweep was ever completed; " + lease, Fix: sweepNow, NextStep: startJanitor}
			if s.Lag > lostIntervals*interval {
				c.Verdict = Fail
			}
		}
		return c
	}
	ago := max(0, s.At.Sub(s.SweptAt))
	c := Check{Message: fmt.Sprintf("the last sweep ended %s ago, took %s and deleted %s; %s", duration.Format(ago.Round(time.Second)), duration.Format(s.Took.Round(time.Millisecond)), printable.Count(s.Removed, "row"), lease)}
	switch {
	case ago > lostIntervals*interval && waits:
		c.Verdict = Fail
	case ago > lateIntervals*interval:
		c.Verdict = Warn
	}
	switch {
	case c.Verdict != OK && s.Holder != "":
		c.NextStep = "read that process's log: its sweeps fail or take long"
	case c.Verdict != OK:
		c.Fix, c.NextStep = sweepNow, startJanitor
	}
	return c
}
