package model

import "slices"

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

// Parts returns the operations of an AllowAll or ReserveAll that was denied, or may have been
// because its answer is lost, and else op.
func Parts(op *Op, out *Out) (parts []*Op) {
	if op.Verb != AllowAll && op.Verb != ReserveAll || op.InTx || out.Fault != "" || out.All.Allowed {
		return []*Op{op}
	}
	joints, possible := join(op.Requests)
	if possible && len(op.Requests) == 1 {
		return []*Op{op}
	}
	part := func(verb Verb, j *joint) {
		p := *op
		p.Verb, p.Key, p.Policy = verb, j.key, op.Requests[last(op, j)].Policy
		parts = append(parts, &p)
	}
	if out.Lost {
		parts = append(parts, op)
	}
	for _, j := range joints {
		if out.Lost {
			if possible && j.rules.BlockFor > 0 {
				part(denied, j)
				part(begins, j)
			}
			continue
		}
		observe(op, out, j)
		if j.fits || !possible {
			part(reads, j)
			continue
		}
		if part(denied, j); j.begins() {
			part(begins, j)
		}
	}
	return parts
}

// last returns the last request of a joint.
func last(op *Op, j *joint) (i int) {
	for n, q := range op.Requests {
		if q.Key == j.key {
			i = n
		}
	}
	return i
}

// observe sets what a joint's answers say of it: the last one is about its sum.
func observe(op *Op, out *Out, j *joint) {
	a := out.All.PerRequest[last(op, j)]
	j.fits, j.blocked = a.Allowed, a.Reason == reason(true)
}

// partly does an operation of Parts. It returns nil if the answers cannot be.
func (w *World) partly(op *Op, out *Out, now int64) *World {
	joints, possible := join(op.Requests)
	j := joints[slices.IndexFunc(joints, func(j *joint) bool { return j.key == op.Key })]
	next := w.clone()
	switch op.Verb {
	case begins:
		i := slices.IndexFunc(next.Dues, func(d Due) bool { return d.Op == op.Number && d.Key == op.Key })
		if i < 0 {
			return nil // it was not denied yet
		}
		next.Keys[op.Key].block(j.rules, j.rules.BlockFor, next.Dues[i].At, next.Dues[i].At)
		next.Dues = slices.Delete(next.Dues, i, i+1)
		return &next
	case reads:
		if observe(op, out, j); !possible {
			w.judge(op, []*joint{j}, false, now)
		}
		if w.differs(op, j, out, now) {
			return nil
		}
		return w
	}
	if h := w.admitted(op); h != nil && h.Forget > now && !h.overdue(now) {
		return nil // it looks for that again
	}
	w.judge(op, joints, true, now)
	after, seen := w.clone(), *j
	if !out.Lost {
		observe(op, out, &seen)
	}
	if j.begins() {
		at := max(w.Keys[j.key].Clock, now)
		next.Keys[j.key].begin(j.rules, now)
		next.Keys[j.key].Blocked = at + j.rules.BlockFor // as its answer shows it
		after.Dues = append(after.Dues, Due{Op: op.Number, Key: j.key, At: at})
	}
	if !out.Lost && (j.fits || seen.blocked != j.blocked || out.All.DeniedBy != results(out.All.PerRequest, false).DeniedBy || next.differs(op, j, out, now)) {
		return nil
	}
	return &after
}

// differs reports whether the answers for a joint's key are not the model's. Of a sliding log it
// compares the last answer only: a separate statement reads each answer before that.
func (w *World) differs(op *Op, j *joint, out *Out, now int64) bool {
	want := w.refuse(op, []*joint{j}, now)
	for i, q := range op.Requests {
		if q.Key == j.key && (i == last(op, j) || q.Policy.Algorithm != "sliding_window_log") &&
			!Same(q.Policy, want.PerRequest[i], out.All.PerRequest[i]) {
			return true
		}
	}
	return false
}
