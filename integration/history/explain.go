//go:build unix

package history

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/pglimit/pglimit/integration/history/model"
)

// explain names the first answer that no order explains: without it there is an order of
// all that had happened by then. It shows that order, and in what the answer differs at
// its end.
func explain(s *scene, m porcupine.Model, history []porcupine.Operation, info porcupine.LinearizationInfo, result porcupine.CheckResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "scene %d: %s after %d operations\n", s.number, result, len(history))
	for i, plans := range s.plans {
		fmt.Fprintf(&b, "key %d: %+v\n", i, plans)
	}
	var returns []int64
	for _, op := range history {
		returns = append(returns, op.Return)
	}
	slices.Sort(returns)
	at := slices.IndexFunc(returns, func(until int64) bool {
		result, _ := porcupine.CheckOperationsVerbose(m, begun(history, until), checkPatience)
		return result != porcupine.Ok
	})
	if at < 0 { // only the whole is
		at = len(returns) - 1
	}
	before := begun(history, returns[at]-1)
	_, good := porcupine.CheckOperationsVerbose(m, before, checkPatience)
	state := m.Init()
	for _, partial := range good.PartialLinearizations() {
		for _, ids := range partial {
			if len(ids) < len(before) {
				continue
			}
			for _, id := range ids {
				_, state = m.Step(state, before[id].Input, before[id].Output)
				fmt.Fprintf(&b, "%s\n", line(before[id]))
				for i, w := range state.([]any) {
					if i < 2 {
						fmt.Fprintf(&b, "      %s\n", describeWorld(w.(*model.World)))
					}
				}
			}
		}
	}
	for _, op := range history {
		if op.Return != returns[at] || op.Return == math.MaxInt64 {
			continue
		}
		fmt.Fprintf(&b, "this cannot be next, or earlier:\n%s\n", line(op))
		if worlds, ok := state.([]any); ok {
			fmt.Fprintf(&b, "      the model answers %q\n", model.Expected(worlds[0].(*model.World), op.Input.(*model.Op)))
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

// begun returns the operations of a history that were called by an event. Those that had
// not returned by then have no answer.
func begun(history []porcupine.Operation, until int64) (part []porcupine.Operation) {
	for _, op := range history {
		if op.Call > until {
			continue
		}
		if op.Return > until {
			out := *op.Output.(*model.Out)
			out.Lost, out.Pending = true, true
			op.Output, op.Return = &out, math.MaxInt64
		}
		part = append(part, op)
	}
	return part
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
	text := model.Brief(*op) + " -> " + model.Brief(*out)
	for i := range out.Steps {
		text += "\n        " + describe(&op.Steps[i], &out.Steps[i])
	}
	return text
}

func describeWorld(w *model.World) string {
	text := ""
	for i := range w.Keys {
		text += fmt.Sprintf("key %d: %s ", i, w.Keys[i].String())
	}
	for _, h := range w.Held {
		text += "| " + model.Brief(h) + " "
	}
	return text
}
