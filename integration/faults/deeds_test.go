package faults

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// deed is what callers do, and how often.
type deed struct {
	percent int
	do      func(*worker)
}

// deeds are those of the load.
var deeds = []deed{
	{14, allow}, {6, allowUpTo}, {8, (*worker).once}, {6, charge}, {6, (*worker).giveBack},
	{8, (*worker).reservation}, {8, (*worker).together}, {2, (*worker).inVain}, {2, (*worker).read},
	{6, (*worker).order}, {2, (*worker).orderTogether}, {2, (*worker).orderOnce}, {4, (*worker).endOrder},
	{14, tightly("Allow of a tight limit", (*limiter.Limiter).AllowN)}, {6, tightly("AllowUpTo of a tight limit", (*limiter.Limiter).AllowUpTo)}, {3, (*worker).tightTogether}, {3, (*worker).wait},
}

// budget draws a policy for requests outside of transactions, and a key of it.
func (w *worker) budget() (limiter.Policy, string) {
	if w.fault.relaxed && rand.IntN(2) == 0 {
		return anyOf(relaxed, places)
	}
	return anyOf(budgets, places)
}

// method is a verb for one key.
type method func(*limiter.Limiter, context.Context, limiter.Policy, string, float64) (limiter.Result, error)

var (
	allow     = request("Allow", (*limiter.Limiter).AllowN)
	allowUpTo = request("AllowUpTo", (*limiter.Limiter).AllowUpTo)
	charge    = request("Charge", (*limiter.Limiter).Charge)
)

// request returns a deed: a request for units of a budget.
func request(what string, send method) func(*worker) {
	return func(w *worker) {
		p, key := w.budget()
		n := units()
		var r limiter.Result
		e := w.books.begin(what, "", part{p, key, n, ""})
		o, err := w.ask(what, func(ctx context.Context) (err error) { r, err = send(w.l, ctx, p, key, n); return err })
		if e.end(o, err); o != answered {
			return
		}
		w.granted(what, p, key, r, n)
		if p.Algorithm != limiter.LeakyBucketQueue && what != "Charge" && len(w.spent) < 20 {
			w.spent = append(w.spent, grant{p, key, r})
		}
	}
}

// once sends a request with an idempotency key until it is answered: it counts once.
func (w *worker) once() {
	p, key := w.budget()
	request := p.Request(key, units())
	request.IdempotencyKey = w.newID("once")
	e := w.books.begin("Do, idempotent", request.IdempotencyKey, part{p, key, request.Cost, ""})
	e.end(w.insist("Do, idempotent", func(ctx context.Context) error {
		r, err := w.l.Do(ctx, request)
		if err == nil {
			w.granted("Do, idempotent", p, key, r, request.Cost)
		}
		return err
	}))
}

// giveBack refunds or undoes an earlier grant of this caller. Neither is sent again.
func (w *worker) giveBack() {
	if len(w.spent) == 0 {
		allow(w)
		return
	}
	g := w.spent[0]
	w.spent = w.spent[1:]
	what := "Refund"
	// A refund takes the newest entries of a log, and so what a reservation would give back.
	undo := rand.IntN(2) == 0 || g.policy.Algorithm == limiter.SlidingWindowLog && reservable(g.policy, g.key)
	if undo {
		what = "Undo"
	}
	var r limiter.Result
	e := w.books.begin(what, "", part{g.policy, g.key, -g.result.Granted, ""})
	o, err := w.ask(what, func(ctx context.Context) (err error) {
		if undo {
			r, err = w.l.Undo(ctx, g.policy, g.key, g.result)
		} else {
			r, err = w.l.Refund(ctx, g.policy, g.key, g.result.Granted)
		}
		return err
	})
	if o == answered {
		e.Parts[0].Units = -r.Granted
	}
	e.end(o, err)
}

// reservation reserves units, and settles or cancels them until that is answered.
func (w *worker) reservation() {
	p, key := anyReservable()
	request := p.Request(key, 1+units())
	var res limiter.Reservation
	reserve := func(ctx context.Context) (err error) {
		res, err = w.l.Reserve(ctx, request, time.Hour)
		return err
	}
	what, send := "Reserve", w.ask
	if rand.IntN(2) == 0 {
		what, send = "Reserve, idempotent", w.insist
		request.IdempotencyKey = w.newID("reserve")
	}
	e := w.books.begin(what, "", part{p, key, request.Cost, ""})
	o, err := send(what, reserve)
	if e.end(o, err); o != answered {
		return
	}
	w.granted(what, p, key, res.Result, request.Cost)
	w.let(rand.N(4 * pause))
	spent := 0.0
	end := func(ctx context.Context) error { return w.l.Cancel(ctx, res.ID) }
	if what = "Cancel"; rand.IntN(3) > 0 {
		what, spent = "Settle", float64(rand.IntN(int(request.Cost)+3))
		end = func(ctx context.Context) error { _, err := w.l.Settle(ctx, res.ID, spent); return err }
	}
	e = w.books.begin(what, "", part{p, key, spent - request.Cost, ""})
	e.end(w.insist(what, end))
}

// together requests two budgets at once.
func (w *worker) together() {
	p, k := w.budget()
	q, j := w.budget()
	if p == q && k == j {
		return
	}
	requests := []limiter.Request{p.Request(k, units()), q.Request(j, units())}
	var all limiter.Results
	e := w.books.begin("AllowAll", "", part{p, k, requests[0].Cost, ""}, part{q, j, requests[1].Cost, ""})
	o, err := w.ask("AllowAll", func(ctx context.Context) (err error) { all, err = w.l.AllowAll(ctx, requests...); return err })
	e.end(o, err)
	for i, r := range requests {
		if o == answered {
			w.granted("AllowAll", r.Policy, r.Key, all.PerRequest[i], r.Cost)
		}
	}
}

// inVain requests a budget together with a limit that has no room: nothing is counted.
func (w *worker) inVain() {
	p, key := w.budget()
	w.ask("AllowAll with a full limit", func(ctx context.Context) error {
		all, err := w.l.AllowAll(ctx, p.Request(key, units()), closed.Request("key", 2))
		if err == nil && all.Allowed {
			w.faults.add("AllowAll with a full limit: %+v", all)
		}
		return err
	})
}

// read consumes nothing.
func (w *worker) read() {
	p, key := w.budget()
	w.ask("Check", func(ctx context.Context) error { _, err := w.l.Check(ctx, p, key, float64(rand.IntN(5))); return err })
}

// tightly returns a deed: a request for units of a tight limit.
func tightly(what string, send method) func(*worker) {
	return func(w *worker) {
		p, key := anyOf(tight, tightKeys)
		n := float64(1 + rand.IntN(4))
		w.ask(what, func(ctx context.Context) error {
			r, err := send(w.l, ctx, p, key, n)
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
