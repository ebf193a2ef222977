// Package policyfile reads and writes files with policies and overrides, as YAML or JSON.
//
//	policies:
//	  - name: login
//	    algorithm: token_bucket
//	    limit: 5
//	    period: 1m
//	    burst: 10
//	    note: as agreed with support
//	overrides:
//	  - policy: login
//	    key: alice
//	    limit: 100
//	    until: 2027-01-31
package policyfile

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pglimit/pglimit/limiter"
)

// File is what a file has.
type File struct {
	Policies  []limiter.StoredPolicy
	Overrides []limiter.Override
}

// Policy is a policy as a file and --json have it.
type Policy struct {
	Name       string  `json:"name" yaml:"name"`
	Algorithm  string  `json:"algorithm" yaml:"algorithm"`
	Limit      float64 `json:"limit" yaml:"limit"`
	Period     string  `json:"period,omitempty" yaml:"period,omitempty"`
	Burst      float64 `json:"burst,omitempty" yaml:"burst,omitempty"`
	Tick       string  `json:"tick,omitempty" yaml:"tick,omitempty"`
	Aligned    bool    `json:"aligned,omitempty" yaml:"aligned,omitempty"`
	Calendar   string  `json:"calendar,omitempty" yaml:"calendar,omitempty"`
	TimeZone   string  `json:"time_zone,omitempty" yaml:"time_zone,omitempty"`
	BlockFor   string  `json:"block_for,omitempty" yaml:"block_for,omitempty"`
	Durability string  `json:"durability,omitempty" yaml:"durability,omitempty"`
	OnError    string  `json:"on_error,omitempty" yaml:"on_error,omitempty"`
	Shadow     bool    `json:"shadow,omitempty" yaml:"shadow,omitempty"`
	Askers     bool    `json:"askers,omitempty" yaml:"askers,omitempty"`
	MaxTTL     string  `json:"max_ttl,omitempty" yaml:"max_ttl,omitempty"`
	Note       string  `json:"note,omitempty" yaml:"note,omitempty"`

	Changed `yaml:"-"`
}

// Override is an override as a file and --json have it.
type Override struct {
	Policy    string   `json:"policy" yaml:"policy"`
	Key       string   `json:"key" yaml:"key"`
	Limit     *float64 `json:"limit,omitempty" yaml:"limit,omitempty"`
	Burst     *float64 `json:"burst,omitempty" yaml:"burst,omitempty"`
	Unlimited bool     `json:"unlimited,omitempty" yaml:"unlimited,omitempty"`
	Shadow    *bool    `json:"shadow,omitempty" yaml:"shadow,omitempty"`
	Until     string   `json:"until,omitempty" yaml:"until,omitempty"`
	Note      string   `json:"note,omitempty" yaml:"note,omitempty"`

	Changed `yaml:"-"`
}

// Changed is when and by whom a policy or an override was changed last. Files do not have
// it.
type Changed struct {
	Version   int64      `json:"version,omitempty"`
	ChangedAt *time.Time `json:"changed_at,omitempty"`
	ChangedBy string     `json:"changed_by,omitempty"`
}

func changed(version int64, at time.Time, by string) Changed {
	if version == 0 {
		return Changed{}
	}
	return Changed{version, &at, by}
}

// defaultMaxTTL is what a MaxTTL of 0 is in the database.
const defaultMaxTTL = 24 * time.Hour

// OfPolicy returns the form of p with its last change.
func OfPolicy(p limiter.StoredPolicy) Policy {
	var t Policy
	data, err := json.Marshal(p.Policy)
	if err == nil {
		err = json.Unmarshal(data, &t)
	}
	if err != nil {
		panic(err) // both are written by this program
	}
	t.Askers, t.Note, t.Changed = p.Askers, p.Note, changed(p.Version, p.ChangedAt, p.ChangedBy)
	if p.MaxTTL != 0 && p.MaxTTL != defaultMaxTTL {
		t.MaxTTL = p.MaxTTL.String()
	}
	return t
}

// OfOverride returns the form of o with its last change.
func OfOverride(o limiter.Override) Override {
	t := Override{
		Policy: o.Policy, Key: o.Key, Limit: o.Limit, Burst: o.Burst, Unlimited: o.Unlimited, Shadow: o.Shadow, Note: o.Note,
		Changed: changed(o.Version, o.ChangedAt, o.ChangedBy),
	}
	if !o.Until.IsZero() {
		t.Until = o.Until.UTC().Format(time.RFC3339Nano)
	}
	return t
}

// document is a file as it is written.
type document struct {
	Policies  []Policy   `json:"policies" yaml:"policies"`
	Overrides []Override `json:"overrides,omitempty" yaml:"overrides,omitempty"`
}

// JSON returns the value that encoding/json writes as the file, with last changes.
func (f File) JSON() any { return f.document() }

// Portable is JSON without last changes, so that Read reads it.
func (f File) Portable() any {
	d := f.document()
	for i := range d.Policies {
		d.Policies[i].Changed = Changed{}
	}
	for i := range d.Overrides {
		d.Overrides[i].Changed = Changed{}
	}
	return d
}

func (f File) document() document {
	d := document{Policies: []Policy{}}
	for _, p := range f.Policies {
		d.Policies = append(d.Policies, OfPolicy(p))
	}
	for _, o := range f.Overrides {
		d.Overrides = append(d.Overrides, OfOverride(o))
	}
	return d
}

// Write writes f as YAML.
func (f File) Write(w io.Writer) error {
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(f.document()); err != nil {
		return err
	}
	return e.Close()
}

// ParseUntil reads the end of an override: a date, which is its beginning in UTC, or a
// time in RFC 3339.
func ParseUntil(text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339Nano} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("must be a date such as 2027-01-31, which begins at 00:00 UTC, or a time such as 2027-01-31T18:00:00Z")
}
