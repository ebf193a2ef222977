package contest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

const (
	openFor  = time.Minute // of a reservation that its client ends
	leftFor  = time.Second // of one that its client leaves open; the shortest possible
	endTries = 3           // of a Settle or Cancel without an answer; each may be repeated
	// freeingMost is the number of reservations of a key that gives all back. Then a new
	// key replaces it, because its row of a sliding_window_log grows.
	freeingMost = 200
)

// leftOpen is a reservation that its client left open.
type leftOpen struct {
	id      string
	units   int64
	expired time.Time
	of      *reservations
	books   *tally
}

// ending is what a client does with a reservation. Cancel is without units.
type ending struct {
	cancel, leave bool
	units         int64
}

// endingOf chooses the end of a reservation of n units: one that frees gives all back.
func endingOf(n int64, frees bool) ending {
	switch i := rand.IntN(10); {
	case i == 0:
		return ending{leave: true}
	case i < 4:
		return ending{cancel: true}
	case frees:
		return ending{}
	case i == 4:
		return ending{units: n + cost()}
	}
	return ending{units: rand.Int64N(n + 1)}
}

// reservationsOf returns the reservations of a key.
func (c *Contest) reservationsOf(s subject) *reservations {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.reservations[s]
	if all == nil {
		all = &reservations{}
		c.reservations[s] = all
	}
	return all
}

// reserve makes a reservation and ends it, or settles one that expired.
func (w *worker) reserve(ctx context.Context, s request) (manner, error) {
	if len(w.left) > 0 && time.Now().After(w.left[0].expired) {
		return alone, w.settleLate(ctx)
	}
	n, t, all := cost(), w.books.of(s), w.contest.reservationsOf(s.subject)
	frees := s.place == w.contest.groups[reservedKind][1]
	end, ttl := endingOf(n, frees), openFor
	if end.leave {
		ttl = leftFor
	}
	var r limiter.Reservation
	how, ok, err := w.ask(ctx, s.kind, n, []*tally{t}, func(ctx context.Context, d verbs.Limiter) (err error) {
		r, err = d.Reserve(ctx, s.policy.Request(s.key, float64(n)), ttl)
		return err
	})
	if !ok {
		if fateOf(err) == unknown {
			all.maybeReserved(n)
		}
		return how, err
	}
	switch {
	case !r.Result.Allowed:
		if n == 1 && !frees {
			s.usedUp()
		}
		return how, nil
	case how == rolledBack:
		t.rolledBack += n
		return how, nil
	}
	all.reserved(n)
	if frees && t.requests > freeingMost {
		s.usedUp()
	}
	if end.leave {
		all.expiring(n)
		w.left = append(w.left, leftOpen{r.ID, n, time.Now().Add(ttl), all, t})
		return how, nil
	}
	return how, w.end(ctx, all, t, r.ID, n, end)
}

// end settles or cancels a reservation, and repeats that now and then.
func (w *worker) end(ctx context.Context, all *reservations, t *tally, id string, n int64, e ending) error {
	all.ending(n, e.units)
	ended, err := w.answerTo(ctx, t, id, e)
	switch {
	case !ended:
		all.maybeEnded(n, e.units)
		return err
	case e.cancel:
		all.ended(&all.cancelled, n, e.units)
	default:
		all.ended(&all.settled, n, e.units)
	}
	switch rand.IntN(8) {
	case 0: // twice more, at once
		var wg sync.WaitGroup
		wg.Go(func() { _ = e.send(ctx, w.to, id) })
		_ = e.send(ctx, w.to, id)
		wg.Wait()
	case 1: // the other ending, which must be refused or change nothing
		_ = ending{cancel: !e.cancel, units: e.units + 1}.send(ctx, w.to, id)
	}
	return nil
}

// settleLate settles the oldest reservation that was left open, with half its units.
func (w *worker) settleLate(ctx context.Context) error {
	old := w.left[0]
	w.left = w.left[1:]
	e := ending{units: (old.units + 1) / 2}
	if ended, err := w.answerTo(ctx, old.books, old.id, e); !ended {
		old.of.maybeEnded(old.units, e.units)
		return err
	}
	old.of.lateEnded(old.units, e.units)
	return nil
}

// answerTo ends a reservation, repeats that if there is no answer, and reports whether one
// came. A reservation that is gone, or was ended otherwise, is a fault and not an error.
func (w *worker) answerTo(ctx context.Context, t *tally, id string, e ending) (ended bool, err error) {
	for range endTries {
		err = e.send(ctx, w.to, id)
		if errors.Is(err, limiter.ErrNoReservation) || errors.Is(err, limiter.ErrReservationEnded) {
			t.wrong("a reservation could not be ended: %v", err)
			return false, nil
		}
		if fateOf(err) != unknown {
			break
		}
	}
	if err != nil {
		return false, err
	}
	w.answered++
	return true, nil
}

func (e ending) send(ctx context.Context, to verbs.Limiter, id string) error {
	if e.cancel {
		return to.Cancel(ctx, id)
	}
	_, err := to.Settle(ctx, id, float64(e.units))
	return err
}
