package model

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

// tries is a row of a key's attempts: of a source that has succeeded, or of all others.
type tries struct {
	algorithm.Tries
	Source string
	Rules  algorithm.AttemptRules
}

func (t *tries) equal(o *tries) bool {
	a, b := t.Tries, o.Tries
	ids, ends, sources := slices.Equal(a.IDs, b.IDs), slices.Equal(a.Ends, b.Ends), slices.Equal(a.Sources, b.Sources)
	return ids && ends && sources && t.Source == o.Source && t.Rules == o.Rules && a.Failures == b.Failures && a.WaitsUntil == b.WaitsUntil &&
		a.ForgetAt == b.ForgetAt && a.KnownUntil == b.KnownUntil && a.BlockedUntil == b.BlockedUntil && a.UpdatedAt == b.UpdatedAt
}

// row returns a source's row, which it makes, with a clock that never moves back.
func (k *Key) row(source string, now int64) (*tries, int64) {
	i := slices.IndexFunc(k.Tries, func(t *tries) bool { return t.Source == source })
	if i < 0 {
		t := &tries{Source: source}
		t.UpdatedAt = now
		k.Tries = append(k.Tries, t)
		slices.SortFunc(k.Tries, func(a, b *tries) int { return cmp.Compare(a.Source, b.Source) })
		return k.row(source, now)
	}
	return k.Tries[i], max(k.Tries[i].UpdatedAt, now)
}

// blockedAll returns the end of the block of all sources.
func (k *Key) blockedAll() int64 {
	for _, t := range k.Tries {
		if t.Source == "" {
			return t.BlockedUntil
		}
	}
	return 0
}

// attemptRules compiles a policy of attempts, all of whose fields are set.
func attemptRules(p limiter.Policy) algorithm.AttemptRules {
	return algorithm.AttemptRules{
		Limit: int64(p.Limit), AtOnce: int64(p.Burst), Quiet: p.Period.Microseconds(),
		BlockFor: p.BlockFor.Microseconds(), Growth: p.BlockGrowth, BlockMax: p.BlockMax.Microseconds(),
	}
}

// ticket is the text of a ticket in a row.
func ticket(id int) string { return strconv.Itoa(id) }

// The row that an attempt is counted in, if the sources that are known may have changed meanwhile.
const ofSource, ofOthers = 1, 2

// choices are the rows that an attempt may be counted in.
func (op *Op) choices() []int {
	choices := []int{whole}
	switch {
	case op.Verb == Attempt && op.Drifts && op.From != "":
		return []int{0, ofSource, ofOthers}
	case op.Verb == Split && op.Idem == 0:
		return []int{whole, tried}
	case op.Verb == AllowAny && op.Idem == 0: // any pool, if those before it lacked room
		for i := range op.Requests {
			choices[0], choices = gave, append(choices, gave+i)
		}
	}
	return choices
}

// attempts does op, which is about attempts, at one reading of the clock.
func (w *World) attempts(op *Op, now int64, choice int) (out Out) {
	k := &w.Keys[op.Key]
	switch op.Verb {
	case Attempt:
		return k.attempt(op, now, choice)
	case Succeeded, Failed:
		return k.report(op, now)
	case Check, Usage:
		out = k.looked(op, now)
	case Block:
		t, at := k.row("", 0) // its clock does not move
		t.BlockedUntil = max(t.BlockedUntil, max(at, now)+op.For)
	case Unblock:
		for _, t := range k.Tries {
			t.Unblock(&t.Rules, max(t.UpdatedAt, now))
		}
	case Reset:
		*k = Key{}
	}
	return out
}

// attempt begins an attempt, or denies it.
func (k *Key) attempt(op *Op, now int64, choice int) (out Out) {
	source := ""
	for _, t := range k.Tries {
		if op.From != "" && t.Source == op.From && t.KnownUntil > now {
			source = op.From
		}
	}
	if choice != 0 { // as of the beginning of its statement
		if source = ""; choice == ofSource {
			source = op.From
		}
	}
	t, at := k.row(source, now)
	t.Rules = attemptRules(op.Policy)
	began := t.Begin(&t.Rules, at, k.blockedAll(), ticket(-op.Number), op.From, at+op.For)
	if out.Result = k.tried(t, t.Rules, now, at); began {
		out.Held, out.Expires = -op.Number, time.UnixMicro(at+op.For)
		out.Result.Allowed, out.Result.Granted = true, 1
		return out
	}
	out.Result.RetryAfter = after(now, k.copied(t).FreeAt(&t.Rules, at))
	_, waits := k.copied(t).Waits(at)
	out.Result.Reason = reason(waits)
	return out
}

// report ends an attempt.
func (k *Key) report(op *Op, now int64) (out Out) {
	out.Fault = Unknown
	for _, t := range k.Tries {
		at := max(t.UpdatedAt, now)
		from, has := t.End(&t.Rules, at, ticket(op.Held))
		if !has {
			continue
		}
		out.Fault = ""
		if op.Verb == Failed {
			t.Fail(&t.Rules, at)
			out.Result = k.tried(t, t.Rules, now, at)
			if until, waits := k.copied(t).Waits(at); waits {
				out.Result.RetryAfter = after(now, until)
			}
			out.Result.Allowed = true
			return out
		}
		if t.Succeed(); t.Source != "" {
			t.KnownUntil = at + store.KnownFor
		} else if from != "" {
			known, _ := k.row(from, at)
			if known.Rules.AtOnce == 0 {
				known.Rules = t.Rules
			}
			known.KnownUntil = max(known.KnownUntil, at+store.KnownFor)
		}
		return out
	}
	return out
}

// looked answers a Check or a Usage: by the row of all sources that are not known.
func (k *Key) looked(op *Op, now int64) (out Out) {
	c := k.clone()
	t, at := c.row("", now)
	rules := attemptRules(op.Policy)
	t.Fold(&rules, at)
	r := k.tried(t, rules, now, at)
	_, waits := t.Waits(at)
	full := int64(len(t.Ends)) >= rules.AtOnce
	units := op.Units
	if op.Verb == Usage {
		units = 0
	}
	r.Allowed = !waits && (units == 0 || !full)
	if r.Allowed {
		r.Granted = units
	} else {
		if units == 0 {
			rules.AtOnce = 1000
		}
		r.Reason, r.RetryAfter = reason(waits), after(now, t.FreeAt(&rules, at))
	}
	if out.Result = r; op.Verb == Usage {
		out = Out{Answer: Answer{Usage: limiter.Usage{Result: r, Spent: r.Level, Reservations: len(t.Ends)}}}
	}
	return out
}

// copied is a copy of a row with the key's block.
func (k *Key) copied(t *tries) *algorithm.Tries {
	c := t.Tries.Clone()
	c.BlockedUntil = k.blockedAll()
	return c
}

// tried answers how a row stands.
func (k *Key) tried(t *tries, rules algorithm.AttemptRules, now, at int64) limiter.Result {
	c := k.copied(t)
	_, waits := c.Waits(at)
	a := limiter.Result{
		Limit: float64(rules.Limit), Burst: float64(rules.AtOnce), Level: float64(c.Count(at)), ResetAfter: after(now, c.EmptyAt(&rules)),
		Full: waits || int64(len(c.Ends)) >= rules.AtOnce, At: time.UnixMicro(now),
	}
	if !waits {
		a.Remaining = max(1, a.Limit-a.Level)
	}
	return a
}

// name gives the ticket of an attempt the number that its answer has.
func (w *World) name(op *Op, want, out *Out) bool {
	if out.Held == 0 {
		return want.Held == 0
	}
	for _, t := range w.Keys[op.Key].Tries {
		if i := slices.Index(t.IDs, ticket(want.Held)); i >= 0 {
			t.IDs[i], want.Held = ticket(out.Held), out.Held
			return true
		}
	}
	return false
}
