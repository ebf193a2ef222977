package contest

import (
	"context"
	"math/rand/v2"

	"github.com/pglimit/pglimit/limiter"
)

// set sends an AllowAll of equal costs for the keys of a set, in any order. The last key of
// three is requested alone now and then, as a limit that many share.
func (w *worker) set(ctx context.Context, s request) (how manner, err error) {
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
		t.requests++
		t.asked += n
		requests, books = append(requests, m.policy.Request(m.key, float64(n))), append(books, t)
	}
	var all limiter.Results
	how, err = w.send(ctx, s.kind, func(ctx context.Context, d limiter.Decider) (err error) {
		all, err = d.AllowAll(ctx, requests...)
		return err
	})
	switch fateOf(err) {
	case answered:
	case unknown:
		for _, t := range books {
			t.unknown += n
		}
		return how, err
	default:
		return how, err
	}
	w.answered++
	for i, t := range books {
		switch {
		case all.Allowed && !all.PerRequest[i].Allowed:
			t.wrong("an AllowAll was allowed although this key's request was not")
		case all.Allowed && how == rolledBack:
			t.rolledBack += n
		case all.Allowed:
			t.admitted += n
		}
	}
	if !all.Allowed && n == 1 {
		s.usedUp()
	}
	return how, nil
}
