package limiter

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/pglimit/pglimit/internal/fields"
)

// MarshalJSON writes p with lower-case names and durations as strings. It omits fields at
// their defaults.
func (p Policy) MarshalJSON() ([]byte, error) { return policyForm().Marshal(&p) }

// UnmarshalJSON reads what MarshalJSON writes. In durations it also reads the unit d, of 24
// hours, such as "30d" or "1d12h". A field that is unknown, in another case, or there twice, is
// an error. UnmarshalJSON does not validate.
func (p *Policy) UnmarshalJSON(data []byte) error { return policyForm().Read(p, fields.JSON(data)) }

// MarshalYAML returns a value that YAML packages write as MarshalJSON does.
func (p Policy) MarshalYAML() (any, error) { return policyForm().YAML(&p), nil }

// UnmarshalYAML reads that form, for YAML packages that pass a decode function. It does
// not validate.
func (p *Policy) UnmarshalYAML(decode func(any) error) error { return policyForm().Read(p, decode) }

var policyForm = sync.OnceValue(func() fields.Form { return fields.Text(reflect.TypeFor[Policy](), Policy{}.bad) })

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

// MarshalText returns the name that String returns.
func (m FailMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads a name. Its error lists the names.
func (m *FailMode) UnmarshalText(name []byte) error {
	return choose(m, string(name), FailClosed, FailOpen, FailLocal)
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

// MarshalText returns the name that String returns.
func (d Durability) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a name. Its error lists the names.
func (d *Durability) UnmarshalText(name []byte) error {
	return choose(d, string(name), Durable, Relaxed)
}

// choose sets to to the value called name, or returns an error that says which there are.
func choose[T fmt.Stringer](to *T, name string, values ...T) error {
	var names []string
	for _, v := range values {
		if names = append(names, v.String()); name == v.String() {
			*to = v
			return nil
		}
	}
	return errors.New("must be " + strings.Join(names, " or "))
}
