package ratelimit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/limiter"
)

// maxNodes and maxDepth bound the mappings and lists of a file with its aliases written out, so
// that a few aliases of aliases, or one of itself, cannot fill the memory.
const maxNodes, maxDepth = 200_000, 100

// maxLevels bounds the descriptors below each other, and so the entries of a request's.
const maxLevels = maxDepth / 2

// maxFaults bounds the faults of a file, or of all resources of xDS, that an error has.
const maxFaults = 100

// faults are those of a configuration.
type faults []error

func (f *faults) fault(at, format string, args ...any) {
	switch n := len(*f); {
	case n < maxFaults:
		*f = append(*f, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
	case n == maxFaults:
		*f = append(*f, fmt.Errorf("more than %d faults: correct those first", maxFaults))
	}
}

// full reports whether further faults would not be shown, so that reading can end.
func (f *faults) full() bool { return len(*f) > maxFaults }

// ownKey is the key of a rate_limit whose fields only pglimit knows.
const ownKey = "pglimit"

// Parse reads the YAML of one domain. The error has a line for each fault, with the file's
// name, the line and the key.
func Parse(name string, data []byte) (*Domain, error) {
	var doc, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	err := documents.Decode(&doc)
	if err == io.EOF || err == nil && len(doc.Content) == 0 {
		return nil, fmt.Errorf("%s: is empty: write a domain and its descriptors", name)
	} else if err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	r, d := &reader{file: name}, &Domain{at: name}
	if documents.Decode(&second) == nil {
		r.fault(&second, "", "another document: a file has one domain")
	}
	r.mapping("", doc.Content[0], map[string]setter{
		"domain":      r.text(&d.name),
		"descriptors": r.descriptors(&d.descriptors),
	})
	return d, errors.Join(r.faults...)
}

// reader reads a file and collects its faults.
type reader struct {
	file string
	faults
	nodes int // mappings and lists read
	depth int // of those that are being read
}

// setter reads the value of a key.
type setter func(key string, value *yaml.Node)

func (r *reader) place(n *yaml.Node) string { return fmt.Sprintf("%s:%d", r.file, n.Line) }

func (r *reader) fault(n *yaml.Node, key, format string, args ...any) {
	if key != "" {
		key += ": "
	}
	r.faults.fault(r.place(n), key+format, args...)
}

// enter begins a mapping or a list, and follows an alias to it. It returns nil after a fault;
// else the caller calls leave.
func (r *reader) enter(key string, n *yaml.Node, kind yaml.Kind, want string) *yaml.Node {
	for range 8 {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
	}
	switch r.nodes++; {
	case r.full():
		return nil
	case r.nodes == maxNodes:
		r.fault(n, key, "the file has more than %d mappings and lists", maxNodes)
		return nil
	case r.nodes > maxNodes:
		return nil
	case r.depth == maxDepth:
		r.fault(n, key, "is more than %d levels deep", maxDepth)
		return nil
	case n.Kind != kind:
		r.fault(n, key, "must be %s", want)
		return nil
	}
	r.depth++
	return n
}

func (r *reader) leave() { r.depth-- }

// mapping calls the setter of each key of a mapping. Another key is a fault, and so is one that
// occurs twice. A null is as if its key were not there. A merge (<<) adds the keys that the
// mapping does not have.
func (r *reader) mapping(key string, n *yaml.Node, setters map[string]setter) {
	r.merge(key, n, setters, map[string]bool{})
}

func (r *reader) merge(key string, n *yaml.Node, setters map[string]setter, seen map[string]bool) {
	known := slices.Sorted(maps.Keys(setters))
	if n = r.enter(key, n, yaml.MappingNode, "a mapping with keys such as "+known[0]); n == nil {
		return
	}
	defer r.leave()
	var merged []*yaml.Node
	own := map[string]bool{}
	for i := 0; i+1 < len(n.Content) && !r.full(); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		set, ok := setters[name.Value]
		switch {
		case name.ShortTag() == "!!merge" && value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		case name.ShortTag() == "!!merge":
			merged = append(merged, value)
		case !ok || name.Kind != yaml.ScalarNode:
			r.fault(name, "", "unknown key %.80q: use %s", name.Value, strings.Join(known, ", "))
		case own[name.Value]:
			r.fault(name, name.Value, "is there twice")
		case seen[name.Value]: // a mapping into which this one is merged has it
		case value.ShortTag() == "!!null":
			own[name.Value] = true
		default:
			own[name.Value] = true
			set(name.Value, value)
		}
	}
	maps.Copy(seen, own)
	for _, m := range merged {
		r.merge("<<", m, setters, seen)
	}
}

// list calls each with the entries of a list.
func (r *reader) list(key string, n *yaml.Node, each func(*yaml.Node)) {
	if n = r.enter(key, n, yaml.SequenceNode, "a list"); n == nil {
		return
	}
	defer r.leave()
	for _, item := range n.Content {
		if r.full() {
			return
		}
		each(item)
	}
}

// scalar decodes a scalar.
func (r *reader) scalar(key string, n *yaml.Node, into any, want string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.ScalarNode || n.Decode(into) != nil {
		r.fault(n, key, "is %.80q: must be %s", n.Value, want)
	}
}

// number reads a number.
func (r *reader) number(key string, n *yaml.Node) (v float64, ok bool) {
	if v, ok = policyfile.Number(n); !ok {
		r.fault(n, key, "is %.80q: must be a number, in decimals without leading zeros", n.Value)
	}
	return v, ok
}

func (r *reader) text(into *string) setter {
	return func(key string, n *yaml.Node) { r.scalar(key, n, into, "a text") }
}

func (r *reader) boolean(into *bool) setter {
	return func(key string, n *yaml.Node) { r.scalar(key, n, into, "true or false") }
}

func (r *reader) descriptors(into *[]descriptor) setter {
	return func(key string, n *yaml.Node) {
		r.list(key, n, func(item *yaml.Node) {
			d := descriptor{at: r.place(item)}
			r.mapping(key, item, map[string]setter{
				"key":             r.text(&d.key),
				"value":           r.text(&d.value),
				"rate_limit":      r.rule(&d.rule),
				"descriptors":     r.descriptors(&d.children),
				"shadow_mode":     r.boolean(&d.shadow),
				"quota_mode":      r.boolean(&d.quota),
				"detailed_metric": r.boolean(&d.detailed),
				"value_to_metric": r.boolean(&d.valueToMetric),
				"share_threshold": r.boolean(&d.share),
				"metadata":        func(key string, n *yaml.Node) { d.metadata = r.structure(key, n) },
			})
			*into = append(*into, d)
		})
	}
}

func (r *reader) rule(into **rule) setter {
	return func(key string, n *yaml.Node) {
		l := &rule{at: r.place(n)}
		r.mapping(key, n, map[string]setter{
			"unit":      r.text(&l.unit),
			"unlimited": r.boolean(&l.unlimited),
			"name":      r.text(&l.name),
			"requests_per_unit": func(key string, n *yaml.Node) {
				v, ok := r.number(key, n)
				if l.perUnit = uint32(v); ok && float64(l.perUnit) != v {
					r.fault(n, key, "is %.80q: must be a whole number from 0 to 4294967295", n.Value)
				}
			},
			"replaces": func(key string, n *yaml.Node) {
				r.list(key, n, func(item *yaml.Node) {
					var name string
					r.mapping(key, item, map[string]setter{"name": r.text(&name)})
					l.replaces = append(l.replaces, name)
				})
			},
			ownKey: func(key string, n *yaml.Node) { l.own = r.own(key, n) },
		})
		*into = l
	}
}

// own reads the fields of a policy under ownKey.
func (r *reader) own(key string, n *yaml.Node) *own {
	o := &own{at: map[string]string{}}
	fields := &yaml.Node{Kind: yaml.MappingNode}
	setters := map[string]setter{"counting": r.text(&o.counting)}
	for _, f := range policyfile.FieldsOf(reflect.TypeFor[limiter.Policy]()) {
		if f.Name != "name" && f.Name != "shadow" { // the descriptor has these
			setters[f.Name] = func(key string, n *yaml.Node) {
				o.at[f.Go] = r.place(n)
				if f.Type.Kind() == reflect.Float64 {
					r.number(key, n)
				}
				fields.Content = append(fields.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, n)
			}
		}
	}
	r.mapping(key, n, setters)
	if err := fields.Decode(&o.policy); err != nil {
		r.fault(n, key, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return o
}

// structure reads metadata.
func (r *reader) structure(key string, n *yaml.Node) *structpb.Struct {
	if n = r.enter(key, n, yaml.MappingNode, "a mapping"); n == nil {
		return nil
	}
	defer r.leave()
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		s.Fields[n.Content[i].Value] = r.metadata(key, n.Content[i+1])
	}
	return s
}

func (r *reader) metadata(key string, n *yaml.Node) *structpb.Value {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.MappingNode:
		return structpb.NewStructValue(r.structure(key, n))
	case yaml.SequenceNode:
		l := &structpb.ListValue{}
		r.list(key, n, func(item *yaml.Node) { l.Values = append(l.Values, r.metadata(key, item)) })
		return structpb.NewListValue(l)
	}
	if tag := n.ShortTag(); tag == "!!int" || tag == "!!float" {
		v, _ := r.number(key, n)
		return structpb.NewNumberValue(v)
	}
	var value any
	err := n.Decode(&value)
	v, bad := structpb.NewValue(value)
	if err != nil || bad != nil {
		r.fault(n, key, "is %.80q: must be a text, a number, true, false, a list or a mapping", n.Value)
	}
	return v
}
