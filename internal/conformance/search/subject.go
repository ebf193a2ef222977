package search

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Subject is what the calls of one history are sent to.
type Subject struct {
	Ways   []Way                                                        // they share their rows; a step takes one of them
	Begin  func(context.Context) (pgx.Tx, error)                        // nil: it has no transactions
	Sweep  func() error                                                 // the janitor's; nil: none
	Apply  func(policies.Edit) error                                    // nil: it has no overrides
	Batch  func(requests []limiter.Request, upTo []bool) []verbs.Answer // nil: one after the other
	Before func(*Step)                                                  // what it does by itself before a step, and may move the clock; nil: nothing
	Clock  *conformance.Clock
	Prefix string // of the policies' names

	// For the judge of equality.

	Model func() Subject                               // nil: a limiter in memory
	Alike func(s *Step, got, want limiter.Result) bool // nil: equal but for their Source
	Skip  func(*Step, verbs.Answer) (bool, error)      // whether the model is not asked; it may be nil
	Rows  func() (string, error)                       // what is stored, but for names; of both or neither
}

// Way is one way to send a call.
type Way struct {
	verbs.Limiter
	In func(pgx.Tx) verbs.Limiter
}

// By returns the ways of limiters.
func By(limiters ...*limiter.Limiter) (all []Way) {
	for _, l := range limiters {
		all = append(all, Way{l, func(tx pgx.Tx) verbs.Limiter { return l.InTx(tx) }})
	}
	return all
}

// Remember is the limiters' Config.IdempotencyTTL.
const Remember = 20 * time.Second

// Memory returns a limiter in memory as a subject.
func Memory(clock *conformance.Clock) Subject {
	live, err := policies.New()
	if err != nil {
		panic(err)
	}
	l := limiter.NewMemory(&limiter.Config{Now: clock.Now, DisableTimeout: true, IdempotencyTTL: Remember, Policies: live})
	return Subject{Ways: By(l), Apply: Applied(live), Clock: clock}
}

// Applied returns a Subject's Apply.
func Applied(live *policies.Policies) func(policies.Edit) error {
	return func(edit policies.Edit) error {
		_, err := live.Apply(bg, edit)
		return err
	}
}

// expected returns nil for errors that a valid history may meet.
func expected(err error) error {
	if classOf(err) != nil {
		return nil
	}
	return err
}

// classOf returns which of the errors that a valid history may meet err is, or nil.
func classOf(err error) error {
	for _, known := range []error{limiter.ErrOverloaded, limiter.ErrUnsupported, limiter.ErrInvalid, limiter.ErrNoReservation, limiter.ErrReservationEnded, limiter.ErrNoTicket, limiter.ErrNoSlot} {
		if errors.Is(err, known) {
			return known
		}
	}
	return nil
}

// side is a subject with what it has answered.
type side struct {
	Subject
	policies  []limiter.Policy // with their full names
	open      []pgx.Tx         // transactions and savepoints
	given     map[int][]limiter.Result
	ids       map[int]string
	sets      map[int][]string           // the IDs of a reserve_all
	overrides map[policies.Override]bool // whether there is one, by its Policy and Key
}

func newSide(s Subject, h *History) *side {
	x := &side{Subject: s, policies: slices.Clone(h.Policies), given: map[int][]limiter.Result{}, ids: map[int]string{}, sets: map[int][]string{}, overrides: map[policies.Override]bool{}}
	for i := range x.policies {
		x.policies[i].Name = s.Prefix + x.policies[i].Name
	}
	return x
}

// decider returns the step's way, in the innermost transaction.
func (x *side) decider(s *Step) verbs.Limiter {
	w := x.Ways[s.Way%len(x.Ways)]
	if n := len(x.open); n > 0 {
		return w.In(x.open[n-1])
	}
	return w
}

var (
	bg      = context.Background()
	nothing = verbs.Answer{Idle: true}
)

// do makes the call of one step.
func (x *side) do(s *Step) verbs.Answer {
	c := verbs.Call{Op: s.Op, Request: s.request(x.policies), For: s.For, From: s.From}
	c.IdempotencyKey, c.Estimate = s.Idempotency, s.Estimate
	c.Lot = limiter.GrantOptions{Priority: s.Priority, Source: s.From, IdempotencyKey: s.Idempotency}
	if s.Ends > 0 {
		c.Lot.Expires = x.Clock.Now().Add(time.Duration(s.Ends) * time.Microsecond)
	}
	switch s.Op {
	case "begin":
		return x.begin()
	case "commit", "rollback":
		return x.end(s.Op == "commit")
	case "sweep":
		if x.Sweep == nil || len(x.open) > 0 {
			return nothing
		}
		return verbs.Answer{Err: x.Sweep()}
	case "override":
		return x.override(s, c.Policy.Name, c.Key)
	case "batch":
		return x.batch(s)
	case "settle_all", "cancel_all":
		if c.IDs = x.sets[s.Of]; c.IDs == nil {
			return nothing
		}
	case "all", "any", "split", "reserve_all":
		c.Requests, _ = x.requests(s)
		for i := range c.Requests {
			c.Requests[i].IdempotencyKey = s.Idempotency
		}
	case "undo":
		of, ok := x.given[s.Of]
		if !ok {
			return nothing
		}
		c.Undone = of[s.which(len(of))]
	case "settle", "cancel", "succeeded", "failed", "renew", "release":
		if c.ID = x.ids[s.Of]; c.ID == "" {
			return nothing
		}
	}
	a := c.Make(bg, x.decider(s))
	if a.Err == nil && len(a.PerRequest) > 0 {
		x.given[s.Number] = a.PerRequest
	}
	if a.IDs != nil && !a.PerRequest[0].Replayed {
		x.sets[s.Number] = a.IDs
	}
	if a.ID != "" && !a.PerRequest[0].Replayed {
		x.ids[s.Number] = a.ID
	}
	return a
}

// override sets or deletes the override of a key.
func (x *side) override(s *Step, policy, key string) verbs.Answer {
	o := policies.Override{Policy: policy, Key: key}
	had := x.overrides[o]
	switch {
	case x.Apply == nil || len(x.open) > 0:
		return nothing
	case s.Override != nil:
		x.overrides[o] = true
		set := *s.Override
		set.Policy, set.Key = policy, key
		return verbs.Answer{Err: x.Apply(policies.Edit{SetOverrides: []policies.Override{set}})}
	case !had:
		return nothing
	}
	x.overrides[o] = false
	return verbs.Answer{Err: x.Apply(policies.Edit{DeleteOverrides: []policies.Override{o}})}
}

// requests returns those of a step with several, and which are by AllowUpTo.
func (x *side) requests(s *Step) (all []limiter.Request, upTo []bool) {
	for i := range s.Asks {
		all, upTo = append(all, s.Asks[i].request(x.policies)), append(upTo, s.Asks[i].UpTo)
	}
	return all, upTo
}

// batch sends several requests, that need not all be granted.
func (x *side) batch(s *Step) (a verbs.Answer) {
	requests, upTo := x.requests(s)
	var all []verbs.Answer
	if x.Batch != nil && len(x.open) == 0 {
		all = x.Batch(requests, upTo)
	} else {
		d := x.decider(s)
		for i, in := range requests {
			if upTo[i] {
				all = append(all, verbs.One(d.AllowUpTo(bg, in.Policy, in.Key, in.Cost)))
			} else {
				all = append(all, verbs.One(d.Do(bg, in)))
			}
		}
	}
	for _, one := range all {
		a.PerRequest, a.Err = append(a.PerRequest, one.PerRequest[0]), errors.Join(a.Err, one.Err)
	}
	x.given[s.Number] = a.PerRequest
	return a
}

func (x *side) begin() verbs.Answer {
	if x.Begin == nil || len(x.open) > 2 {
		return nothing
	}
	begin := x.Begin
	if n := len(x.open); n > 0 {
		begin = x.open[n-1].Begin
	}
	tx, err := begin(bg)
	if err == nil {
		x.open = append(x.open, tx)
	}
	return verbs.Answer{Err: err}
}

// end ends the innermost transaction or savepoint.
func (x *side) end(commit bool) verbs.Answer {
	n := len(x.open)
	if n == 0 {
		return nothing
	}
	last := x.open[n-1]
	x.open = x.open[:n-1]
	if commit {
		return verbs.Answer{Err: last.Commit(bg)}
	}
	return verbs.Answer{Err: last.Rollback(bg)}
}
