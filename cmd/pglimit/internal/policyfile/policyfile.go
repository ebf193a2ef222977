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
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/policies"
)

// File is a file. Its JSON has the last changes too.
type File struct {
	Policies  []policies.Stored   `json:"policies"`
	Overrides []policies.Override `json:"overrides,omitempty"`
}

// Portable returns f without last changes, so that Read reads its JSON.
func (f File) Portable() File {
	f.Policies, f.Overrides = append([]policies.Stored{}, f.Policies...), slices.Clone(f.Overrides)
	for i := range f.Policies {
		p := &f.Policies[i]
		p.Version, p.ChangedAt, p.ChangedBy = 0, time.Time{}, ""
	}
	for i := range f.Overrides {
		o := &f.Overrides[i]
		o.Version, o.ChangedAt, o.ChangedBy = 0, time.Time{}, ""
	}
	return f
}

// Write writes f as YAML, without a character that a terminal obeys.
func (f File) Write(w io.Writer) error {
	var portable any = f.Portable()
	if len(f.Policies) == 0 && len(f.Overrides) > 0 {
		portable = map[string]any{"overrides": f.Portable().Overrides}
	}
	data, err := json.Marshal(portable)
	if err != nil {
		return err
	}
	var doc yaml.Node // JSON is YAML, in another style
	if err := yaml.Unmarshal([]byte(printable.Escape(string(data))), &doc); err != nil {
		return err
	}
	restyle(&doc)
	var text strings.Builder
	e := yaml.NewEncoder(&text)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
		return err
	}
	_, err = io.WriteString(w, printable.Escape(text.String()))
	return err
}

// restyle makes n a block without needless quotes. Texts that printable.Escape changes are in
// double quotes.
func restyle(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && printable.Escape(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, below := range n.Content {
		restyle(below)
	}
}

// DropEnded removes the overrides that have ended from f, as export does, and returns their
// number.
func (f *File) DropEnded(now time.Time) int {
	before := len(f.Overrides)
	f.Overrides = slices.DeleteFunc(f.Overrides, func(o policies.Override) bool { return !o.Until.IsZero() && !o.Until.After(now) })
	return before - len(f.Overrides)
}

// Field is a field of a policy or an override.
type Field struct {
	Name string // in JSON and YAML; in flags with dashes
	Go   string // in Go
	Type reflect.Type
}

// PolicyFields and OverrideFields are the fields of a file, in their order. The structs
// describe them, so that a new field is here, in flags and in changes at once.
var (
	PolicyFields   = FieldsOf(reflect.TypeFor[policies.Stored]())
	OverrideFields = FieldsOf(reflect.TypeFor[policies.Override]())
)

// FieldsOf returns the fields of a struct by their JSON tags, without those of the last
// change.
func FieldsOf(t reflect.Type) (all []Field) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || slices.Contains([]string{"version", "changed_at", "changed_by"}, name) {
			continue
		}
		if f.Type.Kind() == reflect.Pointer {
			f.Type = f.Type.Elem()
		}
		all = append(all, Field{name, f.Name, f.Type})
	}
	return all
}
