package policyfile

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/pglimit/limiter"
)

// Change is the difference of one policy or override.
type Change struct {
	Action string  `json:"action"` // set, change or delete
	Policy string  `json:"policy"` // the policy's name
	Key    string  `json:"key,omitempty"`
	Fields []Field `json:"fields,omitempty"` // that differ; of a new one, all that it has
}

// Field is the difference of one field. An absent value is nil.
type Field struct {
	Name   string `json:"name"`
	Before any    `json:"before"`
	After  any    `json:"after"`
}

// Plan is what has to be done to make the database as a file.
type Plan struct {
	Changes []Change `json:"changes"`
	edit    limiter.PolicyEdit
}

// Edit returns the plan's changes for Policies.Apply.
func (p Plan) Edit() limiter.PolicyEdit { return p.edit }

// Compare returns what has to change from before to after. What after does not have is
// deleted with prune, and else kept. With prune, overrides are deleted only if their policy
// is, or if after has overrides.
func Compare(before, after File, prune bool) Plan {
	plan := Plan{Changes: []Change{}}
	old := map[string]limiter.StoredPolicy{}
	for _, p := range before.Policies {
		old[p.Name] = p
	}
	for _, p := range after.Policies {
		was, known := old[p.Name]
		c := Change{Action: "set", Policy: p.Name, Fields: Differ(nil, values(OfPolicy(p)))}
		if known {
			c.Action, c.Fields = "change", Differ(values(OfPolicy(was)), values(OfPolicy(p)))
		}
		delete(old, p.Name)
		if len(c.Fields) > 0 {
			plan.Changes, plan.edit.Set = append(plan.Changes, c), append(plan.edit.Set, p)
		}
	}
	type target struct{ policy, key string }
	bent := map[target]limiter.Override{}
	for _, o := range before.Overrides {
		bent[target{o.Policy, o.Key}] = o
	}
	for _, o := range after.Overrides {
		was, known := bent[target{o.Policy, o.Key}]
		c := Change{Action: "set", Policy: o.Policy, Key: o.Key, Fields: Differ(nil, values(OfOverride(o)))}
		if known {
			c.Action, c.Fields = "change", Differ(values(OfOverride(was)), values(OfOverride(o)))
		}
		delete(bent, target{o.Policy, o.Key})
		if len(c.Fields) > 0 {
			plan.Changes, plan.edit.SetOverrides = append(plan.Changes, c), append(plan.edit.SetOverrides, o)
		}
	}
	if !prune {
		return plan
	}
	for _, p := range before.Policies {
		if _, gone := old[p.Name]; gone {
			plan.Changes = append(plan.Changes, Change{Action: "delete", Policy: p.Name})
			plan.edit.Delete = append(plan.edit.Delete, p.Name)
		}
	}
	for _, o := range before.Overrides {
		_, gone := bent[target{o.Policy, o.Key}]
		if gone && (len(after.Overrides) > 0 || slices.Contains(plan.edit.Delete, o.Policy)) {
			plan.Changes = append(plan.Changes, Change{Action: "delete", Policy: o.Policy, Key: o.Key})
			plan.edit.DeleteOverrides = append(plan.edit.DeleteOverrides, o)
		}
	}
	return plan
}

// values returns the fields of a policy's or an override's form by name, without the
// names of what they are for and without their last change.
func values(form any) map[string]any {
	data, err := json.Marshal(form)
	all := map[string]any{}
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		panic(err) // the forms are written by this program
	}
	for _, name := range []string{"version", "changed_at", "changed_by", "key", "name", "policy"} {
		delete(all, name)
	}
	return all
}

// Differ returns the fields whose values differ, in the order of the forms.
func Differ(before, after map[string]any) []Field {
	fields := []Field{}
	for _, name := range slices.Concat(policyFields, []string{"unlimited", "until"}) {
		if b, a := before[name], after[name]; b != a {
			fields = append(fields, Field{name, b, a})
		}
	}
	return fields
}

// DifferPolicies returns the fields in which two policies differ; nil is none.
func DifferPolicies(before, after *limiter.StoredPolicy) []Field {
	var b, a map[string]any
	if before != nil {
		b = values(OfPolicy(*before))
	}
	if after != nil {
		a = values(OfPolicy(*after))
	}
	return Differ(b, a)
}

// DifferOverrides returns the fields in which two overrides differ; nil is none.
func DifferOverrides(before, after *limiter.Override) []Field {
	var b, a map[string]any
	if before != nil {
		b = values(OfOverride(*before))
	}
	if after != nil {
		a = values(OfOverride(*after))
	}
	return Differ(b, a)
}

// WriteText writes the changes for people, a line for each and for each field.
func WriteText(w io.Writer, changes []Change) {
	for _, c := range changes {
		what := "policy " + c.Policy
		if c.Key != "" {
			what = fmt.Sprintf("override of %s for %s", c.Policy, strconv.Quote(c.Key))
		}
		fmt.Fprintf(w, "%s %s\n", map[string]string{"set": "+", "change": "~", "delete": "-"}[c.Action], what)
		WriteFields(w, "    ", c.Fields)
	}
}

// WriteFields writes a line for each field.
func WriteFields(w io.Writer, indent string, fields []Field) {
	for _, f := range fields {
		switch {
		case f.Before == nil:
			fmt.Fprintf(w, "%s%s: %s\n", indent, f.Name, show(f.After))
		case f.After == nil:
			fmt.Fprintf(w, "%s%s: %s → default\n", indent, f.Name, show(f.Before))
		default:
			fmt.Fprintf(w, "%s%s: %s → %s\n", indent, f.Name, show(f.Before), show(f.After))
		}
	}
}

// show returns a value as it is written by hand.
func show(v any) string {
	switch v := v.(type) {
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case string:
		if quoted := strconv.Quote(v); strings.ContainsAny(v, " \t") || len(quoted) != len(v)+2 {
			return quoted
		}
		return v
	}
	return fmt.Sprint(v)
}
