package model

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Step returns the worlds in which op may have left w with that outcome. There are none if
// the outcome cannot be.
func Step(w *World, op *Op, out *Out) []*World {
	if op.Verb == Tx {
		return transact(w, op, out)
	}
	if op.Verb == Give {
		return attempt(w, op)
	}
	if out.Lost && (op.Verb == begins || op.Verb == denied) {
		worlds := []*World{w}
		for _, now := range op.Clocks {
			if v := w.partly(op, out, now); v != nil {
				worlds = append(worlds, v)
			}
		}
		return worlds
	}
	if out.Lost {
		worlds := attempt(w, &Op{Of: op, Clocks: op.Clocks})
		for _, now := range op.Clocks {
			for _, choice := range op.choices() {
				next := w.clone()
				if next.apply(op, now, whole+choice); !slices.ContainsFunc(worlds, next.Equal) {
					worlds = append(worlds, &next)
				}
			}
		}
		return worlds
	}
	if out.Result.Reason == limiter.ReasonKeys { // it has found no row
		if w.Keys[op.Key].State == nil {
			return []*World{w}
		}
		return nil
	}
	var worlds []*World
	for _, now := range clocks(op, out) {
		switch op.Verb {
		case denied, begins, reads:
			if v := w.partly(op, out, now); v != nil {
				worlds = append(worlds, v)
			}
			continue
		}
		for _, stop := range op.ends() {
			for _, skip := range w.rivals(op, now) {
				next := w.clone()
				next.skip = skip
				want := next.apply(op, now, stop)
				next.skip = 0
				if next.bind(op, &want, out) && matches(op, &want, out) {
					worlds = append(worlds, &next)
				}
			}
		}
	}
	return worlds
}

// How far an attempt came that did not end in the answer.
const (
	whole  = iota // all of it
	tried         // the request was denied
	forgot        // the overdue reservation of its idempotency key has ended
	gave          // plus n: at most n of the reservations in its way were given back
	lifted = 1000 // plus n: and the block that the denial had started was lifted

	hurried = -1 // a Wait had no time left; a Grant was refused by its process; what an idempotency key stands for was looked for earlier
)

var stops = []int{tried, forgot, gave + 1, gave + 2, gave + 100, lifted + 1, lifted + 2, lifted + 100}

// ends returns how far an operation may come. A denial stands if another client ends the
// reservations in its way, or moves the key's clock until they have leaked, before it gives
// them back, or if giving back fails. A Wait may be hurried.
func (op *Op) ends() []int {
	switch {
	case op.Verb == Attempt, op.Verb.pools():
		return op.choices()
	case op.Verb == Wait, op.Verb == Add:
		return []int{whole, hurried}
	case op.Rival && op.Idem != 0 && op.Verb == Allow:
		return []int{whole, tried, hurried}
	case op.Rival && op.tries():
		return []int{whole, tried}
	}
	return []int{whole}
}

// rivals returns the reservations that another client may be ending while op gives back those
// that have expired, and 0 for none.
func (w *World) rivals(op *Op, now int64) []int {
	ids := []int{0}
	if op.Rival && op.tries() {
		for i := range w.Held {
			if h := &w.Held[i]; h.overdue(now) && op.asks(h.Key) {
				ids = append(ids, h.ID)
			}
		}
	}
	return ids
}

// attempt returns the worlds that a first attempt of a request may leave: none was made, or
// it was denied, or expired reservations went back after that, each in its own statement.
// By then the request may fit.
func attempt(w *World, op *Op) []*World {
	worlds := []*World{w}
	if op.Touches {
		for _, now := range op.Clocks {
			next := w.clone()
			next.Keys[op.Key].deny(rulesOf(op.Of.Policy), now)
			worlds = append(worlds, &next)
		}
		return worlds
	}
	if op.Reads {
		for _, now := range op.Clocks {
			if next := w.read(op.Of, now); !slices.ContainsFunc(worlds, next.Equal) {
				worlds = append(worlds, next)
			}
		}
		return worlds
	}
	if len(w.Held) == 0 || !op.Of.tries() {
		return worlds
	}
	add := func(next *World) {
		if !slices.ContainsFunc(worlds, next.Equal) {
			worlds = append(worlds, next)
		}
	}
	stops := stops
	switch {
	case op.Forgets:
		stops = []int{forgot}
	case op.Denies:
		stops = []int{tried}
	}
	for _, now := range op.Clocks {
		for _, stop := range stops {
			for _, skip := range w.rivals(op.Of, now) {
				next := w.clone()
				next.skip = skip
				out := next.apply(op.Of, now, stop)
				if next.skip = 0; !out.Result.Allowed && !out.All.Allowed && out.Fault == "" {
					add(&next)
				}
				for key := range w.Keys {
					if stop >= gave && op.Of.asks(key) {
						next := w.clone()
						next.skip = skip
						next.give(key, now, most(stop))
						if next.skip = 0; stop >= lifted { // the block of a denial before
							next.Keys[key].lift(op.Of.Number)
						}
						add(&next)
					}
				}
			}
		}
	}
	return worlds
}

// clocks returns the readings at which an operation can have been decided: that of its
// answer, unless that is an earlier one.
func clocks(op *Op, out *Out) []int64 {
	at := out.At()
	replayed := func(r limiter.Result) bool { return r.Replayed }
	if op.SQL || at == 0 || slices.ContainsFunc(out.Results(), replayed) && op.Verb != Settle && op.Verb != SettleAll {
		return op.Clocks
	}
	for _, now := range op.Clocks {
		if now == at {
			return []int64{at}
		}
	}
	return nil
}

// bind gives a reservation the name that its first answer has.
func (w *World) bind(op *Op, want, out *Out) bool {
	if op.Verb == Attempt {
		return w.name(op, want, out)
	}
	if op.Verb == Acquire {
		return w.nameSlot(op, want, out)
	}
	if len(want.IDs) > 0 || len(out.IDs) > 0 {
		return w.bindAll(op, want, out)
	}
	if want.Held >= 0 || out.Held == 0 {
		return true
	}
	found := -1
	for i := range w.Held {
		if w.Held[i].ID == out.Held {
			return false // another has it
		}
		if w.Held[i].ID == want.Held {
			found = i
		}
	}
	w.Held[found].ID, want.Held = out.Held, out.Held
	return true
}

// transact does the steps of a transaction. Nothing is left of them if it was rolled back.
func transact(w *World, op *Op, out *Out) []*World {
	type branch struct {
		now   *World
		saved []*World
	}
	branches := []branch{{now: w}}
	for i := range op.Steps {
		if i >= len(out.Steps) { // it failed there
			break
		}
		var next []branch
		for _, b := range branches {
			n := len(b.saved)
			switch op.Steps[i].Verb {
			case Savepoint:
				next = append(next, branch{b.now, append(b.saved[:n:n], b.now)})
			case Forget:
				next = append(next, branch{b.now, b.saved[:n-1]})
			case Back:
				next = append(next, branch{b.saved[n-1], b.saved[:n-1]})
			default:
				for _, from := range locked(b.now, &op.Steps[i]) {
					for _, v := range Step(from, &op.Steps[i], &out.Steps[i]) {
						next = append(next, branch{v, b.saved})
					}
				}
			}
		}
		branches = next
	}
	if len(branches) == 0 && !out.Pending {
		return nil
	}
	var worlds []*World
	if !op.Commits || out.Lost {
		worlds = append(worlds, w)
	}
	if op.Commits {
		for _, b := range branches {
			worlds = append(worlds, b.now)
		}
	}
	return worlds
}

// locked returns the worlds in which a transaction's request looks for an admission under its
// idempotency key: as they were, or with the key's row locked, which moves the row's clock.
func locked(w *World, op *Op) []*World {
	if op.Idem == 0 || op.SQL {
		return []*World{w}
	}
	return attempt(w, &Op{Of: op, Key: op.Key, Clocks: op.Clocks, Touches: true})
}

// matches reports whether an outcome is the model's.
func matches(op *Op, want, got *Out) bool {
	w, g := want.Answer, got.Answer
	r := &w.Result
	if op.SQL { // a SQL function returns only a part
		r.Limit, r.Burst, r.Full, r.At = 0, 0, false, time.Time{}
	}
	if op.Verb == Settle && op.Rival && want.unmoved {
		// It shows the key as of when its statement began, and may then have waited.
		r.Level, r.Remaining, r.Full, r.ResetAfter = g.Result.Level, g.Result.Remaining, g.Result.Full, g.Result.ResetAfter
	}
	for _, i := range want.still {
		if g.Fault != "" {
			break
		}
		a, b := &w.All.PerRequest[i], g.All.PerRequest[i]
		a.Level, a.Remaining, a.Full, a.ResetAfter = b.Level, b.Remaining, b.Full, b.ResetAfter
	}
	if op.Verb == Wait && !r.Allowed && g.Result.RetryAfter >= r.RetryAfter && g.Result.RetryAfter <= want.longest {
		r.RetryAfter = g.Result.RetryAfter
	}
	// In a transaction that holds the key, another client may settle a reservation with all
	// of its units, which changes nothing of the key.
	if u := g.Usage; op.InTx && op.Rival && u.Reservations > w.Usage.Reservations && u.Spent+u.Reserved == w.Usage.Spent+w.Usage.Reserved {
		w.Usage.Reservations, w.Usage.Spent, w.Usage.Reserved = u.Reservations, u.Spent, u.Reserved
	}
	return same(op, &w, &g)
}

// Expected describes what the model answers, at each reading of the clock. It is empty for a
// part of an operation, and for a transaction.
func Expected(w *World, op *Op) (all []string) {
	for _, now := range op.Clocks {
		next := w.clone()
		out := next.apply(op, now, whole)
		all = append(all, Brief(out.Answer))
	}
	return all
}
