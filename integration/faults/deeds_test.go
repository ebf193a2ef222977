package faults

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// deed is what callers do, and how often.
type deed struct {
	percent int
	do      func(*worker)
}

// deeds are those of the load.
var deeds = []deed{
	{12, allow}, {6, allowUpTo}, {8, (*worker).once}, {5, charge}, {8, (*worker).reserve}, {10, (*worker).giveBack},
	{7, (*worker).together}, {2, (*worker).inVain}, {2, (*worker).read},
	{4, inTx(allow)}, {2, inTx(allowUpTo)}, {2, inTx((*worker).once)}, {1, inTx(charge)}, {3, inTx((*worker).reserve)}, {2, inTx((*worker).together)},
	{14, tightly("Allow of a tight limit", verbs.Limiter.AllowN)}, {6, tightly("AllowUpTo of a tight limit", verbs.Limiter.AllowUpTo)}, {3, (*worker).tightTogether}, {3, (*worker).wait},
}

// inTx returns a deed whose requests are in transactions, with an order for each.
func inTx(do func(*worker)) func(*worker) {
	return func(w *worker) {
		w.inTx = true
		defer func() { w.inTx = false }()
		do(w)
	}
}

// verb asks a limiter, which may be in a transaction.
type verb func(context.Context, verbs.Limiter) error

// draw draws what to request: of a budget or, in a transaction, of an order.
func (w *worker) draw() part {
	policies := budgets
	if w.fault.relaxed && rand.IntN(2) == 0 {
		policies = relaxed
	}
	order := ""
	if w.inTx {
		policies, order = orders, w.newID("order")
	}
	p, key := anyOf(policies, places)
	return part{p, key, units(), order}
}

// send sends a request once: in a transaction if its parts have orders, which statement
// writes.
func (w *worker) send(what, statement string, do verb, parts ...part) (outcome, error) {
	if parts[0].Order == "" {
		return w.ask(what, func(ctx context.Context) error { return do(ctx, w.l) })
	}
	return w.transact(anyEnding(), func(ctx context.Context, tx *transaction) error {
		for _, p := range parts {
			n, err := tx.exec(ctx, statement, p.Order, p.Policy.Name, p.Key, p.Units)
			if err != nil {
				return err
			}
			if w.written = n == 1; !w.written && statement == changeOrder {
				return errGone // judge reports it, unless the fault may lose it
			}
		}
		return w.assessTx(ctx, do(ctx, tx.Tx))
	})
}

// method is a verb for one key.
type method func(verbs.Limiter, context.Context, limiter.Policy, string, float64) (limiter.Result, error)

var (
	allow     = request("Allow", verbs.Limiter.AllowN)
	allowUpTo = request("AllowUpTo", verbs.Limiter.AllowUpTo)
	charge    = request("Charge", verbs.Limiter.Charge)
)

// request returns a deed: a request for units.
func request(what string, ask method) func(*worker) {
	return func(w *worker) {
		p := w.draw()
		var r limiter.Result
		e := w.books.begin(what, "", p)
		o, err := w.send(what, insertOrder, func(ctx context.Context, l verbs.Limiter) (err error) {
			if r, err = ask(l, ctx, p.Policy, p.Key, p.Units); err == nil {
				w.granted(what, p.Policy, p.Key, r, p.Units)
			}
			return err
		}, p)
		if e.end(o, err); o == answered && what != "Charge" {
			w.keep(grant{p, r, ""})
		}
	}
}

// keep keeps a grant to give it back, which a queue does not allow.
func (w *worker) keep(g grant) {
	if g.Policy.Algorithm != limiter.LeakyBucketQueue && len(w.spent) < 20 {
		w.spent = append(w.spent, g)
	}
}

// once sends a request with an idempotency key until it is answered: it counts once.
func (w *worker) once() {
	const what = "Do, idempotent"
	p, id := w.draw(), w.newID("once")
	request := p.Policy.Request(p.Key, p.Units)
	request.IdempotencyKey = id
	if p.Order != "" {
		id = "" // only the whole transaction may be sent again
	}
	e := w.books.begin(what, id, p)
	e.end(w.insist(func() (outcome, error) {
		return w.send(what, insertOrder, func(ctx context.Context, l verbs.Limiter) error {
			r, err := l.Do(ctx, request)
			if err == nil {
				w.granted(what, p.Policy, p.Key, r, p.Units)
			}
			if err == nil && p.Order != "" && r.Replayed == w.written {
				w.faults.add("%s: its order was inserted: %v, and the answer is %+v", p.Order, w.written, r)
			}
			return err
		}, p)
	}))
}

// reserve reserves units.
func (w *worker) reserve() {
	p := w.draw()
	for !reservable(p.Policy, p.Key) || p.Policy.Durability == limiter.Relaxed {
		p = w.draw()
	}
	p.Units++
	request := p.Policy.Request(p.Key, p.Units)
	what, again := "Reserve", rand.IntN(2) == 0
	if again {
		what, request.IdempotencyKey = "Reserve, idempotent", w.newID("reserve")
	}
	var res limiter.Reservation
	send := func() (outcome, error) {
		return w.send(what, insertOrder, func(ctx context.Context, l verbs.Limiter) (err error) {
			if res, err = l.Reserve(ctx, request, time.Hour); err == nil {
				w.granted(what, p.Policy, p.Key, res.Result, p.Units)
			}
			return err
		}, p)
	}
	if insist := send; again {
		send = func() (outcome, error) { return w.insist(insist) }
	}
	e := w.books.begin(what, "", p)
	o, err := send()
	if e.end(o, err); o == answered {
		w.keep(grant{p, res.Result, res.ID})
	}
}

// giveBack refunds or undoes an earlier grant of this caller, or settles or cancels its
// reservation: in a transaction if it was granted in one. Only the end of a reservation is sent
// again, and only alone.
func (w *worker) giveBack() {
	if len(w.spent) == 0 {
		allow(w)
		return
	}
	g := w.spent[0]
	w.spent = w.spent[1:]
	p, back := g.part, g.part
	back.Units = -p.Units
	// A refund takes the newest entries of a log, and so what a reservation or an Undo would give
	// back. An order has to know beforehand how much goes back.
	what := "Refund"
	if p.Order == "" && rand.IntN(2) == 0 || p.Policy.Algorithm == limiter.SlidingWindowLog && reservable(p.Policy, p.Key) {
		what = "Undo"
	}
	if g.hold != "" {
		what = "Cancel"
	}
	if g.hold != "" && rand.IntN(3) > 0 {
		what, back.Units = "Settle", float64(rand.IntN(int(p.Units)+3))-p.Units
	}
	var r limiter.Result
	send := func() (outcome, error) {
		return w.send(what, changeOrder, func(ctx context.Context, l verbs.Limiter) (err error) {
			switch what {
			case "Refund":
				r, err = l.Refund(ctx, p.Policy, p.Key, p.Units)
			case "Undo":
				r, err = l.Undo(ctx, p.Policy, p.Key, g.result)
			case "Cancel":
				err = l.Cancel(ctx, g.hold)
			case "Settle":
				_, err = l.Settle(ctx, g.hold, p.Units+back.Units)
			}
			return err
		}, back)
	}
	e := w.books.begin(what, "", back)
	if g.hold != "" && p.Order == "" {
		e.end(w.insist(send))
		return
	}
	o, err := send()
	if o == answered && g.hold == "" {
		e.Parts[0].Units = -r.Granted
	}
	e.end(o, err)
}

// together requests two keys at once, with or without an idempotency key.
func (w *worker) together() {
	p, q := w.draw(), w.draw()
	if p.Policy == q.Policy && p.Key == q.Key {
		return
	}
	what, id, one, two := "AllowAll", "", p.Policy.Request(p.Key, p.Units), q.Policy.Request(q.Key, q.Units)
	again := rand.IntN(2) == 0
	if again {
		what, id = "AllowAll, idempotent", w.newID("all")
		one.IdempotencyKey, two.IdempotencyKey = id, id
	}
	if p.Order != "" {
		id = "" // as in once
	}
	e := w.books.begin(what, id, p, q)
	send := func() (outcome, error) {
		return w.send(what, insertOrder, func(ctx context.Context, l verbs.Limiter) error {
			all, err := l.AllowAll(ctx, one, two)
			if err == nil {
				w.granted(what, p.Policy, p.Key, all.PerRequest[0], p.Units)
				w.granted(what, q.Policy, q.Key, all.PerRequest[1], q.Units)
			}
			return err
		}, p, q)
	}
	if again {
		e.end(w.insist(send))
	} else {
		e.end(send())
	}
}

// inVain requests a budget together with a limit that has no room: nothing is counted.
func (w *worker) inVain() {
	p := w.draw()
	w.ask("AllowAll with a full limit", func(ctx context.Context) error {
		all, err := w.l.AllowAll(ctx, p.Policy.Request(p.Key, p.Units), closed.Request("key", 2))
		if err == nil && all.Allowed {
			w.faults.add("AllowAll with a full limit: %+v", all)
		}
		return err
	})
}

// read consumes nothing.
func (w *worker) read() {
	p := w.draw()
	w.ask("Check", func(ctx context.Context) error {
		_, err := w.l.Check(ctx, p.Policy, p.Key, float64(rand.IntN(5)))
		return err
	})
}

// tightly returns a deed: a request for units of a tight limit.
func tightly(what string, ask method) func(*worker) {
	return func(w *worker) {
		p, key := anyOf(tight, tightKeys)
		n := float64(1 + rand.IntN(4))
		w.ask(what, func(ctx context.Context) error {
			r, err := ask(w.l, ctx, p, key, n)
			w.admitted(p, key, r, err)
			return err
		})
	}
}

func (w *worker) tightTogether() {
	p, k := anyOf(tight, tightKeys)
	q, j := anyOf(tight, tightKeys)
	if p == q && k == j {
		return
	}
	w.ask("AllowAll of tight limits", func(ctx context.Context) error {
		all, err := w.l.AllowAll(ctx, p.Request(k, 1), q.Request(j, 1))
		if err == nil && all.Allowed {
			w.admitted(p, k, all.PerRequest[0], nil)
			w.admitted(q, j, all.PerRequest[1], nil)
		}
		return err
	})
}

// wait joins a queue. It sleeps there, so its time is not measured.
func (w *worker) wait() {
	p := tightQueue()
	ctx, cancel := w.patiently()
	defer cancel()
	ctx, leave := context.WithTimeout(ctx, rand.N(400*time.Millisecond))
	defer leave()
	r, err := w.l.DoWait(ctx, p.Request("key-0", 1))
	w.admitted(p, "key-0", r, err)
	w.assess("DoWait", err)
}

// admitted records what a tight limit let pass.
func (w *worker) admitted(p limiter.Policy, key string, r limiter.Result, err error) {
	switch {
	case err != nil || r.Granted == 0 || !r.Allowed:
	case r.Source != limiter.SourceDatabase:
		w.faults.add("%s of %s was admitted without the database: %+v", key, p.Name, r)
	default:
		w.books.admit(p, key, r)
	}
}
