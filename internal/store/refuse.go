package store

import (
	"context"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Refuse returns a Store whose methods all return err.
func Refuse(err error) Store { return refusing{err} }

type refusing struct{ err error }

func (r refusing) Take(context.Context, *Query) (o Outcome, _ error)     { return o, r.err }
func (r refusing) TakeAll(context.Context, []*Joint, bool) (bool, error) { return false, r.err }
func (r refusing) Charge(context.Context, *Query) (o Outcome, _ error)   { return o, r.err }
func (r refusing) Refund(context.Context, *Query) (o Outcome, _ error)   { return o, r.err }
func (r refusing) Get(context.Context, *Query) (o Outcome, _ error)      { return o, r.err }
func (r refusing) Usage(context.Context, *Query) (u Usage, _ error)      { return u, r.err }
func (r refusing) Block(context.Context, *Query, int64) error            { return r.err }
func (r refusing) Unblock(context.Context, *Query, int64) error          { return r.err }
func (r refusing) Reset(context.Context, *Query) error                   { return r.err }
func (r refusing) Leave(context.Context, *Query, int64) (bool, error)    { return false, r.err }
func (r refusing) Settle(context.Context, *Ending) (e Ended, _ error)    { return e, r.err }
func (r refusing) Due(context.Context, *Query) ([]string, error)         { return nil, r.err }
func (r refusing) NextDue(context.Context) (int64, error)                { return 0, r.err }
func (r refusing) Undo(context.Context, *Query, algorithm.Grant) (o Outcome, _ error) {
	return o, r.err
}
func (r refusing) Reserve(context.Context, *Query, *Admission) (o Outcome, _ error) {
	return o, r.err
}
