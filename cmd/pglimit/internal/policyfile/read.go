package policyfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/strictyaml"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// maxSize is the largest file in bytes.
const maxSize = 64 << 20

// ReadPath reads the file at path; - is stdin.
func ReadPath(path string, stdin io.Reader) (File, error) {
	if path == "-" {
		return Read("standard input", stdin)
	}
	in, err := os.Open(path)
	if err != nil {
		return File{}, err
	}
	defer in.Close()
	return Read(path, in)
}

// Read reads a file: a mapping with policies and overrides, or only a list of policies.
// The error has a line for each fault, with the file's name, the line and the field. A
// policy and an override are not checked against what the database has.
func Read(name string, in io.Reader) (File, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxSize+1))
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > maxSize {
		return File{}, fmt.Errorf("%s: has more than 64 MiB", name)
	}
	var f File
	err = strictyaml.Read(name, data, "policies: and a list of policies", func(where, field string) string {
		if where == document {
			return field
		}
		return where + "." + field
	}, func(r *strictyaml.Reader, n *yaml.Node) {
		in := &reader{Reader: r, file: &f}
		if n = strictyaml.Follow(n); n.Kind == yaml.SequenceNode {
			in.policies("policies", n)
			return
		}
		r.Mapping(n, document, strictyaml.Field{Name: "policies", Set: in.policies}, strictyaml.Field{Name: "overrides", Set: in.overrides})
	})
	return f, err
}

// document names the whole file in errors.
const document = "the file"

type reader struct {
	*strictyaml.Reader
	file *File
}

func (r *reader) policies(where string, n *yaml.Node) {
	lines := map[string]int{}
	r.List(n, where, func(i int, item *yaml.Node) {
		at := fmt.Sprintf("%s[%d]", where, i)
		var p policies.Stored
		_, ok := r.entry(item, at, PolicyFields, &p)
		if line, twice := lines[p.Name]; twice {
			r.Fault(item, at+".name", "%q is that of line %d, too: each policy needs another name", p.Name, line)
		} else if ok {
			lines[p.Name] = item.Line
			r.file.Policies = append(r.file.Policies, p)
		}
	})
}

// entry reads a mapping of fields into a policy or an override. It returns the nodes of the
// fields, and false after a fault.
func (r *reader) entry(n *yaml.Node, where string, fields []Field, into any) (nodes map[string]*yaml.Node, ok bool) {
	before, given, nodes := len(r.Faults), map[string]any{}, map[string]*yaml.Node{}
	all := make([]strictyaml.Field, len(fields))
	for i, f := range fields {
		all[i] = strictyaml.Field{Name: f.Name, Set: func(where string, n *yaml.Node) {
			nodes[f.Name], given[f.Name] = n, r.value(n, where, f.Type)
		}}
	}
	if r.Mapping(n, where, all...); len(r.Faults) > before || r.Full() {
		return nodes, false
	}
	data, err := json.Marshal(given)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if p, isPolicy := into.(*policies.Stored); isPolicy && err == nil {
		err = p.Validate()
	}
	var bad *limiter.PolicyError
	switch {
	case err == nil:
		return nodes, true
	case !errors.As(err, &bad):
		r.Fault(n, where, "%v", err)
		return nodes, false
	}
	name := fields[slices.IndexFunc(fields, func(f Field) bool { return f.Go == bad.Field })].Name
	value := fmt.Sprint(bad.Value)
	if text, isText := bad.Value.(string); isText {
		value = fmt.Sprintf("%.80q", text)
	}
	if at, has := nodes[name]; has {
		r.Fault(at, where+"."+name, "is %s: %s", value, bad.Reason)
	} else {
		r.Fault(n, where+"."+name, "is missing: %s", bad.Reason)
	}
	return nodes, false
}

// value reads a field of a type.
func (r *reader) value(n *yaml.Node, where string, t reflect.Type) any {
	switch {
	case t.Kind() == reflect.Float64:
		v, _ := r.Number(n, where)
		return v
	case t.Kind() == reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.Value != "true" && n.Value != "false" {
			r.Fault(n, where, "is %.80q: must be true or false", n.Value)
		}
		return n.Value == "true"
	}
	var text string
	r.Scalar(n, where, &text, "a text")
	if t != reflect.TypeFor[time.Time]() {
		return text
	}
	until, err := ParseEnd(text, time.Local)
	if err != nil {
		r.Fault(n, where, "is %.80q: %v", text, err)
	}
	return until.UTC()
}

func (r *reader) overrides(where string, n *yaml.Node) {
	lines := map[target]int{}
	r.List(n, where, func(i int, item *yaml.Node) {
		at := fmt.Sprintf("%s[%d]", where, i)
		var o policies.Override
		if !r.override(item, at, &o) {
			return
		}
		if line, twice := lines[targetOf(&o)]; twice {
			r.Fault(item, at, "is for the same policy and key as line %d", line)
			return
		}
		lines[targetOf(&o)] = item.Line
		r.file.Overrides = append(r.file.Overrides, o)
	})
}

// override reads an override and checks it. It returns false after a fault.
func (r *reader) override(n *yaml.Node, where string, o *policies.Override) bool {
	nodes, ok := r.entry(n, where, OverrideFields, o)
	if !ok {
		return false
	}
	before := len(r.Faults)
	for _, required := range [...]struct{ name, value string }{{"policy", o.Policy}, {"key", o.Key}} {
		if required.value == "" {
			r.Fault(n, where+"."+required.name, "is missing")
		}
	}
	if err := Check(*o); err != nil {
		r.Fault(n, where, "%v", err)
	}
	if n := utf8.RuneCountInString(o.Note); n > maxNote {
		r.Fault(nodes["note"], where+".note", "has %d characters: must have at most %d", n, maxNote)
	}
	return len(r.Faults) == before
}

// Check returns an error if an override changes nothing or too much, or has a bad anchor. Numbers are checked
// when it is written, with those of the policy.
func Check(o policies.Override) error {
	changes := o.Limit != nil || o.Factor != nil || o.Burst != nil || o.Anchor != "" || o.Shadow != nil
	_, anchor := algorithm.AnchorOf(o.Anchor)
	switch {
	case o.Unlimited && changes:
		return errors.New("is unlimited and has a limit, factor, burst, anchor or shadow: choose one")
	case o.Blocked && (changes || o.Unlimited):
		return errors.New("is blocked and has another change: choose one")
	case o.Match != "" && changes:
		return errors.New("has a match and a limit, factor, burst, anchor or shadow: with a match it is unlimited or blocked")
	case o.Limit != nil && o.Factor != nil:
		return errors.New("has a limit and a factor: choose one")
	case anchor != nil:
		return fmt.Errorf("has the anchor %.80q: %w", o.Anchor, anchor)
	case !o.Unlimited && !o.Blocked && !changes:
		return errors.New("changes nothing: give a limit, factor, burst, anchor, shadow, unlimited or blocked")
	}
	return nil
}

// maxNote is the longest note in characters, as the limiter has it.
const maxNote = 1000
