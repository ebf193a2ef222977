package contest

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

const (
	maxCost = 3

	// Of 1,000 requests, the number in transactions that roll back and that commit, and
	// the number from clients that disconnect within maxPatience.
	inTxAndBack, inTxAndKept, impatient = 80, 80, 5
	maxPatience                         = 3 * time.Millisecond
)

// manner is the way in which a request was sent.
type manner int

const (
	alone manner = iota
	kept
	rolledBack
	left // by a client that may have disconnected before the answer
)

// send sends a request for a key of a kind in one of the manners.
func (w *worker) send(ctx context.Context, k kind, do func(context.Context, verbs.Limiter) error) (manner, error) {
	in := func(ctx context.Context, commit bool) error {
		return w.to.InTx(ctx, commit, func(tx verbs.Limiter) error { return do(ctx, tx) })
	}
	switch d := rand.IntN(1000); {
	case k == heldKind: // in a transaction it would occupy its connection while it waits
	case d < inTxAndBack:
		return rolledBack, in(ctx, false)
	case d < inTxAndBack+inTxAndKept:
		return kept, in(ctx, true)
	case d < inTxAndBack+inTxAndKept+impatient:
		ctx, cancel := context.WithTimeout(ctx, rand.N(maxPatience))
		defer cancel()
		return left, do(ctx, w.to)
	}
	return alone, do(ctx, w.to)
}

// cost returns the units of a request.
func cost() int64 { return int64(1 + rand.IntN(maxCost)) }

// ask sends a request of n units for the keys of books, and counts it there. It reports
// whether there was an answer.
func (w *worker) ask(ctx context.Context, k kind, n int64, books []*tally, do func(context.Context, verbs.Limiter) error) (how manner, ok bool, err error) {
	for _, t := range books {
		t.requests++
		t.asked += n
	}
	began := time.Now()
	how, err = w.send(ctx, k, do)
	switch fateOf(err) {
	case answered:
		w.answered++
		if how == alone && k != heldKind {
			w.latencies = append(w.latencies, time.Since(began))
		}
	case unknown:
		for _, t := range books {
			t.Add(0, float64(n))
		}
	}
	return how, err == nil, err
}

// lone sends a request for one key.
func (w *worker) lone(ctx context.Context, s request) (manner, error) {
	n, t := cost(), w.books.of(s)
	var r limiter.Result
	how, ok, err := w.ask(ctx, s.kind, n, []*tally{t}, func(ctx context.Context, d verbs.Limiter) (err error) {
		r, err = d.AllowN(ctx, s.policy, s.key, float64(n))
		return err
	})
	if !ok {
		return how, err
	}
	admitted := r.Allowed && how != rolledBack
	switch {
	case admitted:
		t.Add(float64(n), float64(n))
	case r.Allowed:
		t.rolledBack += n
	case n == 1:
		s.usedUp()
	}
	if s.kind == ticksKind && math.Abs(r.Level-math.Round(r.Level)) > bound.Slack {
		t.wrong("the answer at %s counts %.3f units, but only whole units leak in a tick", stamp(r.At), r.Level)
	}
	if s.kind == alignedKind || s.kind == calendarKind {
		t.inWindow(s.policy, r, n, admitted)
	}
	return how, nil
}

// set sends an AllowAll of equal costs for the keys of a set, in any order. The last key of
// three is requested alone now and then, like a limit that is shared.
func (w *worker) set(ctx context.Context, s request) (manner, error) {
	members := s.members()
	if len(members) > sharedMember && rand.IntN(4) == 0 {
		w.books.of(members[sharedMember]).set = s.key
		return w.lone(ctx, members[sharedMember])
	}
	n := cost()
	var requests []limiter.Request
	var books []*tally
	for _, i := range rand.Perm(len(members)) {
		m := members[i]
		t := w.books.of(m)
		t.set, t.alike = s.key, i != sharedMember
		requests, books = append(requests, m.policy.Request(m.key, float64(n))), append(books, t)
	}
	var all limiter.Results
	how, ok, err := w.ask(ctx, s.kind, n, books, func(ctx context.Context, d verbs.Limiter) (err error) {
		all, err = d.AllowAll(ctx, requests...)
		return err
	})
	if !ok {
		return how, err
	}
	for i, t := range books {
		switch {
		case all.Allowed && !all.PerRequest[i].Allowed:
			t.wrong("an AllowAll was allowed although this key's request was not")
		case all.Allowed && how == rolledBack:
			t.rolledBack += n
		case all.Allowed:
			t.Add(float64(n), float64(n))
		}
	}
	if !all.Allowed && n == 1 {
		s.usedUp()
	}
	return how, nil
}
