package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

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
	var doc, second yaml.Node
	r, documents := reader{name: name}, yaml.NewDecoder(bytes.NewReader(data))
	if err = documents.Decode(&doc); err == nil {
		if err = documents.Decode(&second); err == nil {
			r.fault(&second, "another document:", "a file has one")
		}
	}
	if err != nil && err != io.EOF {
		return File{}, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return File{}, fmt.Errorf("%s: is empty: write policies: and a list of policies", name)
	}
	r.document(follow(doc.Content[0]))
	return r.file, errors.Join(r.faults...)
}

// follow returns the node that an alias stands for.
func follow(n *yaml.Node) *yaml.Node {
	for range 8 {
		if n.Kind != yaml.AliasNode {
			break
		}
		n = n.Alias
	}
	return n
}

type reader struct {
	name   string
	file   File
	faults []error
}

// fault notes a fault at a line. where is the path of the field.
func (r *reader) fault(n *yaml.Node, where, reason string) {
	r.faults = append(r.faults, fmt.Errorf("%s:%d: %s %s", r.name, n.Line, where, reason))
}

func (r *reader) document(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode {
		r.policies(n, "policies")
		return
	}
	for f := range r.fields(n, "the file", "policies", "overrides") {
		switch f.name {
		case "policies":
			r.policies(f.value, f.name)
		case "overrides":
			r.overrides(f.value)
		}
	}
}

// field is one entry of a mapping.
type field struct {
	name  string
	value *yaml.Node
}

// fields iterates over the entries of a mapping that have one of the names. The others are
// faults, and so is a name that occurs twice.
func (r *reader) fields(n *yaml.Node, where string, names ...string) func(yield func(field) bool) {
	return func(yield func(field) bool) {
		if n.Kind != yaml.MappingNode {
			r.fault(n, where, "must be a mapping with fields such as "+strings.Join(names[:min(3, len(names))], ", "))
			return
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], follow(n.Content[i+1])
			switch {
			case !slices.Contains(names, key.Value):
				r.fault(key, where, fmt.Sprintf("has no field %.80q: use %s", key.Value, strings.Join(names, ", ")))
			case seen[key.Value]:
				r.fault(key, where, fmt.Sprintf("has %s twice", key.Value))
			default:
				seen[key.Value] = true
				if value.Tag == "!!null" {
					continue // as if it were not there
				}
				if !yield(field{key.Value, value}) {
					return
				}
			}
		}
	}
}

// items returns the entries of a list.
func (r *reader) items(n *yaml.Node, where string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode {
		r.fault(n, where, "must be a list")
		return nil
	}
	items := make([]*yaml.Node, len(n.Content))
	for i, item := range n.Content {
		items[i] = follow(item)
	}
	return items
}

func (r *reader) policies(n *yaml.Node, where string) {
	lines := map[string]int{}
	for i, item := range r.items(n, where) {
		at := fmt.Sprintf("%s[%d]", where, i)
		var p policies.Stored
		_, ok := r.entry(item, at, PolicyFields, &p)
		if line, twice := lines[p.Name]; twice {
			r.fault(item, at+".name", fmt.Sprintf("%q is that of line %d, too: each policy has a name of its own", p.Name, line))
		} else if ok {
			lines[p.Name] = item.Line
			r.file.Policies = append(r.file.Policies, p)
		}
	}
}

// entry reads a mapping of fields into a policy or an override. It returns the nodes of the
// fields, and false after a fault.
func (r *reader) entry(n *yaml.Node, where string, fields []Field, into any) (nodes map[string]*yaml.Node, ok bool) {
	before, given, nodes := len(r.faults), map[string]any{}, map[string]*yaml.Node{}
	types, names := map[string]reflect.Type{}, make([]string, len(fields))
	for i, f := range fields {
		types[f.Name], names[i] = f.Type, f.Name
	}
	for f := range r.fields(n, where, names...) {
		nodes[f.name], given[f.name] = f.value, r.value(f.value, where+"."+f.name, types[f.name])
	}
	if len(r.faults) > before {
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
		r.fault(n, where, err.Error())
		return nodes, false
	}
	name := fields[slices.IndexFunc(fields, func(f Field) bool { return f.Go == bad.Field })].Name
	value := fmt.Sprint(bad.Value)
	if text, isText := bad.Value.(string); isText {
		value = fmt.Sprintf("%.80q", text)
	}
	if at, has := nodes[name]; has {
		r.fault(at, where+"."+name, "is "+value+": "+bad.Reason)
	} else {
		r.fault(n, where+"."+name, "is missing: "+bad.Reason)
	}
	return nodes, false
}

// value reads a field of a type.
func (r *reader) value(n *yaml.Node, where string, t reflect.Type) any {
	switch {
	case t.Kind() == reflect.Float64:
		return r.number(n, where)
	case t.Kind() == reflect.Bool:
		return r.boolean(n, where)
	case t != reflect.TypeFor[time.Time]():
		return r.text(n, where)
	}
	text := r.text(n, where)
	until, err := ParseEnd(text, time.Local)
	if err != nil {
		r.fault(n, where, fmt.Sprintf("is %.80q: %v", text, err))
	}
	return until.UTC()
}

func (r *reader) overrides(n *yaml.Node) {
	lines := map[target]int{}
	for i, item := range r.items(n, "overrides") {
		at := fmt.Sprintf("overrides[%d]", i)
		var o policies.Override
		if !r.override(item, at, &o) {
			continue
		}
		if line, twice := lines[targetOf(&o)]; twice {
			r.fault(item, at, fmt.Sprintf("is for the same policy and key as line %d", line))
			continue
		}
		lines[targetOf(&o)] = item.Line
		r.file.Overrides = append(r.file.Overrides, o)
	}
}

// override reads an override and checks it. It returns false after a fault.
func (r *reader) override(n *yaml.Node, where string, o *policies.Override) bool {
	nodes, ok := r.entry(n, where, OverrideFields, o)
	if !ok {
		return false
	}
	before := len(r.faults)
	for _, required := range [...]struct{ name, value string }{{"policy", o.Policy}, {"key", o.Key}} {
		if required.value == "" {
			r.fault(n, where+"."+required.name, "is missing")
		}
	}
	if err := Check(*o); err != nil {
		r.fault(n, where, err.Error())
	}
	if n := utf8.RuneCountInString(o.Note); n > maxNote {
		r.fault(nodes["note"], where+".note", fmt.Sprintf("has %d characters: must have at most %d", n, maxNote))
	}
	return len(r.faults) == before
}

// Check returns an error if an override changes nothing or too much. Numbers are checked
// when it is written, with those of the policy.
func Check(o policies.Override) error {
	changes := o.Limit != nil || o.Factor != nil || o.Burst != nil || o.Shadow != nil
	switch {
	case o.Unlimited && changes:
		return errors.New("is unlimited and has a limit, factor, burst or shadow: choose one")
	case o.Blocked && (changes || o.Unlimited):
		return errors.New("is blocked and has another change: choose one")
	case o.Match != "" && changes:
		return errors.New("has a match and a limit, factor, burst or shadow: with a match it is unlimited or blocked")
	case o.Limit != nil && o.Factor != nil:
		return errors.New("has a limit and a factor: choose one")
	case !o.Unlimited && !o.Blocked && !changes:
		return errors.New("changes nothing: give a limit, factor, burst, shadow, unlimited or blocked")
	}
	return nil
}

func (r *reader) scalar(n *yaml.Node, where, want string) bool {
	if n.Kind != yaml.ScalarNode {
		r.fault(n, where, "must be "+want)
		return false
	}
	return true
}

// text reads a text. A number, such as a key, may be written without quotes.
func (r *reader) text(n *yaml.Node, where string) string {
	r.scalar(n, where, "a text")
	return n.Value
}

// maxNote is the longest note in characters, as the limiter has it.
const maxNote = 1000

func (r *reader) number(n *yaml.Node, where string) float64 {
	if !r.scalar(n, where, "a number") {
		return 0
	}
	v, ok := Number(n)
	if !ok {
		r.fault(n, where, fmt.Sprintf("is %.80q: must be a number, in decimals without leading zeros", n.Value))
	}
	return v
}

// Number returns the number of a scalar that a flag would read alike: to YAML, 0100 is 64.
func Number(n *yaml.Node) (v float64, ok bool) {
	n = follow(n)
	tag, digits := n.ShortTag(), strings.TrimLeft(n.Value, "+-")
	isOctal := len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9'
	v, err := strconv.ParseFloat(n.Value, 64)
	return v, err == nil && strings.Trim(digits, "0123456789.eE+-") == "" && !isOctal && (tag == "!!int" || tag == "!!float")
}

func (r *reader) boolean(n *yaml.Node, where string) bool {
	if !r.scalar(n, where, "true or false") {
		return false
	}
	if n.Value != "true" && n.Value != "false" {
		r.fault(n, where, fmt.Sprintf("is %.80q: must be true or false", n.Value))
	}
	return n.Value == "true"
}
