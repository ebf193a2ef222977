package policyfile

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/policies"
)

// Change is the difference of one policy or override.
type Change struct {
	Action string         `json:"action"` // set, change or delete
	Policy string         `json:"policy"` // the policy's name
	Key    string         `json:"key,omitempty"`
	Match  policies.Match `json:"match,omitempty"`
	Fields []Difference   `json:"fields,omitempty"` // of a new one, all that it has
}

// Difference is the difference of one field. An absent value is nil.
type Difference struct {
	Name   string `json:"name"`
	Before any    `json:"before"`
	After  any    `json:"after"`
}

// Plan has the changes that make the database equal to a file. Edit has it for
// Policies.Apply.
type Plan struct {
	Changes []Change
	Edit    policies.Edit
}

// Compare returns what has to change from before to after. An override keeps its note unless
// after has one. What after does not have is
// deleted with prune, and else kept. With prune, overrides are deleted only if their policy
// is, or if after has overrides.
func Compare(before, after File, prune bool) Plan {
	after.Overrides = slices.Clone(after.Overrides)
	live, set, rest := compare(PolicyFields, before.Policies, after.Policies, func(p policies.Stored) target { return target{policy: p.Name} })
	overrides, bent, straight := compare(OverrideFields, before.Overrides, after.Overrides, func(o policies.Override) target { return targetOf(&o) })
	plan := Plan{slices.Concat([]Change{}, live, overrides), policies.Edit{Set: set, SetOverrides: bent}}
	if !prune {
		return plan
	}
	for _, p := range rest {
		plan.Changes = append(plan.Changes, Change{Action: "delete", Policy: p.Name})
		plan.Edit.Delete = append(plan.Edit.Delete, p.Name)
	}
	for _, o := range straight {
		if len(after.Overrides) > 0 || slices.Contains(plan.Edit.Delete, o.Policy) {
			plan.Changes = append(plan.Changes, Change{Action: "delete", Policy: o.Policy, Key: o.Key, Match: o.Match})
			plan.Edit.DeleteOverrides = append(plan.Edit.DeleteOverrides, o)
		}
	}
	return plan
}

// target names a policy, or an override if key is not empty.
type target struct {
	policy, key string
	match       policies.Match
}

func targetOf(o *policies.Override) target { return target{o.Policy, o.Key, o.Match} }

// compare returns the changes from before to after, what has to be set for them, and what
// after does not have.
func compare[T any](fields []Field, before, after []T, of func(T) target) (changes []Change, set, rest []T) {
	old := map[target]*T{}
	for i := range before {
		old[of(before[i])] = &before[i]
	}
	for i := range after {
		t := of(after[i])
		was := old[t]
		delete(old, t)
		if o, is := any(&after[i]).(*policies.Override); is && was != nil {
			o.Note = cmp.Or(o.Note, any(was).(*policies.Override).Note)
		}
		if c := change(t, fields, was, &after[i]); len(c.Fields) > 0 {
			changes, set = append(changes, c), append(set, after[i])
		}
	}
	for _, b := range before {
		if old[of(b)] != nil {
			rest = append(rest, b)
		}
	}
	return changes, set, rest
}

// ChangePolicy returns the change of policy name from before to after; nil is none. A note
// belongs to its change: that the next one has none is no difference.
func ChangePolicy(name string, before, after *policies.Stored) Change {
	return change(target{policy: name}, PolicyFields, before, after)
}

// ChangeOverride returns the change from one override to another of that key; nil is none.
func ChangeOverride(before, after *policies.Override) Change {
	return change(targetOf(cmp.Or(after, before)), OverrideFields, before, after)
}

// ChangeOf returns an entry of the history.
func ChangeOf(c policies.Change) Change {
	if c.Key == "" {
		return ChangePolicy(c.Name, c.Before, c.After)
	}
	return ChangeOverride(c.OverrideBefore, c.OverrideAfter)
}

func change[T any](t target, fields []Field, before, after *T) Change {
	c := Change{Action: "change", Policy: t.policy, Key: t.key, Match: t.match, Fields: []Difference{}}
	if before == nil {
		c.Action = "set"
	} else if after == nil {
		c.Action = "delete"
	}
	old, now := values(before), values(after)
	for _, f := range fields {
		if f.Name == "note" && t.key == "" && after != nil && now["note"] == nil {
			continue
		}
		if b, a := old[f.Name], now[f.Name]; b != a && !slices.Contains([]string{"name", "policy", "key", "match"}, f.Name) {
			c.Fields = append(c.Fields, Difference{f.Name, b, a})
		}
	}
	return c
}

// values returns the fields of a policy or an override as JSON has them; none of nil.
func values[T any](of *T) (all map[string]any) {
	data, err := json.Marshal(of)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		panic(err) // this program wrote it
	}
	return all
}

// WriteText writes the changes for people, a line for each and for each field.
func WriteText(w io.Writer, changes []Change) {
	for _, c := range changes {
		what := "policy " + printable.Shown(c.Policy)
		if c.Key != "" {
			what = fmt.Sprintf("override of %s for %s%s", printable.Shown(c.Policy), MatchText(c.Match), strconv.Quote(c.Key))
		}
		fmt.Fprintf(w, "%s %s\n", map[string]string{"set": "+", "change": "~", "delete": "-"}[c.Action], what)
		for _, f := range c.Fields {
			before, after := show(f.Name, f.Before), show(f.Name, f.After)
			switch {
			case f.Before == nil:
				fmt.Fprintf(w, "    %s: %s\n", f.Name, after)
			case f.Before == true:
				fmt.Fprintf(w, "    %s: true → false\n", f.Name)
			case f.After == nil:
				fmt.Fprintf(w, "    %s: %s → default\n", f.Name, before)
			default:
				fmt.Fprintf(w, "    %s: %s → %s\n", f.Name, before, after)
			}
		}
	}
}

// MatchText returns the word before an override's key, with a space; nothing for one key.
func MatchText(m policies.Match) string {
	if m == "" {
		return ""
	}
	return string(m) + " "
}

// show returns a field's value as it is written by hand.
func show(field string, v any) string {
	switch v := v.(type) {
	case float64:
		return printable.Number(v)
	case string:
		if end, err := time.Parse(time.RFC3339Nano, v); err == nil && field == "until" {
			return ShowEnd(end, time.Local)
		}
		if quoted := strconv.Quote(v); strings.ContainsAny(v, " \t") || len(quoted) != len(v)+2 {
			return quoted
		}
		return v
	}
	return fmt.Sprint(v)
}
