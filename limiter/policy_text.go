package limiter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"time"

	durations "github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/strictjson"
)

// MarshalJSON writes p with lower-case names and durations as strings. It omits fields at
// their defaults.
func (p Policy) MarshalJSON() ([]byte, error) { return policyForm().marshal(&p) }

// UnmarshalJSON reads what MarshalJSON writes. In durations it also reads the unit d, of 24
// hours, such as "30d" or "1d12h". A field that is unknown, in another case, or there twice, is
// an error. UnmarshalJSON does not validate.
func (p *Policy) UnmarshalJSON(data []byte) error { return policyForm().read(p, strictJSON(data)) }

// MarshalYAML returns a value that YAML packages write as MarshalJSON does.
func (p Policy) MarshalYAML() (any, error) { return policyForm().yaml(&p), nil }

// UnmarshalYAML reads that form, for YAML packages that pass a decode function. It does
// not validate.
func (p *Policy) UnmarshalYAML(decode func(any) error) error { return policyForm().read(p, decode) }

// MarshalJSON writes what Policy's does, with the fields that only a StoredPolicy has. It
// omits fields at their defaults.
func (p StoredPolicy) MarshalJSON() ([]byte, error) { return storedForm().marshal(p.short()) }

// UnmarshalJSON reads what MarshalJSON writes, as Policy's does. It does not validate.
func (p *StoredPolicy) UnmarshalJSON(data []byte) error {
	return storedForm().read(p, strictJSON(data))
}

// MarshalYAML returns a value that YAML packages write as MarshalJSON does.
func (p StoredPolicy) MarshalYAML() (any, error) { return storedForm().yaml(p.short()), nil }

// UnmarshalYAML reads that form, for YAML packages that pass a decode function. It does
// not validate.
func (p *StoredPolicy) UnmarshalYAML(decode func(any) error) error {
	return storedForm().read(p, decode)
}

// short returns p without a MaxTTL that is the default.
func (p StoredPolicy) short() *StoredPolicy {
	if p.MaxTTL == defaultMaxTTL {
		p.MaxTTL = 0
	}
	return &p
}

// String returns FailMode's name in JSON, YAML and flags.
func (m FailMode) String() string {
	switch m {
	case FailClosed:
		return "fail_closed"
	case FailOpen:
		return "fail_open"
	case FailLocal:
		return "fail_local"
	}
	return fmt.Sprintf("FailMode(%d)", uint8(m))
}

// String returns Durability's name in JSON, YAML and flags.
func (d Durability) String() string {
	switch d {
	case Durable:
		return "durable"
	case Relaxed:
		return "relaxed"
	}
	return fmt.Sprintf("Durability(%d)", uint8(d))
}

// strictJSON returns a function that decodes data.
func strictJSON(data []byte) (decode func(any) error) {
	return func(value any) error { return strictjson.Decode(data, value) }
}

// form is a struct of a policy's fields as numbers, booleans and texts: in JSON and YAML, or
// as a row of the database. The policy's fields and their tags describe it, so that a new
// field is described once.
type form struct {
	fields []reflect.StructField // of the policy
	places []int                 // of these, in the form
	typ    reflect.Type          // the form
}

var (
	policyForm = sync.OnceValue(func() form { return textForm(reflect.TypeFor[Policy]()) })
	storedForm = sync.OnceValue(func() form { return textForm(reflect.TypeFor[StoredPolicy]()) })
)

// fieldsOf returns the fields of a policy, those of an embedded one first.
func fieldsOf(policy reflect.Type) (all []reflect.StructField) {
	for _, f := range reflect.VisibleFields(policy) {
		if !f.Anonymous {
			all = append(all, f)
		}
	}
	return all
}

// textForm returns the form in JSON and YAML.
func textForm(policy reflect.Type) form {
	f := form{fields: fieldsOf(policy)}
	var texts []reflect.StructField
	for i, field := range f.fields {
		typ := field.Type
		if kind := typ.Kind(); kind == reflect.Uint8 || kind == reflect.String || typ == reflect.TypeFor[time.Duration]() {
			typ = reflect.TypeFor[string]()
		}
		tag := field.Tag.Get("json")
		both := reflect.StructTag(fmt.Sprintf("json:%q yaml:%q", tag, strings.Replace(tag, "omitzero", "omitempty", 1)))
		texts, f.places = append(texts, reflect.StructField{Name: field.Name, Type: typ, Tag: both}), append(f.places, i)
	}
	f.typ = reflect.StructOf(texts)
	return f
}

// text returns the form of a policy, which is a pointer, without fields that are zero.
func (f form) text(policy any) any {
	text, p := reflect.New(f.typ).Elem(), reflect.ValueOf(policy).Elem()
	for i, field := range f.fields {
		if v := p.FieldByIndex(field.Index); !v.IsZero() {
			flatten(text.Field(f.places[i]), v)
		}
	}
	return text.Interface()
}

// yaml returns the text form with whole numbers as integers. YAML packages write 1000000.0 as
// 1e+06, which many others read as a text.
func (f form) yaml(policy any) any {
	text := reflect.ValueOf(f.text(policy))
	fields := reflect.VisibleFields(text.Type())
	for i := range fields {
		if v := text.Field(i); v.Kind() == reflect.Float64 && v.Float() == math.Trunc(v.Float()) && math.Abs(v.Float()) <= maxUnits {
			fields[i].Type = reflect.TypeFor[int64]()
		}
	}
	whole := reflect.New(reflect.StructOf(fields)).Elem()
	for i, field := range fields {
		whole.Field(i).Set(text.Field(i).Convert(field.Type))
	}
	return whole.Interface()
}

// marshal returns a policy's JSON. It escapes no HTML: the caller's encoder does, if it is
// to.
func (f form) marshal(policy any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(f.text(policy))
	return bytes.TrimSpace(out.Bytes()), err
}

// read sets a policy to the form that decode reads. After an error the policy is as before.
func (f form) read(policy any, decode func(any) error) error {
	text := reflect.New(f.typ)
	if err := decode(text.Interface()); err != nil {
		return fmt.Errorf("pglimit: policy: %w", err)
	}
	read := reflect.New(reflect.TypeOf(policy).Elem())
	if err := f.unflatten(read.Elem(), text.Elem()); err != nil {
		return err
	}
	reflect.ValueOf(policy).Elem().Set(read.Elem())
	return nil
}

// unflatten sets the fields of a policy to those of a form. It returns the error of the first
// one that has no such value, after it has set all others.
func (f form) unflatten(policy, from reflect.Value) (err error) {
	for i, field := range f.fields {
		v := from.Field(f.places[i])
		if reason := unflatten(policy.FieldByIndex(field.Index), v); reason != "" && err == nil {
			err = Policy{}.bad(field.Name, v.Interface(), reason)
		}
	}
	return err
}

// flatten sets a field of a form to a policy's field.
func flatten(to, from reflect.Value) {
	switch v := from.Interface().(type) {
	case time.Duration:
		if to.Kind() == reflect.Float64 {
			to.SetFloat(inSeconds(v))
		} else {
			to.SetString(durations.Format(v))
		}
	case FailMode, Durability:
		to.SetString(fmt.Sprint(v))
	default:
		to.Set(from.Convert(to.Type()))
	}
}

// unflatten sets a policy's field to that of a form, or returns why it cannot. An empty text
// is the default.
func unflatten(to, from reflect.Value) (reason string) {
	if from.Kind() == reflect.String && from.Len() == 0 {
		return ""
	}
	switch to := to.Addr().Interface().(type) {
	case *time.Duration:
		if from.Kind() == reflect.Float64 {
			*to = fromSeconds(from.Float())
			return ""
		}
		d, err := durations.Parse(from.String())
		if err != nil {
			return `must be a duration such as "1m30s" or "30d"`
		}
		*to = d
		return ""
	case *FailMode:
		return choose(to, from.String(), FailClosed, FailOpen, FailLocal)
	case *Durability:
		return choose(to, from.String(), Durable, Relaxed)
	}
	to.Set(from.Convert(to.Type()))
	return ""
}

// choose sets to to the value called name, or returns why it cannot.
func choose[T fmt.Stringer](to *T, name string, values ...T) (reason string) {
	var names []string
	for _, v := range values {
		if names = append(names, v.String()); name == v.String() {
			*to = v
			return ""
		}
	}
	return "must be " + strings.Join(names, " or ")
}
