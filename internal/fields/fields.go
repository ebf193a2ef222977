// Package fields reads and writes a policy as a form: a struct of its fields as numbers,
// booleans and texts, in JSON and YAML, or as a row of the database. The policy's fields and their
// tags describe the form, so that a new field is described once.
package fields

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	durations "github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/strictjson"
	"github.com/pglimit/pglimit/internal/valid"
)

// Form is a form of a type of policies.
type Form struct {
	fields []reflect.StructField // of the policy
	places []int                 // of these, in the form
	typ    reflect.Type          // the form
	bad    Bad
}

// Bad returns the error of a field that has a value, and why that is not valid.
type Bad func(field string, value any, reason string) error

// of returns the fields of a policy, those of an embedded one first.
func of(policy reflect.Type) (all []reflect.StructField) {
	for _, f := range reflect.VisibleFields(policy) {
		if !f.Anonymous {
			all = append(all, f)
		}
	}
	return all
}

// Text returns the form in JSON and YAML.
func Text(policy reflect.Type, bad Bad) Form {
	f := Form{fields: of(policy), bad: bad}
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

// Row returns the form that a type of rows is. Its fields are named as the policy's, with units:
// LimitUnits, and PeriodS for a duration in seconds. It panics if one is missing.
func Row(policy, row reflect.Type, bad Bad) Form {
	f := Form{fields: of(policy), typ: row, bad: bad}
	for _, field := range f.fields {
		column, _ := row.FieldByNameFunc(func(name string) bool {
			return name == field.Name || name == field.Name+"S" || name == field.Name+"Units"
		})
		f.places = append(f.places, column.Index[0])
	}
	return f
}

// Marshal returns a policy's JSON. It escapes no HTML: the caller's encoder does, if it is
// to. A policy is a pointer, here and in all methods.
func (f Form) Marshal(policy any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(f.text(policy).Interface())
	return bytes.TrimSpace(out.Bytes()), err
}

// YAML returns a value that YAML packages write as Marshal does, with whole numbers as integers.
// They write 1000000.0 as 1e+06, which many others read as a text.
func (f Form) YAML(policy any) any {
	text := f.text(policy)
	fields := reflect.VisibleFields(text.Type())
	for i := range fields {
		if v := text.Field(i); v.Kind() == reflect.Float64 && v.Float() == math.Trunc(v.Float()) && math.Abs(v.Float()) <= valid.MaxUnits {
			fields[i].Type = reflect.TypeFor[int64]()
		}
	}
	whole := reflect.New(reflect.StructOf(fields)).Elem()
	for i, field := range fields {
		whole.Field(i).Set(text.Field(i).Convert(field.Type))
	}
	return whole.Interface()
}

// text returns the form of a policy, without fields that are zero.
func (f Form) text(policy any) reflect.Value {
	text, p := reflect.New(f.typ).Elem(), reflect.ValueOf(policy).Elem()
	for i, field := range f.fields {
		if v := p.FieldByIndex(field.Index); !v.IsZero() {
			flatten(text.Field(f.places[i]), v)
		}
	}
	return text
}

// JSON returns a function that decodes data, for Read.
func JSON(data []byte) (decode func(any) error) {
	return func(value any) error { return strictjson.Decode(data, value) }
}

// Read sets a policy to the form that decode reads. After an error the policy is as before.
func (f Form) Read(policy any, decode func(any) error) error {
	text := reflect.New(f.typ)
	if err := decode(text.Interface()); err != nil {
		return fmt.Errorf("pglimit: policy: %w", err)
	}
	read := reflect.New(reflect.TypeOf(policy).Elem())
	if err := f.From(read.Interface(), text.Interface()); err != nil {
		return err
	}
	reflect.ValueOf(policy).Elem().Set(read.Elem())
	return nil
}

// To sets all fields of a form to those of a policy.
func (f Form) To(form, policy any) {
	for i, field := range f.fields {
		flatten(reflect.ValueOf(form).Elem().Field(f.places[i]), reflect.ValueOf(policy).Elem().FieldByIndex(field.Index))
	}
}

// From sets the fields of a policy to those of a form. It returns the error of the first one that
// has no such value, after it has set all others.
func (f Form) From(policy, form any) (err error) {
	for i, field := range f.fields {
		v := reflect.ValueOf(form).Elem().Field(f.places[i])
		if reason := unflatten(reflect.ValueOf(policy).Elem().FieldByIndex(field.Index), v); reason != "" && err == nil {
			err = f.bad(field.Name, v.Interface(), reason)
		}
	}
	return err
}

// flatten sets a field of a form to a policy's field.
func flatten(to, from reflect.Value) {
	d, ok := from.Interface().(time.Duration)
	switch {
	case ok && to.Kind() == reflect.Float64:
		to.SetFloat(float64(d.Microseconds()) / 1e6)
	case ok:
		to.SetString(durations.Format(d))
	case from.Kind() == reflect.Uint8: // a name
		to.SetString(fmt.Sprint(from.Interface()))
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
	case *time.Time: // it reads texts too
	case encoding.TextUnmarshaler:
		if err := to.UnmarshalText([]byte(from.String())); err != nil {
			return err.Error()
		}
		return ""
	}
	to.Set(from.Convert(to.Type()))
	return ""
}

// fromSeconds returns seconds as whole microseconds. What no policy may have becomes a
// Duration that no policy may have.
func fromSeconds(s float64) time.Duration {
	if !(math.Abs(s) <= valid.MaxDuration.Seconds()) { // NaN too
		return valid.MaxDuration + 1
	}
	return time.Duration(math.Round(s*1e6)) * time.Microsecond
}
