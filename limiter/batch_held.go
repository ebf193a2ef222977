package limiter

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/db"
)

// heldAfter is how long a statement waits for a row's lock until it is taken
// for held: it would keep its neighbours waiting.
const heldAfter = 10 * time.Millisecond

var heldAfterText = milliseconds(heldAfter)

// heldKey is a key in the lane, whose row another transaction holds.
type heldKey struct {
	slot
	next, last *row          // of its rows; next may be in flight
	wait       time.Duration // how long the lane last waited for the row
}

// part runs the rows of a batch again that nobody holds, and sends the others
// to the lane.
func (l *line) part(ctx context.Context, s *statement, batch []*row) {
	if len(batch) == 1 {
		l.holdAll(batch)
		return
	}
	var p db.TokenBucketHeldParams
	for _, r := range batch {
		p.Policies = append(p.Policies, r.q.policy)
		p.Keys = append(p.Keys, r.q.key)
	}
	var found []db.TokenBucketHeldRow
	err := l.store.runner.do(ctx, func(tx db.DBTX) (err error) {
		found, err = l.table.held(ctx, tx, p)
		return err
	})
	if err != nil {
		for _, r := range batch {
			r.answer(translate(err, false))
		}
		return
	}
	if len(found) == 0 {
		// Either it is free again, or its transaction has inserted it, and nobody
		// else can see it yet.
		l.runPieces(s, batch)
		return
	}
	var free, held []*row
	for _, r := range batch {
		if slices.Contains(found, db.TokenBucketHeldRow{Policy: r.q.policy, Key: r.q.key}) {
			held = append(held, r)
		} else {
			free = append(free, r)
		}
	}
	l.holdAll(held)
	l.run(s, free)
}

func (l *line) holdAll(rows []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		l.hold(r)
	}
}

// hold gives a row to the lane: lone statements, few at a time, that wait for
// held rows while the others go on. l.mu is locked.
func (l *line) hold(r *row) {
	r.sent = false
	k := r.q.slot()
	h := l.held[k]
	if h == nil {
		h = &heldKey{slot: k, next: r}
		l.held[k] = h
		l.lane = append(l.lane, h)
	} else {
		h.last.behind = r
	}
	h.last = r
	if last := l.last[k]; last != nil { // who came meanwhile comes after
		i := slices.IndexFunc(l.queue, func(r *row) bool { return r.q.slot() == k })
		r.behind, h.last = l.queue[i], last
		l.queue = slices.Delete(l.queue, i, i+1)
		delete(l.last, k)
	}
	if l.inOwn < cap(l.patient) {
		l.inOwn++
		l.running.Add(1)
		go l.own()
	}
}

// own is the lane. Keys take turns in it, so that one which is free again, or
// was held for a moment only, does not wait for those that are not.
func (l *line) own() {
	defer l.running.Done()
	s := statements.Get().(*statement)
	defer statements.Put(s)
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.lane) > 0 {
		h := l.lane[0]
		l.lane = slices.Delete(l.lane, 0, 1)
		r, err := l.turn(s, h)
		if err == errHeld {
			l.lane = append(l.lane, h)
			continue
		}
		// One has returned: the row is free, or its callers have given up. Who
		// came meanwhile is asked for with all others.
		delete(l.held, h.slot)
		if h.next != nil {
			l.last[h.slot] = h.last
			l.queue = append(l.queue, h.next)
			if l.inFlight == 0 {
				l.start()
			}
		}
		if r != nil {
			r.answer(err)
		}
	}
	l.inOwn--
}

// turn is one turn of a key in the lane: it asks for the first row that still
// has callers, and returns it, off the lane, unless it is held still. l.mu is
// locked, but not while it waits.
func (l *line) turn(s *statement, h *heldKey) (*row, error) {
	l.mu.Unlock()
	l.patient <- struct{}{}
	defer func() { <-l.patient }()
	l.mu.Lock()
	for h.next != nil && !h.next.prepare() {
		h.next = h.next.behind
	}
	r := h.next
	if r == nil {
		return nil, nil
	}
	h.wait = l.longer(h.wait)
	l.mu.Unlock()
	err := l.patiently(s, r, h.wait)
	l.mu.Lock()
	if err == errHeld {
		r.sent = false
		return nil, err
	}
	h.next = r.behind
	return r, err
}

// longer is how long a turn waits after one that waited that long in vain. The
// server logs each, so they must not be many; and the longer a row has been held,
// the longer others may wait for their turn.
func (l *line) longer(wait time.Duration) time.Duration {
	most := l.config.Timeout
	if most <= 0 {
		most = DefaultTimeout
	}
	return max(time.Millisecond, min(max(heldAfter, 2*wait), most))
}

// patiently asks for a row that may be held. The server ends the wait, since a
// cancelled context would close the connection.
func (l *line) patiently(s *statement, r *row, wait time.Duration) error {
	ctx, cancel := l.detached(2 * l.config.Timeout)
	defer cancel()
	for {
		err := l.send(ctx, s, []*row{r}, milliseconds(wait))
		if err != errOtherPeriod {
			return err
		}
		if err = l.store.compare(ctx, r.q); err != nil {
			return err
		}
	}
}

// asHeld tells a lock that was waited for too long from a conflict that is
// worth another try.
func asHeld(err error) error {
	if sqlState(err) == lockNotAvailable {
		return errHeld
	}
	return err
}

// orHeld is a statement that returns errHeld.
func orHeld(f func(context.Context, db.DBTX, *question) (outcome, error)) func(context.Context, db.DBTX, *question) (outcome, error) {
	return func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		o, err := f(ctx, tx, q)
		return o, asHeld(err)
	}
}

// milliseconds is a time as lock_timeout takes it.
func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }
