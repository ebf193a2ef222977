package model

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Brief writes the fields of a struct that are not zero.
func Brief(v any) string {
	var b strings.Builder
	brief(&b, reflect.ValueOf(v))
	return b.String()
}

func brief(b *strings.Builder, v reflect.Value) {
	switch x := v.Interface().(type) {
	case limiter.Policy:
		fmt.Fprintf(b, "%s limit %v", x.Name, x.Limit)
		return
	case Rules:
		fmt.Fprintf(b, "limit %v", x.Limit)
		return
	case time.Time:
		fmt.Fprint(b, x.UnixMicro())
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		b.WriteByte('{')
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() || v.Field(i).IsZero() || f.Name == "Kept" || f.Name == "Steps" {
				continue
			}
			fmt.Fprintf(b, "%s ", f.Name)
			brief(b, v.Field(i))
			b.WriteByte(' ')
		}
		b.WriteByte('}')
	case reflect.Pointer:
		brief(b, v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			brief(b, v.Index(i))
		}
	default:
		fmt.Fprint(b, v.Interface())
	}
}
