package policies

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
)

// Event is a mark that a key has reached: see limiter.Policy.Marks.
type Event struct {
	ID        string            `json:"id"` // the same at each delivery
	Policy    string            `json:"policy"`
	Key       string            `json:"key"`       // as stored: its HMAC if limiter.Config.KeySecret is set
	Algorithm limiter.Algorithm `json:"algorithm"` // whose table has the key: token_bucket for GCRA
	Mark      float64           `json:"mark"`      // the part of Limit: 0.8 for 80%
	Level     float64           `json:"level"`     // units in use after the decision
	Limit     float64           `json:"limit"`     // the policy's burst, or a window's limit
	At        time.Time         `json:"at"`        // of the decision, by its clock
	// WindowEndsAt is the end of the window, of which a key has one event for each mark.
	WindowEndsAt time.Time `json:"window_ends_at"`
	Attempt      int64     `json:"attempt"` // the number of deliveries begun, with this one
	// DeliveredAt is zero until the event is delivered.
	DeliveredAt time.Time `json:"delivered_at,omitzero"`
}

// EventOf returns a row of pglimit_event.
func EventOf(r db.EventListRow) Event {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %d", r.Policy, r.Key, r.Algorithm, r.Mark, r.WindowEndsAtUs))
	e := Event{
		ID: "evt_" + base64.RawURLEncoding.EncodeToString(sum[:18]), Policy: r.Policy, Key: r.Key, Algorithm: limiter.Algorithm(r.Algorithm),
		Mark: float64(r.Mark) / 1e6, Level: r.Level, Limit: r.LimitUnits, At: timeOf(r.AtUs), WindowEndsAt: timeOf(r.WindowEndsAtUs), Attempt: r.Attempts,
	}
	if r.DeliveredAtUs > 0 {
		e.DeliveredAt = timeOf(r.DeliveredAtUs)
	}
	return e
}

// MaxAttempts is the number of deliveries of an event after which it is given up.
const MaxAttempts = 10

const (
	deliverIn   = time.Minute     // the longest call of a function that delivers
	claimFor    = 2 * time.Minute // no other process begins a delivery meanwhile
	lookAtOnce  = 20              // events that are read at once
	firstAgain  = 5 * time.Second // the wait after the first delivery that failed; each further is three times as long
	lastAgain   = 6 * time.Hour   // the longest
	pollHearing = 2 * time.Second // between two looks while there is a connection for notifications
)

// Events calls deliver with each event that is not delivered yet, until ctx ends, and returns nil
// then. It calls it once at a time; the events come in no order that counts. An event is delivered
// when deliver returns nil. After an error it is due again in 5 s, and after each further one in
// three times as long, up to 6 hours, with jitter; MaxAttempts deliveries in all.
//
//   - An event is delivered at least once, to one of all programs and processes that call Events.
//     It may come twice: after a crash, or if deliver takes longer than a minute, when its context
//     ends. Event.ID tells that.
//   - A notification wakes Events at once. Without one it looks every two seconds, and every
//     Config.PollEvery over database/sql and with DisableListen.
//   - The janitor deletes events 30 days after the end of their window, delivered or not.
//   - While the database is away Events logs that once, and goes on.
//
// Policies of New have no events: Events returns limiter.ErrUnsupported. It returns
// limiter.ErrInvalid if deliver is nil.
func (p *Policies) Events(ctx context.Context, deliver func(context.Context, Event) error) error {
	d, ok := p.rows.(*database)
	switch {
	case !ok:
		return fmt.Errorf("%w: Events of policies without a database", store.ErrUnsupported)
	case deliver == nil:
		return store.Invalid("deliver", "nil", "pass a function")
	}
	every := p.config.PollEvery
	if d.hears {
		every = pollHearing
	}
	failing := false
	for ctx.Err() == nil {
		more, err := p.deliverDue(ctx, d, deliver)
		if err != nil && !failing && ctx.Err() == nil {
			p.config.Logger.WarnContext(ctx, "pglimit: events cannot be read or marked as delivered; trying again", "error", err)
		}
		if failing = err != nil; more && err == nil {
			continue
		}
		pause := time.NewTimer(jitter(every))
		select {
		case <-ctx.Done():
		case <-d.heard:
		case <-pause.C:
		}
		pause.Stop()
	}
	return nil
}

// deliverDue delivers the events that are due now. more reports whether others may be.
func (p *Policies) deliverDue(ctx context.Context, d *database, deliver func(context.Context, Event) error) (more bool, err error) {
	var due []db.EventsDueRow
	err = d.statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
		due, err = d.statements.EventsDue(ctx, tx, db.EventsDueParams{MaxAttempts: MaxAttempts, MaxRows: lookAtOnce})
		return err
	})
	for i := 0; i < len(due) && err == nil && ctx.Err() == nil; i++ {
		err = p.deliverOne(ctx, d, due[i], deliver)
	}
	return len(due) == lookAtOnce, err
}

// deliverOne delivers an event unless another process has begun to.
func (p *Policies) deliverOne(ctx context.Context, d *database, r db.EventsDueRow, deliver func(context.Context, Event) error) error {
	var begun int64
	err := d.statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
		begun, err = d.statements.EventClaim(ctx, tx, db.EventClaimParams{
			Policy: r.Policy, Key: r.Key, Algorithm: r.Algorithm, Mark: r.Mark, WindowEndsAtUs: r.WindowEndsAtUs, Attempts: r.Attempts, ForUs: claimFor.Microseconds(),
		})
		return err
	})
	if err != nil || begun == 0 {
		return err
	}
	e := EventOf(db.EventListRow{
		Policy: r.Policy, Key: r.Key, Algorithm: r.Algorithm, Mark: r.Mark, WindowEndsAtUs: r.WindowEndsAtUs, AtUs: r.AtUs, Level: r.Level, LimitUnits: r.LimitUnits, Attempts: r.Attempts + 1,
	})
	within, cancel := context.WithTimeout(ctx, deliverIn)
	failed := deliver(within, e)
	cancel()
	if failed != nil && e.Attempt >= MaxAttempts {
		p.config.Logger.ErrorContext(ctx, "pglimit: an event is given up", "event", e.ID, "policy", e.Policy, "error", failed)
	}
	return d.statement(context.WithoutCancel(ctx), func(ctx context.Context, tx db.DBTX) error { // also at the end: it was tried
		_, err := d.statements.EventEnd(ctx, tx, db.EventEndParams{
			Policy: r.Policy, Key: r.Key, Algorithm: r.Algorithm, Mark: r.Mark, WindowEndsAtUs: r.WindowEndsAtUs, Attempts: e.Attempt,
			Delivered: failed == nil, WaitUs: again(e.Attempt).Microseconds(),
		})
		return err
	})
}

// again returns the wait after delivery number attempt failed.
func again(attempt int64) time.Duration {
	wait := firstAgain
	for ; attempt > 1 && wait < lastAgain; attempt-- {
		wait *= 3
	}
	wait = min(wait, lastAgain)
	return wait*3/4 + rand.N(wait/2)
}

// statement runs one statement, which the server has to answer in time.
func (d *database) statement(ctx context.Context, f func(context.Context, db.DBTX) error) error {
	within, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	err := d.run.Run(within, exec.Statement, func(tx db.DBTX) error { return f(within, tx) })
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return explain(err)
}
