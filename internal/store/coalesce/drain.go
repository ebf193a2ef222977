package coalesce

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// splitRows is the number of waiting keys for which another statement is sent while one
// is in flight. Fewer keys wait for that one: on a single hot key two statements would
// only wait for each other.
const splitRows = 8

// batch is the rows that a goroutine sends, reused for its next statements.
type batch struct {
	rows []*row
	sent []*store.Row
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// forget forgets the rows, which are their callers' again.
func (b *batch) forget() {
	clear(b.rows)
	clear(b.sent[:cap(b.sent)])
}

// release returns the batch to the pool.
func (b *batch) release() {
	b.forget()
	batches.Put(b)
}

// drain sends batches until no request waits, or few enough for the other statements in
// flight.
func (l *line) drain() {
	b := batches.Get().(*batch)
	defer batches.Put(b)
	for {
		l.mu.Lock()
		if len(l.queue) == 0 || l.inFlight > 1 && len(l.queue) < splitRows {
			l.land()
			l.mu.Unlock()
			return
		}
		b.rows = l.next(b.rows[:0])
		l.mu.Unlock()
		l.run(b, b.rows)
		b.forget()
		// Callers that have an answer often send again: let them, so that the next
		// statement carries more.
		runtime.Gosched()
	}
}

// run decides rows, also if their statement fails.
func (l *line) run(b *batch, rows []*row) {
	if len(rows) == 0 {
		return
	}
	slices.SortFunc(rows, func(a, b *row) int {
		if c := strings.Compare(a.Query.Policy, b.Query.Policy); c != 0 {
			return c
		}
		return strings.Compare(a.Query.Key, b.Query.Key)
	})
	ctx, cancel := l.room.Detached()
	defer cancel()
	l.fly(ctx, rows)
	err := l.room.Late(ctx, l.send(ctx, b, rows, waiting.Patience))
	if err != nil {
		rows = l.answerDecided(rows)
	}
	switch {
	case len(rows) == 0:
	case err == store.ErrLocked:
		l.sortOut(ctx, b, rows)
	case errors.As(err, new(*store.RowError)) && len(rows) > 1:
		l.runPieces(b, rows)
	default:
		l.answerAll(rows, err)
	}
}

// fly marks the requests of rows as sent by the statement whose context is ctx.
func (l *line) fly(ctx context.Context, rows []*row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range rows {
		for w := r.first; w != nil; w = w.next {
			w.ticket.Fly(ctx)
		}
	}
}

// pieces is the number of statements that a batch is split into to find the row that
// fails or delays it. A piece with such a row is split again. So a bad key costs its
// neighbours few statements.
const pieces = 16

func (l *line) runPieces(b *batch, rows []*row) {
	for piece := range slices.Chunk(rows, (len(rows)+pieces-1)/pieces) {
		l.run(b, piece)
	}
}

// answerDecided answers the rows that a failed TakeMany still decided and returns the
// others.
func (l *line) answerDecided(rows []*row) []*row {
	return slices.DeleteFunc(rows, func(r *row) bool {
		decided := r.Outcome.Decided
		if decided {
			l.answer(r, nil)
		}
		return decided
	})
}

func (l *line) answerAll(rows []*row, err error) {
	for _, r := range rows {
		l.answer(r, err)
	}
}

func (l *line) answer(r *row, err error) {
	if err == nil && r.splits() {
		l.split(r)
	} else {
		r.answer(err)
	}
}

// send sends one statement for rows, which are in lock order, and sets their outcomes. It
// returns ErrLocked if a row is locked for longer than wait.
func (l *line) send(ctx context.Context, b *batch, rows []*row, wait time.Duration) error {
	shares := 0
	for _, r := range rows {
		shares += r.waiters
	}
	for _, r := range rows {
		r.shares = shares
	}
	if r := rows[0]; len(rows) == 1 && (r.waiters == 1 || r.Query.BlockFor == 0) { // its statement costs less
		r.Query.LockWait = wait
		if r.waiters > 1 {
			r.Query.Now = l.options.Now()
		}
		err := l.database.Do(ctx, r.op)
		if err == nil {
			r.Outcome = r.op.Outcome
		}
		return err
	}
	b.sent = b.sent[:0]
	for _, r := range rows {
		r.Query.LockWait = wait
		b.sent = append(b.sent, &r.Row)
	}
	return l.database.TakeMany(ctx, b.sent, l.options.Now())
}
