//go:build unix

package history

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/pglimit/pglimit/integration/history/model"
)

// checkPatience ends the check of one history. A history is so short that the check takes
// milliseconds.
const checkPatience = time.Minute

// modelOf returns the model of a scene.
func modelOf(s *scene) porcupine.Model {
	world := func(w any) *model.World { return w.(*model.World) }
	nm := porcupine.NondeterministicModel{
		Init: func() []any { return []any{&model.World{Keys: make([]model.Key, len(s.keys))}} },
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
		r.Op.Kept, r.Op.Rival = kept, rivalled(r, all, expires)
		r.Op.Twin = r.Op.Idem != 0 && slices.ContainsFunc(all, func(o record) bool {
			same := func(op model.Op) bool { return op.Idem == r.Op.Idem && op.Key == r.Op.Key }
			return o.Client != r.Client && o.Call < r.Return && (o.Return > r.Call || o.Out.Lost) && (same(o.Op) || slices.ContainsFunc(o.Op.Steps, same))
		})
		for j := range r.Op.Steps {
			r.Op.Steps[j].Kept, r.Op.Steps[j].Rival = kept, r.Op.Rival
		}
		if r.cached() {
			continue
		}
		op := porcupine.Operation{ClientId: r.Client, Input: &r.Op, Output: &r.Out, Call: r.Call, Return: r.Return}
		if r.Out.Lost { // it may happen after its caller has left
			op.Return = math.MaxInt64
		}
		if parts := model.Split(&r.Op, &r.Out); len(parts) > 0 {
			for _, part := range parts {
				p := op
				p.Input = part
				history = append(history, p)
			}
		} else {
			history = append(history, op)
		}
		if given := gives(&r.Op, expires); given || r.Op.Idem != 0 && !r.Op.SQL {
			give := &model.Op{Verb: model.Give, Key: r.Op.Key, Clocks: readings(r), Of: &r.Op, Forgets: !given}
			history = append(history, porcupine.Operation{ClientId: r.Client, Input: give, Output: &model.Out{Lost: true}, Call: op.Call, Return: op.Return})
		}
		if s.sharesStatements() && batches(r.Process) && (r.Op.Verb == model.Allow || r.Op.Verb == model.AllowUpTo) && r.Op.Idem == 0 && !r.Op.SQL {
			touch := &model.Op{Verb: model.Give, Key: r.Op.Key, Clocks: r.Op.Clocks, Of: &r.Op, Touches: true}
			history = append(history, porcupine.Operation{ClientId: r.Client, Input: touch, Output: &model.Out{Lost: true}, Call: op.Call, Return: op.Return})
		}
	}
	m := modelOf(s)
	result, info := porcupine.CheckOperationsVerbose(m, history, checkPatience)
	if result == porcupine.Ok {
		return nil
	}
	return fmt.Errorf("%s", explain(s, m, history, info, result))
}

// firstExpiry returns, for each key, when the first of its reservations expires.
func firstExpiry(s *scene, all []record) []int64 {
	first := make([]int64, len(s.keys))
	for i := range first {
		first[i] = math.MaxInt64
	}
	note := func(op *model.Op) {
		if op.Verb == model.Reserve {
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
	case model.Allow, model.AllowUpTo, model.Reserve, model.Check:
		return may(op.Key)
	case model.AllowAll:
		return slices.ContainsFunc(op.Requests, func(q model.Request) bool { return may(q.Key) })
	}
	return false
}

// rivalled reports whether another operation may have ended a reservation while r was under
// way.
func rivalled(r *record, all []record, expires []int64) bool {
	return slices.ContainsFunc(all, func(o record) bool {
		if o.Client == r.Client || o.Call > r.Return || o.Return < r.Call && !o.Out.Lost {
			return false
		}
		ends := func(op model.Op) bool {
			return op.Verb == model.Settle || op.Verb == model.Cancel || op.Verb == model.Reset || gives(&op, expires)
		}
		return ends(o.Op) || slices.ContainsFunc(o.Op.Steps, ends)
	})
}

// readings returns the one reading that an answer tells, or all that may have been.
func readings(r *record) []int64 {
	at := r.Out.Answer.At
	if len(r.Out.Each) > 0 {
		at = r.Out.Each[0].At
	}
	if at == 0 || r.Out.Answer.Replayed {
		return r.Op.Clocks
	}
	return []int64{at}
}
