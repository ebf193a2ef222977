// Package strictyaml reads YAML files whose fields are known. It collects all faults of a file,
// each with the file's name, the line and the field. It follows aliases and merges, and bounds
// what they unfold to, so that a few aliases of aliases, or one of itself, cannot fill the memory.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	maxNodes = 200_000 // mappings and lists of a short file, with its aliases written out

	// MaxDepth bounds how deep mappings and lists are below each other.
	MaxDepth = 100
	// MaxFaults bounds the faults that an error has.
	MaxFaults = 100
)

// Faults are those of one file or more. The zero value has none.
type Faults []error

// Add adds a fault at a place, unless there are too many.
func (f *Faults) Add(at, format string, args ...any) {
	switch n := len(*f); {
	case n < MaxFaults:
		*f = append(*f, fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...)))
	case n == MaxFaults:
		*f = append(*f, fmt.Errorf("more than %d faults: correct those first", MaxFaults))
	}
}

// Full reports whether further faults would not be shown, so that reading can end.
func (f *Faults) Full() bool { return len(*f) > MaxFaults }

// Reader reads a file and collects its faults.
type Reader struct {
	Faults
	file  string
	child func(where, name string) string
	nodes int // mappings and lists read
	most  int // of nodes: what a file without aliases can have, or maxNodes
	depth int // of nodes that are being read
}

// Read reads the only document of a file. what says what an empty file lacks. child names the field
// of a mapping in errors. It returns all faults, joined.
func Read(file string, data []byte, what string, child func(where, name string) string, read func(*Reader, *yaml.Node)) error {
	var doc, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	err := documents.Decode(&doc)
	if err == io.EOF || err == nil && len(doc.Content) == 0 {
		return fmt.Errorf("%s: is empty: write %s", file, what)
	}
	r := &Reader{file: file, child: child, most: max(maxNodes, len(data))}
	if err == nil {
		if err = documents.Decode(&second); err == nil {
			r.Fault(&second, "another document:", "a file has one")
		}
	}
	if err != nil && err != io.EOF {
		return fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	read(r, doc.Content[0])
	return errors.Join(r.Faults...)
}

// Place returns the file and the line of a node.
func (r *Reader) Place(n *yaml.Node) string { return fmt.Sprintf("%s:%d", r.file, n.Line) }

// Fault adds a fault of the field where.
func (r *Reader) Fault(n *yaml.Node, where, format string, args ...any) {
	r.Add(r.Place(n), "%s "+format, append([]any{where}, args...)...)
}

// Follow returns the node that an alias stands for.
func Follow(n *yaml.Node) *yaml.Node {
	for range 8 {
		if n.Kind == yaml.AliasNode {
			n = n.Alias
		}
	}
	return n
}

// Enter begins a mapping or a list, and follows an alias to it. It returns nil after a fault;
// else the caller calls Leave.
func (r *Reader) Enter(n *yaml.Node, where string, kind yaml.Kind, want string) *yaml.Node {
	n = Follow(n)
	switch r.nodes++; {
	case r.Full():
		return nil
	case r.nodes == r.most:
		r.Fault(n, where, "the file has more than %d mappings and lists", r.most)
		return nil
	case r.nodes > r.most:
		return nil
	case r.depth == MaxDepth:
		r.Fault(n, where, "is more than %d levels deep", MaxDepth)
		return nil
	case n.Kind != kind:
		r.Fault(n, where, "must be %s", want)
		return nil
	}
	r.depth++
	return n
}

// Leave ends what Enter has begun.
func (r *Reader) Leave() { r.depth-- }

// Set reads the value of a field.
type Set func(where string, value *yaml.Node)

// Field is a field of a mapping.
type Field struct {
	Name string
	Set  Set
}

// Named returns a field.
func Named(name string, set Set) Field { return Field{name, set} }

// Mapping sets the fields of a mapping. Another field is a fault, and so is one that occurs twice.
// A null is as if its field were not there. A merge (<<) adds the fields that the mapping does not
// have.
func (r *Reader) Mapping(n *yaml.Node, where string, fields ...Field) {
	r.merge(n, where, fields, map[string]bool{})
}

func (r *Reader) merge(n *yaml.Node, where string, fields []Field, seen map[string]bool) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	if n = r.Enter(n, where, yaml.MappingNode, "a mapping with fields such as "+strings.Join(names[:min(3, len(names))], ", ")); n == nil {
		return
	}
	defer r.Leave()
	var merged []*yaml.Node
	own := map[string]bool{}
	for i := 0; i+1 < len(n.Content) && !r.Full(); i += 2 {
		name, value := n.Content[i], Follow(n.Content[i+1])
		known := slices.Index(names, name.Value)
		switch {
		case name.ShortTag() == "!!merge" && value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		case name.ShortTag() == "!!merge":
			merged = append(merged, value)
		case known < 0 || name.Kind != yaml.ScalarNode:
			r.Fault(name, where, "has no field %.80q: use %s", name.Value, strings.Join(names, ", "))
		case own[name.Value]:
			r.Fault(name, where, "has %s twice", name.Value)
		case seen[name.Value]: // a mapping into which this one is merged has it
		case value.ShortTag() == "!!null":
			own[name.Value] = true
		default:
			own[name.Value] = true
			fields[known].Set(r.child(where, name.Value), value)
		}
	}
	maps.Copy(seen, own)
	for _, m := range merged {
		r.merge(m, where, fields, seen)
	}
}

// List calls each with the entries of a list.
func (r *Reader) List(n *yaml.Node, where string, each func(i int, item *yaml.Node)) {
	if n = r.Enter(n, where, yaml.SequenceNode, "a list"); n == nil {
		return
	}
	defer r.Leave()
	for i, item := range n.Content {
		if r.Full() {
			return
		}
		each(i, Follow(item))
	}
}

// Scalar decodes a scalar.
func (r *Reader) Scalar(n *yaml.Node, where string, into any, want string) {
	switch n = Follow(n); {
	case n.Kind != yaml.ScalarNode:
		r.Fault(n, where, "must be %s", want)
	case n.Decode(into) != nil:
		r.Fault(n, where, "is %.80q: must be %s", n.Value, want)
	}
}

// Text reads a text. A number, such as a key, may be written without quotes.
func (r *Reader) Text(into *string) Set {
	return func(where string, n *yaml.Node) { r.Scalar(n, where, into, "a text") }
}

// Boolean reads true or false.
func (r *Reader) Boolean(into *bool) Set {
	return func(where string, n *yaml.Node) { r.Scalar(n, where, into, "true or false") }
}

// Number reads a number. To YAML 0100 is 64, and to people it is not: it must be written as one
// that a flag reads alike.
func (r *Reader) Number(n *yaml.Node, where string) (v float64, ok bool) {
	if n = Follow(n); n.Kind != yaml.ScalarNode {
		r.Fault(n, where, "must be a number")
		return 0, false
	}
	tag, digits := n.ShortTag(), strings.TrimLeft(n.Value, "+-")
	isOctal := len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9'
	v, err := strconv.ParseFloat(n.Value, 64)
	if ok = err == nil && strings.Trim(digits, "0123456789.eE+-") == "" && !isOctal && (tag == "!!int" || tag == "!!float"); !ok {
		r.Fault(n, where, "is %.80q: must be a number, in decimals without leading zeros", n.Value)
	}
	return v, ok
}
