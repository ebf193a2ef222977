package limiter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	durations "github.com/pglimit/pglimit/internal/duration"
)

// storedText is a StoredPolicy in JSON and YAML: the fields of its Policy, and its own.
type storedText struct {
	policyText `yaml:",inline"`
	Note       string    `json:"note,omitempty" yaml:"note,omitempty"`
	Askers     bool      `json:"askers,omitempty" yaml:"askers,omitempty"`
	MaxTTL     string    `json:"max_ttl,omitempty" yaml:"max_ttl,omitempty"`
	Version    int64     `json:"version,omitempty" yaml:"version,omitempty"`
	ChangedAt  time.Time `json:"changed_at,omitzero" yaml:"changed_at,omitempty"`
	ChangedBy  string    `json:"changed_by,omitempty" yaml:"changed_by,omitempty"`
}

// MarshalJSON writes what Policy's does, with the fields that only a StoredPolicy has. It
// omits fields at their defaults.
func (p StoredPolicy) MarshalJSON() ([]byte, error) { return json.Marshal(p.text()) }

// UnmarshalJSON reads what MarshalJSON writes. An unknown field is an error. UnmarshalJSON
// does not validate.
func (p *StoredPolicy) UnmarshalJSON(data []byte) error {
	var t storedText
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		return fmt.Errorf("pglimit: policy: %w", err)
	}
	return p.fromText(t)
}

// MarshalYAML returns a value that YAML packages write as MarshalJSON does.
func (p StoredPolicy) MarshalYAML() (any, error) { return p.text(), nil }

// UnmarshalYAML reads that form, for YAML packages that pass a decode function. It does
// not validate.
func (p *StoredPolicy) UnmarshalYAML(decode func(any) error) error {
	var t storedText
	if err := decode(&t); err != nil {
		return fmt.Errorf("pglimit: policy: %w", err)
	}
	return p.fromText(t)
}

func (p StoredPolicy) text() storedText {
	t := storedText{
		policyText: p.Policy.text(), Note: p.Note, Askers: p.Askers,
		Version: p.Version, ChangedAt: p.ChangedAt, ChangedBy: p.ChangedBy,
	}
	if p.MaxTTL != 0 && p.MaxTTL != defaultMaxTTL {
		t.MaxTTL = p.MaxTTL.String()
	}
	return t
}

func (p *StoredPolicy) fromText(t storedText) error {
	q := StoredPolicy{Note: t.Note, Askers: t.Askers, Version: t.Version, ChangedAt: t.ChangedAt, ChangedBy: t.ChangedBy}
	if err := q.Policy.fromText(t.policyText); err != nil {
		return err
	}
	if t.MaxTTL != "" {
		d, err := durations.Parse(t.MaxTTL)
		if err != nil {
			return q.bad("MaxTTL", t.MaxTTL, `must be a duration such as "1h" or "30d"`)
		}
		q.MaxTTL = d
	}
	*p = q
	return nil
}
