package ratelimit

import (
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/strictyaml"
	"github.com/pglimit/pglimit/limiter"
)

// maxLevels bounds the descriptors below each other, and so the entries of a request's.
const maxLevels = strictyaml.MaxDepth / 2

// ownKey is the key of a rate_limit whose fields only pglimit knows.
const ownKey = "pglimit"

// Parse reads the YAML of one domain. The error has a line for each fault, with the file's
// name, the line and the key.
func Parse(name string, data []byte) (*Domain, error) {
	d := &Domain{at: name}
	err := strictyaml.Read(name, data, "a domain and its descriptors", keyOf, func(r *strictyaml.Reader, n *yaml.Node) {
		in := &reader{r}
		r.Mapping(n, "the file", named("domain", r.Text(&d.name)), named("descriptors", in.descriptors(&d.descriptors)))
	})
	return d, err
}

// keyOf names a key in errors. The line says where it is.
func keyOf(_, name string) string { return name + ":" }

var named = strictyaml.Named

type (
	reader struct{ *strictyaml.Reader }
	setter = strictyaml.Set
)

func (r *reader) descriptors(into *[]descriptor) setter {
	return func(key string, n *yaml.Node) {
		r.List(n, key, func(_ int, item *yaml.Node) {
			d := descriptor{at: r.Place(item)}
			r.Mapping(item, key,
				named("key", r.Text(&d.key)),
				named("value", r.Text(&d.value)),
				named("rate_limit", r.rule(&d.rule)),
				named("descriptors", r.descriptors(&d.children)),
				named("shadow_mode", r.Boolean(&d.shadow)),
				named("quota_mode", r.Boolean(&d.quota)),
				named("detailed_metric", r.Boolean(&d.detailed)),
				named("value_to_metric", r.Boolean(&d.valueToMetric)),
				named("share_threshold", r.Boolean(&d.share)),
				named("metadata", func(key string, n *yaml.Node) { d.metadata = r.structure(key, n) }))
			*into = append(*into, d)
		})
	}
}

func (r *reader) rule(into **rule) setter {
	return func(key string, n *yaml.Node) {
		l := &rule{at: r.Place(n)}
		r.Mapping(n, key,
			named("unit", r.Text(&l.unit)),
			named("requests_per_unit", func(key string, n *yaml.Node) {
				v, ok := r.Number(n, key)
				if l.perUnit = uint32(v); ok && float64(l.perUnit) != v {
					r.Fault(n, key, "is %.80q: must be a whole number from 0 to 4294967295", n.Value)
				}
			}),
			named("unlimited", r.Boolean(&l.unlimited)),
			named("name", r.Text(&l.name)),
			named("replaces", func(key string, n *yaml.Node) {
				r.List(n, key, func(_ int, item *yaml.Node) {
					var name string
					r.Mapping(item, key, named("name", r.Text(&name)))
					l.replaces = append(l.replaces, name)
				})
			}),
			named(ownKey, func(key string, n *yaml.Node) { l.own = r.own(key, n) }))
		*into = l
	}
}

// own reads the fields of a policy under ownKey.
func (r *reader) own(key string, n *yaml.Node) *own {
	o := &own{at: map[string]string{}}
	policy := &yaml.Node{Kind: yaml.MappingNode}
	fields := []strictyaml.Field{named("counting", r.Text(&o.counting))}
	for _, f := range policyfile.FieldsOf(reflect.TypeFor[limiter.Policy]()) {
		if f.Name != "name" && f.Name != "shadow" { // the descriptor has these
			fields = append(fields, named(f.Name, func(key string, n *yaml.Node) {
				o.at[f.Go] = r.Place(n)
				if f.Type.Kind() == reflect.Float64 {
					r.Number(n, key)
				}
				policy.Content = append(policy.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: f.Name}, n)
			}))
		}
	}
	r.Mapping(n, key, append(fields, named("floors", r.floors(&o.floors)))...)
	if err := policy.Decode(&o.policy); err != nil {
		r.Fault(n, key, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return o
}

// structure reads metadata.
func (r *reader) structure(key string, n *yaml.Node) *structpb.Struct {
	if n = r.Enter(n, key, yaml.MappingNode, "a mapping"); n == nil {
		return nil
	}
	defer r.Leave()
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		s.Fields[n.Content[i].Value] = r.metadata(key, n.Content[i+1])
	}
	return s
}

func (r *reader) metadata(key string, n *yaml.Node) *structpb.Value {
	n = strictyaml.Follow(n)
	switch n.Kind {
	case yaml.MappingNode:
		return structpb.NewStructValue(r.structure(key, n))
	case yaml.SequenceNode:
		l := &structpb.ListValue{}
		r.List(n, key, func(_ int, item *yaml.Node) { l.Values = append(l.Values, r.metadata(key, item)) })
		return structpb.NewListValue(l)
	}
	if tag := n.ShortTag(); tag == "!!int" || tag == "!!float" {
		v, _ := r.Number(n, key)
		return structpb.NewNumberValue(v)
	}
	var value any
	err := n.Decode(&value)
	v, bad := structpb.NewValue(value)
	if err != nil || bad != nil {
		r.Fault(n, key, "is %.80q: must be a text, a number, true, false, a list or a mapping", n.Value)
	}
	return v
}
