package model

import (
	"slices"

	"github.com/pglimit/pglimit/limiter"
)

// joint is the requests of an AllowAll for one key.
type joint struct {
	key     int
	rules   *Rules
	sum     float64
	fits    bool
	blocked bool
}

// join adds up the requests for each key, and reports whether all sums can ever fit.
func join(requests []Request) (joints []*joint, possible bool) {
	possible = true
	for _, q := range requests {
		i := slices.IndexFunc(joints, func(j *joint) bool { return j.key == q.Key })
		if i < 0 {
			i, joints = len(joints), append(joints, &joint{key: q.Key, rules: rulesOf(q.Policy).above(q.Floor)})
		}
		joints[i].sum += q.Units
	}
	for _, j := range joints {
		possible = possible && j.rules.possible(j.sum)
	}
	return joints, possible
}

// begins reports whether the denial of a joint begins a block.
func (j *joint) begins() bool { return !j.fits && !j.blocked && j.rules.BlockFor > 0 }

// all does an AllowAll: all requests are granted or none.
func (w *World) all(op *Op, now int64, stop int) (out Out) {
	if out, found := w.before(op, now); found || stop == forgot {
		return out
	}
	joints, possible := join(op.Requests)
	if possible && len(op.Requests) == 1 {
		q := op.Requests[0]
		one := w.request(&Op{Number: op.Number, Verb: Allow, Key: q.Key, Policy: q.Policy, Units: q.Units, Floor: q.Floor, Kept: op.Kept}, now, stop)
		out.All = results([]limiter.Result{one.Result}, one.Result.Allowed)
		return out
	}
	for again := true; again; {
		again = false
		if stop == whole {
			for _, j := range joints {
				w.Keys[j.key].lift(op.Number)
			}
		}
		if w.judge(op, joints, possible, now) {
			out.All = w.takeAll(op, joints, now)
			w.admitAll(op, &out, now)
			return out
		}
		for _, j := range joints {
			if k := &w.Keys[j.key]; possible && j.begins() {
				k.block(j.rules, j.rules.BlockFor, now, max(k.Clock, now))
				k.Begun = begun{op.Number, k.Blocked}
			}
		}
		if stop == tried {
			break
		}
		for _, j := range joints {
			if !j.fits && !j.blocked && j.rules.possible(j.sum) && !j.rules.queue() && w.give(j.key, now, most(stop)) {
				again = stop == whole
			}
		}
	}
	if stop == whole {
		for _, j := range joints {
			w.Keys[j.key].Begun = begun{}
		}
	}
	out.All = w.refuse(op, joints, now)
	return out
}

// judge decides which sums fit, and reports whether all do. In a transaction it locks the
// rows, which brings them to the present.
func (w *World) judge(op *Op, joints []*joint, possible bool, now int64) bool {
	all := possible
	for _, j := range joints {
		k := &w.Keys[j.key]
		j.blocked = k.blocked(now)
		j.fits = !j.blocked && k.fits(j.rules, now, j.rules.Ceiling, j.sum)
		if op.InTx && possible {
			k.deny(j.rules, now)
		}
		all = all && j.fits
	}
	return all
}

// takeAll grants all requests. Each is answered as if they had come one after the other.
func (w *World) takeAll(op *Op, joints []*joint, now int64) limiter.Results {
	each := make([]limiter.Result, len(op.Requests))
	for _, j := range joints {
		k, before := &w.Keys[j.key], 0.0
		k.put(j.rules, j.sum, now)
		v := k.State.Seen(&j.rules.Rules, now, k.Clock, j.rules.Capacity, 0)
		for i, q := range op.Requests {
			if q.Key != j.key {
				continue
			}
			before += q.Units
			a := k.answer(j.rules, v.Less(j.sum-before), now)
			a.Allowed, a.Granted, a.Delay = true, q.Units, j.rules.delay(a.Level-q.Units)
			each[i] = a
			w.grant(op, op.Number+i, k, v, q.Units)
		}
	}
	return results(each, true)
}

// refuse answers the requests of an AllowAll that was denied: whether each would have
// fitted after those before it.
func (w *World) refuse(op *Op, joints []*joint, now int64) limiter.Results {
	each := make([]limiter.Result, len(op.Requests))
	for _, j := range joints {
		k, need := &w.Keys[j.key], 0.0
		for i, q := range op.Requests {
			if q.Key != j.key {
				continue
			}
			need += q.Units
			a := k.standing(j.rules, now)
			a.Allowed = j.fits || !j.blocked && k.fits(j.rules, now, j.rules.Ceiling, need)
			if !a.Allowed {
				a.Reason, a.RetryAfter = reason(j.blocked), k.wait(j.rules, now, j.rules.Ceiling, need)
			}
			each[i] = a
		}
	}
	return results(each, false)
}

// results names the denied request with the longest RetryAfter, the first of equal ones.
func results(each []limiter.Result, allowed bool) limiter.Results {
	all := limiter.Results{Allowed: allowed, DeniedBy: -1, PerRequest: each}
	for i, a := range each {
		if !a.Allowed && (all.DeniedBy < 0 || a.RetryAfter > each[all.DeniedBy].RetryAfter) {
			all.DeniedBy = i
		}
	}
	return all
}
