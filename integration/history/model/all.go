package model

// joint is the requests of an AllowAll for one key.
type joint struct {
	key     int
	rules   *Rules
	sum     float64
	fits    bool
	blocked bool
}

// all does an AllowAll: all requests are granted or none.
func (w *World) all(op *Op, now int64, stop int) (out Out) {
	out.DeniedBy = -1
	if len(op.Requests) == 1 && op.Requests[0].Units <= op.Requests[0].Rules.capacity() {
		q := op.Requests[0]
		one := w.request(&Op{Number: op.Number, Verb: Allow, Key: q.Key, Rules: q.Rules, Units: q.Units, Kept: op.Kept}, now, stop)
		out.Each, out.Answer.Allowed = []Answer{one.Answer}, one.Answer.Allowed
		if !out.Answer.Allowed {
			out.DeniedBy = 0
		}
		return out
	}
	joints := join(op.Requests)
	possible := true
	for _, j := range joints {
		possible = possible && j.sum <= j.rules.capacity()
	}
	for again := true; again; {
		again = false
		if stop == whole {
			for _, j := range joints {
				w.Keys[j.key].lift(op.Number)
			}
		}
		allowed := w.judge(op, joints, possible, now)
		if allowed {
			w.takeAll(op, joints, now, &out)
			return out
		}
		for _, j := range joints { // blocks begin
			if k := &w.Keys[j.key]; possible && !j.fits && !j.blocked && j.rules.BlockFor > 0 {
				k.Blocked = max(k.Blocked, k.at(now)+j.rules.BlockFor)
				k.Begun = begun{op.Number, k.Blocked}
			}
		}
		if stop == tried {
			break
		}
		for _, j := range joints {
			if j.fits || j.blocked || j.sum > j.rules.capacity() || j.rules.Kind == Queue || !w.give(j.key, now, most(stop)) {
				continue
			}
			again = stop == whole
		}
	}
	if stop == whole {
		for _, j := range joints {
			w.Keys[j.key].Begun = begun{}
		}
	}
	w.refuse(op, joints, now, &out)
	return out
}

// join adds up the requests for each key.
func join(requests []Request) (joints []*joint) {
next:
	for _, q := range requests {
		for _, j := range joints {
			if j.key == q.Key {
				j.sum += q.Units
				continue next
			}
		}
		joints = append(joints, &joint{key: q.Key, rules: q.Rules, sum: q.Units})
	}
	return joints
}

// judge decides which sums fit, and reports whether all do. In a transaction it locks the
// rows, which brings them to the present.
func (w *World) judge(op *Op, joints []*joint, possible bool, now int64) bool {
	all := possible
	for _, j := range joints {
		k := &w.Keys[j.key]
		j.blocked = k.blocked(now)
		j.fits = !j.blocked && j.sum <= k.freeFor(j.rules, now)
		if op.InTx && possible {
			k.deny(j.rules, now)
		}
		all = all && j.fits
	}
	return all
}

// takeAll grants all requests. Each is answered as if they had come one after the other.
func (w *World) takeAll(op *Op, joints []*joint, now int64, out *Out) {
	for _, j := range joints {
		w.Keys[j.key].begin(now)
		w.Keys[j.key].pass(j.rules, now)
	}
	for i, q := range op.Requests {
		k := &w.Keys[q.Key]
		k.add(q.Rules, k.at(now), q.Units)
		a := k.standing(q.Rules, now)
		a.Allowed, a.Granted = true, q.Units
		k.delay(q.Rules, a.Level-q.Units, &a)
		out.Each = append(out.Each, a)
		k.decided(q.Rules, now)
		if op.Kept[op.Number+i] {
			w.Grants = append(w.Grants, k.grant(q.Rules, op.Number+i, q.Units))
		}
	}
	out.Answer.Allowed = true
}

// refuse answers the requests of an AllowAll that was denied: whether each would have
// fitted after those before it.
func (w *World) refuse(op *Op, joints []*joint, now int64, out *Out) {
	needs := map[int]float64{}
	for i, q := range op.Requests {
		k := &w.Keys[q.Key]
		needs[q.Key] += q.Units
		need := needs[q.Key]
		var own *joint
		for _, j := range joints {
			if j.key == q.Key {
				own = j
			}
		}
		a := k.standing(q.Rules, now)
		a.Allowed = own.fits || !own.blocked && need <= k.freeFor(q.Rules, now)
		if !a.Allowed {
			a.Reason = "limit"
			if own.blocked {
				a.Reason = "blocked"
			}
			k.wait(q.Rules, now, need, &a)
			if out.DeniedBy < 0 || a.RetryAfter > out.Each[out.DeniedBy].RetryAfter {
				out.DeniedBy = i
			}
		}
		out.Each = append(out.Each, a)
	}
}
