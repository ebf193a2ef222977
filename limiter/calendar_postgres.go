package limiter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
)

// The database's clock decides which period of a calendar it is, and this
// process knows where periods end. So a statement is told the ends of two periods
// in a row and takes the one that its own reading of the clock is in. If it is in
// neither, because the clocks are hours apart or a batch has waited that long,
// nothing is written: the clocks are compared and the statement is sent again.

// errOtherPeriod says that a statement wrote nothing, because it was not told of
// the period that the database's clock is in.
var errOtherPeriod = fmt.Errorf("%w: its clock is in another period than this machine's", ErrUnavailable)

// maxCompared is how often the clocks are compared for one decision before it
// fails. Once is enough, unless one of them is being set meanwhile.
const maxCompared = 3

// turns is what a statement is told of the question's calendar; all 0 without.
// now is Config.Now's clock, if that is the statement's.
func (q *question) turns(now *int64) (from, turn, until int64) {
	switch {
	case q.Calendar == nil:
		return 0, 0, 0
	case now != nil:
		return q.Calendar.Near(*now)
	}
	return q.Calendar.Near(time.Now().UnixMicro() + q.ahead.Load())
}

// wrote finds out whether a statement wrote nothing for the calendar's sake.
func (q *question) wrote(err error) error {
	if q.Calendar != nil && errors.Is(err, pgx.ErrNoRows) {
		return errOtherPeriod
	}
	return err
}

// compare notes how far the database's clock is ahead of this machine's, so that
// this question, and others of the limiter, are asked of the right periods.
func (p postgres) compare(ctx context.Context, q *question) error {
	here := time.Now()
	var there int64
	err := p.runner.do(ctx, func(tx db.DBTX) (err error) {
		there, err = queries.Clock(ctx, tx, nil)
		return err
	})
	if err != nil {
		return translate(err, p.tx)
	}
	q.ahead.Store(there - here.UnixMicro())
	if q.compared++; q.compared == maxCompared {
		return fmt.Errorf("%w: its clock, at %s, was in other periods of a calendar each time it was asked; this machine's is at %s", ErrUnavailable,
			time.UnixMicro(there).UTC().Format(time.RFC3339Nano), here.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

// runOthers answers the rows of a batch that were decided, and runs those again
// whose period was another. The batch is used up.
func (l *line) runOthers(ctx context.Context, s *statement, batch []*row) {
	others := batch[:0]
	for _, r := range batch {
		if r.outcome.view == nil {
			others = append(others, r)
		} else {
			r.answer(nil)
		}
	}
	if err := l.store.compare(ctx, others[0].q); err != nil {
		for _, r := range others {
			r.answer(err)
		}
		return
	}
	l.run(s, others)
}
