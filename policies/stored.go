package policies

import (
	"reflect"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/fields"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
	"github.com/pglimit/pglimit/limiter"
)

const defaultMaxTTL = 24 * time.Hour

// Validate returns nil if p can be stored, else a *PolicyError for the first field that is
// not valid.
func (p Stored) Validate() error {
	if err := p.Policy.Validate(); err != nil {
		return err
	}
	if reason := valid.Duration(p.MaxTTL); reason != "" || p.MaxTTL != 0 && p.MaxTTL < store.MinTTL {
		return bad("MaxTTL", p.MaxTTL, "must be whole microseconds from one second to a hundred years, or 0 for a day")
	}
	if p.Lease > 0 && p.LeaseLife() == 0 {
		return bad("Lease", p.Lease, "gives leases of less than 10ms or a Tick, which lend nothing: raise Lease or Burst, or leave it 0")
	}
	if reason := badNote(p.Note); reason != "" {
		return bad("Note", p.Note, reason)
	}
	return nil
}

// bad returns the error of a field.
func bad(field string, value any, reason string) error {
	return &limiter.PolicyError{Field: field, Value: value, Reason: reason}
}

var textForm = sync.OnceValue(func() fields.Form { return fields.Text(reflect.TypeFor[Stored](), bad) })

// MarshalJSON writes what limiter.Policy's does, with the fields that only a Stored has. It
// omits fields at their defaults.
func (p Stored) MarshalJSON() ([]byte, error) { return textForm().Marshal(p.short()) }

// UnmarshalJSON reads what MarshalJSON writes, as limiter.Policy's does. It does not validate.
func (p *Stored) UnmarshalJSON(data []byte) error { return textForm().Read(p, fields.JSON(data)) }

// MarshalYAML returns a value that YAML packages write as MarshalJSON does.
func (p Stored) MarshalYAML() (any, error) { return textForm().YAML(p.short()), nil }

// UnmarshalYAML reads that form, for YAML packages that pass a decode function. It does
// not validate.
func (p *Stored) UnmarshalYAML(decode func(any) error) error { return textForm().Read(p, decode) }

// short returns p without a MaxTTL that is the default.
func (p Stored) short() *Stored {
	if p.MaxTTL == defaultMaxTTL {
		p.MaxTTL = 0
	}
	return &p
}
