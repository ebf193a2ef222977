package dashboard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// change is a change of a policy or an override, field by field.
type change struct {
	Version int64     `json:"version"`
	At      time.Time `json:"at"`
	By      string    `json:"by"`
	Note    string    `json:"note,omitempty"`
	Policy  string    `json:"policy"`
	Key     string    `json:"key,omitempty"` // of an override, as stored
	Kind    string    `json:"kind"`          // added, changed or removed
	Fields  []field   `json:"fields"`        // those that differ
}

// field is a field before and after a change; empty if it is not set.
type field struct {
	Name   string `json:"name"`
	Before string `json:"before"`
	After  string `json:"after"`
}

func changesAnswer(changes []limiter.PolicyChange) any {
	list := make([]change, len(changes))
	for i, c := range changes {
		before, after := policyFields(c.Before), policyFields(c.After)
		was, is := c.Before != nil, c.After != nil
		if c.OverrideBefore != nil || c.OverrideAfter != nil {
			before, after = overrideFields(c.OverrideBefore), overrideFields(c.OverrideAfter)
			was, is = c.OverrideBefore != nil, c.OverrideAfter != nil
		}
		kind := "changed"
		if !was {
			kind = "added"
		} else if !is {
			kind = "removed"
		}
		list[i] = change{c.Version, c.ChangedAt, c.ChangedBy, c.Note, c.Name, c.Key, kind, differing(before, after)}
	}
	return map[string]any{"changes": list}
}

// named is the value of a field as text.
type named struct{ name, value string }

// differing returns the fields whose values differ. One of the lists may be empty;
// otherwise both have the same names in the same order.
func differing(before, after []named) []field {
	fields := []field{}
	for i := range max(len(before), len(after)) {
		var f field
		if i < len(before) {
			f.Name, f.Before = before[i].name, before[i].value
		}
		if i < len(after) {
			f.Name, f.After = after[i].name, after[i].value
		}
		if f.Before != f.After {
			fields = append(fields, f)
		}
	}
	return fields
}

// policyNames are the fields of a policy in JSON, without its name.
var policyNames = []string{
	"algorithm", "limit", "period", "burst", "tick", "aligned", "calendar", "time_zone", "block_for", "durability", "on_error", "shadow",
}

func policyFields(p *limiter.StoredPolicy) []named {
	if p == nil {
		return nil
	}
	values := map[string]any{}
	text, err := json.Marshal(p.Policy)
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		err = d.Decode(&values)
	}
	if err != nil { // a stored policy has only numbers that JSON has
		return []named{{"policy", err.Error()}}
	}
	var fields []named
	for _, name := range policyNames {
		var value string
		switch v := values[name].(type) {
		case nil:
		case string:
			value = short(v)
		default:
			value = fmt.Sprint(v)
		}
		fields = append(fields, named{name, value})
	}
	return append(fields, named{"askers", yes(p.Askers)}, named{"max_ttl", duration(p.MaxTTL)})
}

func overrideFields(o *limiter.Override) []named {
	if o == nil {
		return nil
	}
	number := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	}
	shadow, until := "", ""
	if o.Shadow != nil {
		shadow = strconv.FormatBool(*o.Shadow)
	}
	if !o.Until.IsZero() {
		until = o.Until.UTC().Format(time.RFC3339)
	}
	return []named{{"limit", number(o.Limit)}, {"burst", number(o.Burst)}, {"unlimited", yes(o.Unlimited)}, {"shadow", shadow}, {"until", until}}
}

func yes(b bool) string {
	if b {
		return "true"
	}
	return ""
}

// duration returns a duration as people write it, such as 1h; empty for 0.
func duration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return short(d.String())
}

// short returns the text of a duration without units of zero at its end. Other texts
// do not end so.
func short(text string) string {
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
