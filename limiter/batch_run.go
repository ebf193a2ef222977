package limiter

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/db"
)

// splitRows is for how many keys that wait another statement is worth its
// price while one is in flight. Fewer keys wait for that one: on a single hot key
// two statements would only wait for each other.
const splitRows = 8

// drain sends batches until nobody waits, or few enough for the other
// statements in flight.
func (l *line) drain() {
	defer l.running.Done()
	s := statements.Get().(*statement)
	defer statements.Put(s)
	for {
		l.mu.Lock()
		if len(l.queue) == 0 || l.inFlight > 1 && len(l.queue) < splitRows {
			l.inFlight--
			l.mu.Unlock()
			return
		}
		s.batch = l.next(s.batch[:0])
		l.mu.Unlock()
		l.run(s, s.batch)
		clear(s.batch) // its rows are their callers' again
		// Those who were answered ask again, often: let them, so that the next
		// statement has more to carry.
		runtime.Gosched()
	}
}

// run decides a batch, whatever becomes of its statement.
func (l *line) run(s *statement, batch []*row) {
	if len(batch) == 0 {
		return
	}
	slices.SortFunc(batch, func(a, b *row) int {
		return cmp.Or(strings.Compare(a.q.policy, b.q.policy), strings.Compare(a.q.key, b.q.key))
	})
	ctx, cancel := l.detached(l.config.Timeout)
	defer cancel()
	err := l.send(ctx, s, batch, heldAfterText)
	switch {
	case err == errHeld:
		l.part(ctx, s, batch)
	case err == errOtherPeriod:
		l.runOthers(ctx, s, batch)
	case err != nil && dataError(err) && len(batch) > 1:
		l.runPieces(s, batch)
	default:
		for _, r := range batch {
			r.answer(err)
		}
	}
}

// pieces is into how many statements a batch is cut to find what fails it, or
// holds it up, and those that it is in are cut again: so that a bad key costs
// its neighbours few statements, however many they are.
const pieces = 16

func (l *line) runPieces(s *statement, batch []*row) {
	for piece := range slices.Chunk(batch, (len(batch)+pieces-1)/pieces) {
		l.run(s, piece)
	}
}

// detached is a context for many callers: none of them can cancel it.
func (l *line) detached(timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.Background(), func() {}
	}
	return context.WithTimeoutCause(context.Background(), timeout, errTimeout)
}

// send runs one statement for a batch, whose rows are in lock order, and
// leaves the outcomes in them.
func (l *line) send(ctx context.Context, s *statement, batch []*row, lockTimeout string) error {
	var now *int64
	if l.config.Now != nil {
		us := l.config.Now().UnixMicro()
		now = &us
	}
	s.reset(batch, now)
	s.commit, s.lockTimeout = l.commit, lockTimeout
	err := l.store.runner.do(ctx, func(tx db.DBTX) error {
		return asHeld(l.table.takeMany(ctx, tx, s))
	})
	return translate(err, false)
}
