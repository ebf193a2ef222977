package search

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// Subject is the limiter of one history.
type Subject struct {
	Limiter  *limiter.Limiter
	Policies *limiter.Policies                     // of overrides
	Begin    func(context.Context) (pgx.Tx, error) // nil: it has no transactions
	Sweep    func() error                          // the janitor's; nil: none
	Clock    *conformance.Clock
	Prefix   string // of the policies' names
}

// Remember is the limiters' Config.IdempotencyTTL.
const Remember = 20 * time.Second

// run is a history on its way.
type run struct {
	Subject
	history  *History
	policies []limiter.Policy // with their full names
	books    *books
	open     []level // transactions and savepoints
	answers  map[int][2]answer
	override [4]*limiter.Policy // by ledger: its numbers
	now      int64
	floor    int64 // a sweep: what it deleted is not known before it
	Admitted int
	GaveBack int
}

// level is an open transaction or savepoint.
type level struct {
	tx     pgx.Tx
	do     *limiter.Tx
	before *books
}

// answer is an earlier Result, for Undo.
type answer struct {
	result limiter.Result
	ledger int
	number int // of its entry
	made   bool
	units  float64
}

// start is the clock's first reading. The Epoch is a whole multiple of all periods.
const start = int64(3_600_000_000)

// Run makes the history's calls. It returns an error if a bound was exceeded, or a method
// failed.
func (s Subject) Run(h *History) (r *run, err error) {
	r = &run{Subject: s, history: h, policies: slices.Clone(h.Policies), answers: map[int][2]answer{}}
	r.books = &books{keys: make([]ledger, 4)}
	for i := range r.books.keys {
		l := &r.books.keys[i]
		l.algorithm = h.Policies[0].Algorithm
		for j := range h.Policies { // with an override, the limit of one and the period of another
			for k := range h.Policies {
				l.fastest = max(l.fastest, h.Policies[j].Limit/float64(max(1, h.Policies[k].Period.Microseconds())))
			}
		}
	}
	for i := range r.policies {
		r.policies[i].Name = s.Prefix + r.policies[i].Name
	}
	at := start
	defer func() {
		for len(r.open) > 0 {
			err = errors.Join(err, r.end(false))
		}
	}()
	for i := range h.Steps {
		step := &h.Steps[i]
		at = max(at+step.Moves, r.floor)
		s.Clock.Set(at)
		r.now = s.Clock.Now().UnixMicro()
		r.expire()
		if err := r.step(step, at); err != nil {
			return r, fmt.Errorf("step %d, %s: %w", step.Number, step.Op, err)
		}
	}
	return r, nil
}

// decider returns the innermost transaction, or the limiter.
func (r *run) decider() limiter.Decider {
	if n := len(r.open); n > 0 {
		return r.open[n-1].do
	}
	return r.Limiter
}

func (r *run) begin() error {
	if r.Begin == nil || len(r.open) > 2 {
		return nil
	}
	begin := r.Begin
	if n := len(r.open); n > 0 {
		begin = r.open[n-1].tx.Begin
	}
	tx, err := begin(context.Background())
	if err != nil {
		return err
	}
	r.open = append(r.open, level{tx: tx, do: r.Limiter.InTx(tx), before: r.books.clone()})
	return nil
}

// end ends the innermost transaction or savepoint. What was rolled back has used nothing.
func (r *run) end(commit bool) error {
	n := len(r.open)
	if n == 0 {
		return nil
	}
	last := r.open[n-1]
	r.open = r.open[:n-1]
	if commit {
		return last.tx.Commit(context.Background())
	}
	r.books = last.before
	return last.tx.Rollback(context.Background())
}

// ledgerOf returns the index of the ledger of a policy's name and a key.
func (r *run) ledgerOf(policy, key int) int {
	if r.history.Policies[policy].Name == "q" {
		return 2 + key
	}
	return key
}

var keys = [2]string{"a", "b"}

// effective returns the policy with the override of the key applied.
func (r *run) effective(policy, of int) *limiter.Policy {
	p := r.policies[policy]
	if o := r.override[of]; o != nil {
		p.Limit, p.Burst = o.Limit, o.Burst
	}
	return &p
}

// changeOverride gives the key the limits of the step's policy, or its own again.
func (r *run) changeOverride(s *Step) error {
	p, of := &r.policies[s.Policy], r.ledgerOf(s.Policy, s.Key)
	o := limiter.Override{Policy: p.Name, Key: keys[s.Key]}
	edit := limiter.PolicyEdit{}
	switch {
	case s.Second && r.override[of] != nil:
		edit.DeleteOverrides = []limiter.Override{o}
		r.override[of] = nil
	case s.Second:
		return nil
	default:
		o.Limit = &p.Limit
		if p.Burst != 0 {
			o.Burst = &p.Burst
		}
		edit.SetOverrides = []limiter.Override{o}
		r.override[of] = p
	}
	_, err := r.Policies.Apply(context.Background(), edit)
	return err
}
