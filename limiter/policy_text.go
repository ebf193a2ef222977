package limiter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	durations "github.com/pglimit/pglimit/internal/duration"
)

// policyText is a Policy in JSON and YAML.
type policyText struct {
	Name       string    `json:"name" yaml:"name"`
	Algorithm  Algorithm `json:"algorithm" yaml:"algorithm"`
	Limit      float64   `json:"limit" yaml:"limit"`
	Period     string    `json:"period,omitempty" yaml:"period,omitempty"`
	Burst      float64   `json:"burst,omitempty" yaml:"burst,omitempty"`
	Tick       string    `json:"tick,omitempty" yaml:"tick,omitempty"`
	Aligned    bool      `json:"aligned,omitempty" yaml:"aligned,omitempty"`
	Calendar   Calendar  `json:"calendar,omitempty" yaml:"calendar,omitempty"`
	TimeZone   string    `json:"time_zone,omitempty" yaml:"time_zone,omitempty"`
	BlockFor   string    `json:"block_for,omitempty" yaml:"block_for,omitempty"`
	Durability string    `json:"durability,omitempty" yaml:"durability,omitempty"`
	OnError    string    `json:"on_error,omitempty" yaml:"on_error,omitempty"`
	Shadow     bool      `json:"shadow,omitempty" yaml:"shadow,omitempty"`
}

// MarshalJSON writes p with lower-case names and durations as strings. It omits fields at
// their defaults.
func (p Policy) MarshalJSON() ([]byte, error) { return json.Marshal(p.text()) }

// UnmarshalJSON reads what MarshalJSON writes. In durations it also reads the unit d, of 24
// hours, such as "30d" or "1d12h". An unknown field is an error, so that a
// misspelt one is not ignored. UnmarshalJSON does not validate.
func (p *Policy) UnmarshalJSON(data []byte) error {
	var t policyText
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		return fmt.Errorf("pglimit: policy: %w", err)
	}
	return p.fromText(t)
}

// MarshalYAML returns a value that YAML packages write as MarshalJSON does.
func (p Policy) MarshalYAML() (any, error) { return p.text(), nil }

// UnmarshalYAML reads that form, for YAML packages that pass a decode function. It does
// not validate.
func (p *Policy) UnmarshalYAML(decode func(any) error) error {
	var t policyText
	if err := decode(&t); err != nil {
		return fmt.Errorf("pglimit: policy: %w", err)
	}
	return p.fromText(t)
}

// String returns FailMode's name in JSON, YAML and flags.
func (m FailMode) String() string {
	switch m {
	case FailClosed:
		return "fail_closed"
	case FailOpen:
		return "fail_open"
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

func (p Policy) text() policyText {
	t := policyText{
		Name: p.Name, Algorithm: p.Algorithm, Limit: p.Limit,
		Burst: p.Burst, Aligned: p.Aligned, Calendar: p.Calendar, TimeZone: p.TimeZone, Shadow: p.Shadow,
	}
	if p.Period != 0 || p.Calendar == "" {
		t.Period = p.Period.String()
	}
	if p.Tick != 0 {
		t.Tick = p.Tick.String()
	}
	if p.BlockFor != 0 {
		t.BlockFor = p.BlockFor.String()
	}
	if p.Durability != Durable {
		t.Durability = p.Durability.String()
	}
	if p.OnError != FailClosed {
		t.OnError = p.OnError.String()
	}
	return t
}

func (p *Policy) fromText(t policyText) error {
	q := Policy{Name: t.Name, Algorithm: t.Algorithm, Limit: t.Limit, Burst: t.Burst, Aligned: t.Aligned, Calendar: t.Calendar, TimeZone: t.TimeZone, Shadow: t.Shadow}
	for _, d := range [...]struct {
		field, text string
		into        *time.Duration
	}{{"Period", t.Period, &q.Period}, {"Tick", t.Tick, &q.Tick}, {"BlockFor", t.BlockFor, &q.BlockFor}} {
		if d.text == "" {
			continue
		}
		v, err := durations.Parse(d.text)
		if err != nil {
			return q.bad(d.field, d.text, `must be a duration such as "1m30s" or "30d"`)
		}
		*d.into = v
	}
	switch t.Durability {
	case "", Durable.String():
	case Relaxed.String():
		q.Durability = Relaxed
	default:
		return q.bad("Durability", t.Durability, "must be durable or relaxed")
	}
	switch t.OnError {
	case "", FailClosed.String():
	case FailOpen.String():
		q.OnError = FailOpen
	default:
		return q.bad("OnError", t.OnError, "must be fail_closed or fail_open")
	}
	*p = q
	return nil
}
