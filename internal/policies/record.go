// Package policies reads and writes policies and overrides: in the database, or in memory
// for programs without one. Package limiter knows what makes them valid.
package policies

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/pglimit/pglimit/db"
)

// What package limiter knows of the rows, and sets.
var (
	// ValidPolicy and ValidOverride return why programs refuse a row, or nil.
	ValidPolicy   func(*Policy) error
	ValidOverride func(*Override) error
	// Deciding returns the index of the override that decides about a key at a time, or else
	// changes its limit; -1 for none. all are of one policy, and have the key or a Match. The
	// key is as its caller has it: a hash matches nothing.
	Deciding func(all []Override, key string, at time.Time) int
)

// MaxOverrides is the largest number of overrides, MaxRules of those of one policy that have a
// match, and MaxPatterns of its patterns, since a decision tries each of these. The trigger pglimit_override_bound has them too.
const (
	MaxOverrides = 100_000
	MaxRules     = 1_000
	MaxPatterns  = 100
)

// Policy is a row of pglimit_policy: durations are seconds, and NULL is 0. The history has
// it as JSON. Its fields are named as those of the statements in package db, and as those of
// a policy in package limiter, with their units.
type Policy struct {
	Name         string    `json:"name"`
	Algorithm    string    `json:"algorithm"`
	LimitUnits   float64   `json:"limit_units"`
	PeriodS      float64   `json:"period_s"`
	Burst        float64   `json:"burst"`
	TickS        float64   `json:"tick_s"`
	BlockForS    float64   `json:"block_for_s"`
	Lease        float64   `json:"lease"`
	MaxTTLS      float64   `json:"max_ttl_s"`
	Aligned      bool      `json:"aligned"`
	Shadow       bool      `json:"shadow"`
	Askers       bool      `json:"askers"`
	CountDenials bool      `json:"count_denials"`
	Calendar     string    `json:"calendar"`
	TimeZone     string    `json:"time_zone"`
	Durability   string    `json:"durability"`
	OnError      string    `json:"on_error"`
	LocalShare   float64   `json:"local_share"`
	Note         string    `json:"note"`
	Version      int64     `json:"version"`
	ChangedBy    string    `json:"changed_by"`
	ChangedAt    time.Time `json:"changed_at"`
}

// Override is a row of pglimit_override. Key is as stored.
type Override struct {
	Policy     string     `json:"policy"`
	Key        string     `json:"key"`
	Match      string     `json:"match"` // empty: one key
	LimitUnits *float64   `json:"limit_units"`
	Factor     *float64   `json:"factor"`
	Burst      *float64   `json:"burst"`
	Unlimited  bool       `json:"unlimited"`
	Blocked    bool       `json:"blocked"`
	Shadow     *bool      `json:"shadow"`
	Until      *time.Time `json:"until"`
	Note       string     `json:"note"`
	Version    int64      `json:"version"`
	ChangedBy  string     `json:"changed_by"`
	ChangedAt  time.Time  `json:"changed_at"`
}

// Rows are all policies, by name, at one moment.
type Rows struct {
	Version  int64
	Mark     Mark
	Policies []Policy
	More     bool // there are more than MaxOverrides
}

// Mark is the newest change that a process has; the zero value is none. The times of the
// history differ from those of another one after a restore.
type Mark struct{ id, changedAtUs int64 }

// Change is a row of pglimit_policy_history.
type Change struct {
	Version   int64
	ChangedAt time.Time
	ChangedBy string
	Note      string
	Name      string
	Key       string // empty: the change of a policy
	// Of these two pairs one is nil; in the other, nil means that there was no row.
	Before, After                 *Policy
	OverrideBefore, OverrideAfter *Override
}

// Edit is a set of changes to make together. No row is in it twice.
type Edit struct {
	IfVersion       int64 // 0: any
	Note            string
	Set             []Policy
	Delete          []string
	SetOverrides    []Override
	DeleteOverrides []Override // Policy, Key and Match
}

// ErrChanged: the version is not that of Edit.IfVersion.
var ErrChanged = errors.New("the version is another")

// MissingError is the error of a deletion of a row that does not exist.
type MissingError struct {
	Policy, Key, Match string // Key is empty for a policy
}

// Error names the row.
func (e *MissingError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("no policy %q", e.Policy)
	}
	return fmt.Sprintf("no override of policy %q for %s %q", e.Policy, cmp.Or(e.Match, "key"), e.Key)
}

func timeOf(us int64) time.Time { return time.UnixMicro(us).UTC() }

// copyFields sets the fields that two structs have in common.
func copyFields(to, from any) {
	t, f := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for i := range t.NumField() {
		if same := f.FieldByName(t.Type().Field(i).Name); same.IsValid() {
			t.Field(i).Set(same)
		}
	}
}

func policyOf(r *db.PoliciesRow) Policy {
	p := Policy{ChangedAt: timeOf(r.ChangedAtUs)}
	copyFields(&p, r)
	return p
}

func overrideOf(r *db.OverridesRow) Override {
	o := Override{
		Policy: r.Policy, Key: r.Key, Match: r.Match, Unlimited: r.Unlimited, Blocked: r.Blocked, Note: r.Note,
		Version: r.Version, ChangedBy: r.ChangedBy, ChangedAt: timeOf(r.ChangedAtUs),
	}
	if r.LimitUnits != 0 {
		o.LimitUnits = &r.LimitUnits
	}
	if r.Factor != 0 {
		o.Factor = &r.Factor
	}
	if r.Burst != 0 {
		o.Burst = &r.Burst
	}
	if r.Shadow >= 0 {
		shadow := r.Shadow == 1
		o.Shadow = &shadow
	}
	if r.UntilUs != 0 {
		until := timeOf(r.UntilUs)
		o.Until = &until
	}
	return o
}

func changeOf(r *db.PolicyHistoryRow) (c Change, err error) {
	c = Change{Version: r.Version, ChangedAt: timeOf(r.ChangedAtUs), ChangedBy: r.ChangedBy, Note: r.Note, Name: r.Name, Key: r.Key}
	if r.Key == "" {
		c.Before, err = decode[Policy](r.Before)
		if err == nil {
			c.After, err = decode[Policy](r.After)
		}
	} else {
		c.OverrideBefore, err = decode[Override](r.Before)
		if err == nil {
			c.OverrideAfter, err = decode[Override](r.After)
		}
	}
	if err != nil {
		return c, fmt.Errorf("pglimit: the history of policy %q at version %d: %w", r.Name, r.Version, err)
	}
	return c, nil
}

// decode returns a row of the history, or nil for an empty text.
func decode[T any](text string) (*T, error) {
	if text == "" {
		return nil, nil
	}
	row := new(T)
	return row, json.Unmarshal([]byte(text), row)
}
