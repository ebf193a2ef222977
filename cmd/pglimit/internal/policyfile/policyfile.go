// Package policyfile reads and writes files with policies and overrides, as YAML or JSON.
//
//	policies:
//	  - name: login
//	    algorithm: token_bucket
//	    limit: 5
//	    period: 1m
//	    burst: 10
//	    note: as agreed with support
//	overrides:
//	  - policy: login
//	    key: alice
//	    limit: 100
//	    until: 2027-01-31
package policyfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

// File is what a file has.
type File struct {
	Policies  []limiter.StoredPolicy
	Overrides []limiter.Override
}

// Policy is a policy as a file and --json have it.
type Policy struct {
	Name       string  `json:"name" yaml:"name"`
	Algorithm  string  `json:"algorithm" yaml:"algorithm"`
	Limit      float64 `json:"limit" yaml:"limit"`
	Period     string  `json:"period,omitempty" yaml:"period,omitempty"`
	Burst      float64 `json:"burst,omitempty" yaml:"burst,omitempty"`
	Tick       string  `json:"tick,omitempty" yaml:"tick,omitempty"`
	Aligned    bool    `json:"aligned,omitempty" yaml:"aligned,omitempty"`
	Calendar   string  `json:"calendar,omitempty" yaml:"calendar,omitempty"`
	TimeZone   string  `json:"time_zone,omitempty" yaml:"time_zone,omitempty"`
	BlockFor   string  `json:"block_for,omitempty" yaml:"block_for,omitempty"`
	Durability string  `json:"durability,omitempty" yaml:"durability,omitempty"`
	OnError    string  `json:"on_error,omitempty" yaml:"on_error,omitempty"`
	Shadow     bool    `json:"shadow,omitempty" yaml:"shadow,omitempty"`
	Askers     bool    `json:"askers,omitempty" yaml:"askers,omitempty"`
	MaxTTL     string  `json:"max_ttl,omitempty" yaml:"max_ttl,omitempty"`
	Note       string  `json:"note,omitempty" yaml:"note,omitempty"`

	Changed `yaml:"-"`
}

// Override is an override as a file and --json have it.
type Override struct {
	Policy    string   `json:"policy" yaml:"policy"`
	Key       string   `json:"key" yaml:"key"`
	Limit     *float64 `json:"limit,omitempty" yaml:"limit,omitempty"`
	Burst     *float64 `json:"burst,omitempty" yaml:"burst,omitempty"`
	Unlimited bool     `json:"unlimited,omitempty" yaml:"unlimited,omitempty"`
	Shadow    *bool    `json:"shadow,omitempty" yaml:"shadow,omitempty"`
	Until     string   `json:"until,omitempty" yaml:"until,omitempty"`
	Note      string   `json:"note,omitempty" yaml:"note,omitempty"`

	Changed `yaml:"-"`
}

// Changed is when and by whom a policy or an override was changed last. Files do not have
// it.
type Changed struct {
	Version   int64      `json:"version,omitempty"`
	ChangedAt *time.Time `json:"changed_at,omitempty"`
	ChangedBy string     `json:"changed_by,omitempty"`
}

func changed(version int64, at time.Time, by string) Changed {
	if version == 0 {
		return Changed{}
	}
	return Changed{version, &at, by}
}

// defaultMaxTTL is what a MaxTTL of 0 is in the database.
const defaultMaxTTL = 24 * time.Hour

// OfPolicy returns the form of p with its last change.
func OfPolicy(p limiter.StoredPolicy) Policy {
	var t Policy
	data, err := json.Marshal(p.Policy)
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		panic(err) // both are written by this program
	}
	t.Askers, t.Note, t.Changed = p.Askers, p.Note, changed(p.Version, p.ChangedAt, p.ChangedBy)
	if p.MaxTTL != 0 && p.MaxTTL != defaultMaxTTL {
		t.MaxTTL = p.MaxTTL.String()
	}
	return t
}

// OfOverride returns the form of o with its last change.
func OfOverride(o limiter.Override) Override {
	t := Override{
		Policy: o.Policy, Key: o.Key, Limit: o.Limit, Burst: o.Burst, Unlimited: o.Unlimited, Shadow: o.Shadow, Note: o.Note,
		Changed: changed(o.Version, o.ChangedAt, o.ChangedBy),
	}
	if !o.Until.IsZero() {
		t.Until = o.Until.UTC().Format(time.RFC3339Nano)
	}
	return t
}

// document is a file as it is written.
type document struct {
	Policies  []Policy   `json:"policies" yaml:"policies"`
	Overrides []Override `json:"overrides,omitempty" yaml:"overrides,omitempty"`
}

// JSON returns the value that encoding/json writes as the file, with last changes.
func (f File) JSON() any { return f.document() }

// Portable is JSON without last changes, so that Read reads it.
func (f File) Portable() any {
	d := f.document()
	for i := range d.Policies {
		d.Policies[i].Changed = Changed{}
	}
	for i := range d.Overrides {
		d.Overrides[i].Changed = Changed{}
	}
	return d
}

func (f File) document() document {
	d := document{Policies: []Policy{}}
	for _, p := range f.Policies {
		d.Policies = append(d.Policies, OfPolicy(p))
	}
	for _, o := range f.Overrides {
		d.Overrides = append(d.Overrides, OfOverride(o))
	}
	return d
}

// Write writes f as YAML, without a character that a terminal obeys.
func (f File) Write(w io.Writer) error {
	var doc yaml.Node
	if err := doc.Encode(f.document()); err != nil {
		return err
	}
	quote(&doc)
	var text strings.Builder
	e := yaml.NewEncoder(&text)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
		return err
	}
	_, err := io.WriteString(w, printable.Escape(text.String()))
	return err
}

// quote puts the texts below n that printable.Escape changes in double quotes.
func quote(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && printable.Escape(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, below := range n.Content {
		quote(below)
	}
}

// ParseUntil reads the end of an override: a date, which is its beginning in UTC, or a
// time in RFC 3339.
func ParseUntil(text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339Nano} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("must be a date such as 2027-01-31, which begins at 00:00 UTC, or a time such as 2027-01-31T18:00:00Z")
}

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
		what := "policy " + printable.Shown(c.Policy)
		if c.Key != "" {
			what = fmt.Sprintf("override of %s for %s", printable.Shown(c.Policy), strconv.Quote(c.Key))
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
