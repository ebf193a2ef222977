package model

import (
	"fmt"
	"slices"
)

// An AllowAll that is denied outside a transaction is not one moment: it tries all keys and
// rolls back, and then starts the blocks and reads the keys that would have fitted. Its
// history has an operation for each key. So of a denial it is checked that each key that is
// said to have lacked room lacked it at a moment of the call, with these numbers, and that
// the answers for every other key are of a moment of the call.
const (
	denied Verb = "AllDenied" // a key that lacked room
	begins Verb = "AllBlock"  // the block of a key
	reads  Verb = "AllRead"   // a key that did not
)

// Split returns the operations of a denied AllowAll, or none if it is one.
func Split(op *Op, out *Out) (parts []*Op) {
	if op.Verb != AllowAll || op.InTx || out.Lost || out.Fault != "" || out.Answer.Allowed {
		return nil
	}
	joints, possible := join(op.Requests), true
	for _, j := range joints {
		possible = possible && j.sum <= j.rules.capacity()
	}
	if possible && len(op.Requests) == 1 {
		return nil
	}
	part := func(verb Verb, j *joint) {
		p := *op
		p.Verb, p.Key, p.Rules = verb, j.key, j.rules
		parts = append(parts, &p)
	}
	for _, j := range joints {
		observe(op, out, j)
		if j.fits || !possible {
			part(reads, j)
			continue
		}
		if part(denied, j); !j.blocked && j.rules.BlockFor > 0 {
			part(begins, j)
		}
	}
	return parts
}

// observe sets what a joint's answers say of it: the last one is about its sum.
func observe(op *Op, out *Out, j *joint) {
	for i, q := range op.Requests {
		if q.Key == j.key {
			j.fits, j.blocked = out.Each[i].Allowed, out.Each[i].Reason == "blocked"
		}
	}
}

// partly does an operation of Split. It returns nil if the answers cannot be.
func (w *World) partly(op *Op, out *Out, now int64) *World {
	joints := join(op.Requests)
	next := w.clone()
	switch op.Verb {
	case begins:
		i := slices.IndexFunc(next.Dues, func(d Due) bool { return d.Op == op.Number && d.Key == op.Key })
		if i < 0 {
			return nil // it was not denied yet
		}
		next.Keys[op.Key].block(op.Rules.BlockFor, next.Dues[i].At)
		next.Dues = slices.Delete(next.Dues, i, i+1)
		return &next
	case reads:
		for _, j := range joints {
			if j.key != op.Key {
				continue
			}
			k := &w.Keys[j.key]
			if observe(op, out, j); j.sum > j.rules.capacity() || !possible(joints) {
				j.blocked = k.blocked(now)
				j.fits = !j.blocked && j.sum <= k.freeFor(j.rules, now)
			}
			if w.differs(op, joints, j, out, now) != "" {
				return nil
			}
		}
		return w
	}
	w.judge(op, joints, true, now)
	after := w.clone()
	for _, j := range joints {
		if j.key != op.Key {
			continue
		}
		seen := *j
		observe(op, out, &seen)
		if !j.fits && !j.blocked && j.rules.BlockFor > 0 {
			at := w.Keys[j.key].at(now)
			next.Keys[j.key].Blocked = at + j.rules.BlockFor // as its answer shows it
			after.Dues = append(after.Dues, Due{op.Number, j.key, at})
		}
		if !out.Pending && (j.fits || seen.blocked != j.blocked || out.DeniedBy != slowest(out.Each) || next.differs(op, joints, j, out, now) != "") {
			return nil
		}
	}
	return &after
}

func possible(joints []*joint) bool {
	for _, j := range joints {
		if j.sum > j.rules.capacity() {
			return false
		}
	}
	return true
}

// slowest returns the denied request with the longest RetryAfter, the first of equal ones.
func slowest(each []Answer) int {
	by := -1
	for i, a := range each {
		if !a.Allowed && (by < 0 || a.RetryAfter > each[by].RetryAfter) {
			by = i
		}
	}
	return by
}

// differs compares a joint's answers. The first ones of a log are read once more each.
func (w *World) differs(op *Op, joints []*joint, j *joint, out *Out, now int64) string {
	var want Out
	want.DeniedBy = -1
	w.refuse(op, joints, now, &want)
	last := -1
	for i, q := range op.Requests {
		if q.Key == j.key {
			last = i
		}
	}
	for i, q := range op.Requests {
		if q.Key != j.key || i != last && j.rules.Kind == Log {
			continue
		}
		if d := want.Each[i].Differs(out.Each[i], false, j.rules.loose()); d != "" {
			return fmt.Sprintf("request %d: %s", i, d)
		}
	}
	return ""
}
