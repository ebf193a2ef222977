//go:build unix

package history

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// checkPatience ends the check of one history. Nearly all take milliseconds.
const checkPatience = 20 * time.Second

// errUndecided: no order was found in time, nor that there is none.
var errUndecided = errors.New("the check took too long")

// errUnchecked: it is not known what an abandoned Wait left.
var errUnchecked = errors.New("a Wait was lost")

// record is one operation of a history.
type record struct {
	Scene, Process, Client int
	Op                     model.Op
	Out                    model.Out
	Call, Return           int64
	Err                    string // of a lost answer
}

// cached reports whether a remembered denial answered, so that the database was not asked.
func (r *record) cached() bool {
	return slices.ContainsFunc(r.Out.Results(), func(a limiter.Result) bool { return a.Source == limiter.SourceCache })
}

// modelOf returns the model of a scene.
func modelOf(s *scene) porcupine.Model {
	world := func(w any) *model.World { return w.(*model.World) }
	nm := porcupine.NondeterministicModel{
		Init: func() []any { return []any{&model.World{Keys: make([]model.Key, len(s.plans))}} },
		Step: func(w, in, out any) (next []any) {
			for _, v := range model.Step(world(w), in.(*model.Op), out.(*model.Out)) {
				next = append(next, v)
			}
			return next
		},
		Equal:             func(a, b any) bool { return world(a).Equal(world(b)) },
		Hash:              func(w any) uint64 { return world(w).Hash() },
		DescribeOperation: func(in, out any) string { return describe(in.(*model.Op), out.(*model.Out)) },
		DescribeState:     func(w any) string { return describeWorld(world(w)) },
	}
	return nm.ToModel()
}

// check returns an error with the whole history if its answers are those of no order.
func check(s *scene, all []record) error {
	var history []porcupine.Operation
	expires, kept := firstExpiry(s, all), undone(all)
	for i := range all {
		r := &all[i]
		given, rivalled := gives(&r.Op, expires), rivalled(r, all, expires)
		r.Op.Kept, r.Op.Rival = kept, rivalled || given && s.Loses // a denial stands if giving back fails
		r.Op.Drifts = drifts(r, all)
		for j := range r.Op.Steps {
			r.Op.Steps[j].Kept, r.Op.Steps[j].Rival, r.Op.Steps[j].Drifts = kept, r.Op.Rival, r.Op.Drifts
		}
		if r.cached() {
			continue
		}
		op := porcupine.Operation{ClientId: r.Client, Input: &r.Op, Output: &r.Out, Call: r.Call, Return: r.Return}
		if r.Out.Lost { // it may happen after its caller has left
			op.Return = math.MaxInt64
		}
		for _, part := range model.Parts(&r.Op, &r.Out) {
			op.Input = part
			history = append(history, op)
		}
		perhaps := func(give *model.Op) { // in a statement before the last, or not at all
			give.Of = cmp.Or(give.Of, &r.Op)
			give.Key = give.Of.Key
			op.Input, op.Output = give, &model.Out{Lost: true}
			history = append(history, op)
		}
		if given || r.Op.Idem != 0 && !r.Op.SQL {
			give := model.Op{Verb: model.Give, Clocks: readings(r), Forgets: !given}
			first := give
			perhaps(&give)
			if given && rivalled { // others may come between its denial and the first return, and between two returns
				first.Denies = true
				perhaps(&first)
				perhaps(&give)
			}
		}
		if r.Op.Estimate {
			perhaps(&model.Op{Verb: model.Give, Clocks: r.Op.Clocks, Reads: true})
		}
		for _, of := range touched(s, r) {
			perhaps(&model.Op{Verb: model.Give, Clocks: readings(r), Of: of, Touches: true})
		}
	}
	m := modelOf(s)
	result, info := porcupine.CheckOperationsVerbose(m, history, checkPatience)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return errUndecided
	}
	return fmt.Errorf("%s", explain(s, m, history, info, result))
}

// checkBalances checks that no unit of a balance is lost or made, by each answer to a Usage.
func checkBalances(_ *scene, all []record) error {
	for i := range all {
		for _, o := range append(all[i].Out.Steps, all[i].Out) {
			u, left := o.Usage, 0.0
			for _, l := range u.Lots {
				left += l.Units
			}
			if u.Granted+u.Debt > 0 && u.Granted+u.Debt != left+u.Spent+u.Reserved+u.Expired {
				return fmt.Errorf("%v granted and %v owed are not %v left, %v spent or reserved and %v expired", u.Granted, u.Debt, left, u.Spent+u.Reserved, u.Expired)
			}
		}
	}
	return nil
}

// checkKeys checks that no more keys were granted units than the bound.
func checkKeys(s *scene, all []record) error {
	granted := map[int]bool{}
	for i := range all {
		if all[i].Out.Result.Granted > 0 && all[i].Op.Verb != model.Check {
			granted[all[i].Op.Key] = true
		}
	}
	if s.Bounded && len(granted) > maxKeys {
		return fmt.Errorf("%d keys were granted units, more than %d", len(granted), maxKeys)
	}
	return nil
}

// drifts reports whether another operation may have changed what an attempt reads of other rows
// while it was under way: the sources that are known, and the block.
func drifts(r *record, all []record) bool {
	return slices.ContainsFunc(all, func(o record) bool {
		changes := func(op model.Op) bool {
			return op.Verb == model.Succeeded || op.Verb == model.Reset || op.Verb == model.Block || op.Verb == model.Unblock
		}
		apart := o.Call == r.Call || o.Return < r.Call && !o.Out.Lost || o.Call > r.Return
		return !apart && (changes(o.Op) || slices.ContainsFunc(o.Op.Steps, changes))
	})
}

// touched returns the requests of r that may be denied once before it is decided, without a block.
// Without an idempotency key they are those of an AllowAny and the first of a Split.
func touched(s *scene, r *record) (of []*model.Op) {
	if touches(s, r) {
		return []*model.Op{&r.Op}
	}
	for i := range r.Op.Requests {
		if r.Op.Idem == 0 && (r.Op.Verb == model.AllowAny || r.Op.Verb == model.Split && i == 0) {
			of = append(of, r.Op.One(i))
		}
	}
	return of
}

// touches reports whether a request may be denied once before it is decided, without a block:
// as a part of a sum, or because under an idempotency key a denial stands only after another
// look for an admission.
func touches(s *scene, r *record) bool {
	switch {
	case r.Op.Verb != model.Allow && r.Op.Verb != model.AllowUpTo && !r.Op.Reserves(), r.Op.SQL:
		return false
	case r.Op.Idem != 0, s.Bounded: // which inserts an empty row
		return true
	}
	return s.sharesStatements() && shares(r)
}

// shares reports whether a request may share a statement, or that of a Split to its first pool.
func shares(r *record) bool {
	return batches(r.Process) && (r.Op.Verb == model.Allow || r.Op.Verb == model.AllowUpTo || r.Op.Verb == model.Split) && r.Op.Idem == 0 && !r.Op.SQL
}

// firstExpiry returns, for each key, when the first of its reservations expires.
func firstExpiry(s *scene, all []record) []int64 {
	first := make([]int64, len(s.plans))
	for i := range first {
		first[i] = math.MaxInt64
	}
	note := func(op *model.Op) {
		if op.Reserves() {
			first[op.Key] = min(first[op.Key], slices.Min(op.Clocks)+op.For)
		}
	}
	for i := range all {
		note(&all[i].Op)
		for j := range all[i].Op.Steps {
			note(&all[i].Op.Steps[j])
		}
	}
	return first
}

// undone returns the operations that an Undo gives back. The model keeps no other grants.
func undone(all []record) map[int]bool {
	found := map[int]bool{}
	for i := range all {
		found[all[i].Op.Undone] = true
		for j := range all[i].Op.Steps {
			found[all[i].Op.Steps[j].Undone] = true
		}
	}
	return found
}

// gives reports whether a request may give expired reservations back, in statements before
// its last one or, of a Check, after it. They have the same reading of the clock.
func gives(op *model.Op, expires []int64) bool {
	may := func(key int) bool { return slices.Max(op.Clocks) >= expires[key] }
	switch op.Verb {
	case model.Allow, model.AllowUpTo, model.Reserve, model.ReserveUpTo, model.Check:
		return may(op.Key)
	case model.AllowAll:
		return slices.ContainsFunc(op.Requests, func(q model.Request) bool { return may(q.Key) })
	}
	return false
}

// rivalled reports whether another operation may have ended a reservation while r was under
// way, or, if r itself may end one, have changed the key. It may have moved the key's clock
// between r's denial and its return of a reservation, of which all has leaked then: nothing
// comes back, and the denial stands.
func rivalled(r *record, all []record, expires []int64) bool {
	settles := func(op model.Op) bool { return op.Verb == model.Settle }
	ending := settles(r.Op) || gives(&r.Op, expires) || slices.ContainsFunc(r.Op.Steps, settles)
	return slices.ContainsFunc(all, func(o record) bool {
		itself, before, after := o.Call == r.Call, o.Return < r.Call && !o.Out.Lost, o.Call > r.Return
		if itself || before || after {
			return false
		}
		ends := func(op model.Op) bool {
			return settles(op) || op.Verb == model.Cancel || op.Verb == model.Reset || gives(&op, expires)
		}
		return ending || ends(o.Op) || slices.ContainsFunc(o.Op.Steps, ends)
	})
}

// readings returns the one reading that an answer tells, or all that may have been.
func readings(r *record) []int64 {
	at := r.Out.At()
	if at == 0 || r.Out.Result.Replayed || shares(r) { // each shared statement reads the clock
		return r.Op.Clocks
	}
	return []int64{at}
}
