//go:build history

package history

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
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
			return o.Client != r.Client && o.Op.Idem == r.Op.Idem && o.Op.Key == r.Op.Key && o.Call < r.Return && (o.Return > r.Call || o.Out.Lost)
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
		if gives(&r.Op, expires) {
			give := &model.Op{Verb: model.Give, Key: r.Op.Key, Clocks: readings(r), Of: &r.Op}
			history = append(history, porcupine.Operation{ClientId: r.Client, Input: give, Output: &model.Out{Lost: true}, Call: op.Call, Return: op.Return})
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
// its last one. They have the same reading of the clock.
func gives(op *model.Op, expires []int64) bool {
	may := func(key int) bool { return slices.Max(op.Clocks) >= expires[key] }
	if op.SQL { // in one transaction
		return false
	}
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
			op.SQL = false
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

// explain says where an order got stuck that explains most operations.
func explain(s *scene, m porcupine.Model, history []porcupine.Operation, info porcupine.LinearizationInfo, result porcupine.CheckResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "scene %d: %s after %d operations\n", s.number, result, len(history))
	for i, k := range s.keys {
		fmt.Fprintf(&b, "key %d:", i)
		for _, p := range k.plans {
			fmt.Fprintf(&b, " %+v", p)
		}
		b.WriteByte('\n')
	}
	// Porcupine numbers operations as they were given.
	var longest []int
	for _, partial := range info.PartialLinearizations() {
		for _, ids := range partial {
			if len(ids) > len(longest) {
				longest = ids
			}
		}
	}
	state := m.Init()
	for _, id := range longest {
		op := history[id]
		_, state = m.Step(state, op.Input, op.Output)
		fmt.Fprintf(&b, "%s\n", line(op))
		for i, w := range state.([]any) {
			if i < 2 {
				fmt.Fprintf(&b, "      %s\n", describeWorld(w.(*model.World)))
			}
		}
	}
	b.WriteString("none of these can be next:\n")
	rest := slices.Clone(history)
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	taken := map[any]bool{}
	for _, id := range longest {
		taken[history[id].Input] = true
	}
	first := int64(math.MaxInt64)
	for _, op := range rest {
		if !taken[op.Input] {
			first = min(first, op.Return)
		}
	}
	for _, op := range rest {
		in, out := op.Input.(*model.Op), op.Output.(*model.Out)
		if taken[op.Input] || out.Lost {
			continue
		}
		fmt.Fprintf(&b, "%s\n", line(op))
		if op.Call > first {
			continue
		}
		if states, ok := state.([]any); ok && in.Verb != model.Tx {
			for i, w := range states {
				if i < 3 {
					fmt.Fprintf(&b, "      %s\n", model.Nearest(w.(*model.World), in, out))
				}
			}
		}
	}
	if f, err := os.CreateTemp("", "history-*.html"); err == nil {
		if err = porcupine.Visualize(m, info, f); err == nil {
			fmt.Fprintf(&b, "see %s\n", f.Name())
		}
		_ = f.Close()
	}
	return b.String()
}

func line(op porcupine.Operation) string {
	ret := fmt.Sprint(op.Return)
	if op.Return == math.MaxInt64 {
		ret = "end"
	}
	return fmt.Sprintf("%d-%s client %d %s", op.Call, ret, op.ClientId, describe(op.Input.(*model.Op), op.Output.(*model.Out)))
}

// describe writes a call and its answer.
func describe(op *model.Op, out *model.Out) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#%d %s key %d", op.Number, op.Verb, op.Key)
	if op.Rules != nil {
		fmt.Fprintf(&b, " limit %v", op.Rules.Limit)
	}
	fmt.Fprintf(&b, " units %v", op.Units)
	if op.For != 0 {
		fmt.Fprintf(&b, " for %d", op.For)
	}
	if op.Idem != 0 {
		fmt.Fprintf(&b, " idempotency %d", op.Idem)
	}
	if op.Held != 0 {
		fmt.Fprintf(&b, " reservation %d", op.Held)
	}
	if op.Undone != 0 {
		fmt.Fprintf(&b, " of #%d", op.Undone)
	}
	for _, q := range op.Requests {
		fmt.Fprintf(&b, " [key %d units %v]", q.Key, q.Units)
	}
	if op.SQL {
		b.WriteString(" by SQL")
	}
	fmt.Fprintf(&b, " at %v:", shown(op.Clocks))
	switch {
	case op.Verb == model.Tx:
		for i := range op.Steps {
			if i < len(out.Steps) {
				fmt.Fprintf(&b, "\n        %s", describe(&op.Steps[i], &out.Steps[i]))
			}
		}
		fmt.Fprintf(&b, "\n        commits %v, lost %v", op.Commits, out.Lost)
	case out.Lost:
		b.WriteString(" answer lost")
	case out.Fault != "":
		b.WriteString(" " + out.Fault)
	case len(out.Each) > 0:
		fmt.Fprintf(&b, " allowed %v by %d %v", out.Answer.Allowed, out.DeniedBy, out.Each)
	case op.Verb == model.Usage:
		fmt.Fprintf(&b, " spent %v reserved %v in %d ends %d %v", out.Spent, out.Reserved, out.Reservations, out.WindowEnds, out.Answer)
	default:
		fmt.Fprintf(&b, " %v", out.Answer)
		if out.Held != 0 {
			fmt.Fprintf(&b, " reservation %d until %d", out.Held, out.Expires)
		}
	}
	return b.String()
}

func describeWorld(w *model.World) string {
	var b strings.Builder
	for i, k := range w.Keys {
		fmt.Fprintf(&b, "key %d: %s ", i, k.String())
	}
	for _, h := range w.Held {
		fmt.Fprintf(&b, "| %s ", h.String())
	}
	return b.String()
}

// shown shortens times.
func shown(clocks []int64) (short []int64) {
	for _, us := range clocks {
		short = append(short, us%1e10)
	}
	return short
}
