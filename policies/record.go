package policies

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/fields"
)

// policyRow is a row of pglimit_policy: durations are seconds, and NULL is 0. The history has
// it as JSON. Its fields are named as those of the statements in package db, and as those of a
// Stored, with their units.
type policyRow struct {
	Name         string    `json:"name"`
	Algorithm    string    `json:"algorithm"`
	LimitUnits   float64   `json:"limit_units"`
	PeriodS      float64   `json:"period_s"`
	Burst        float64   `json:"burst"`
	TickS        float64   `json:"tick_s"`
	BlockForS    float64   `json:"block_for_s"`
	BlockGrowth  float64   `json:"block_growth"`
	BlockMaxS    float64   `json:"block_max_s"`
	Lease        float64   `json:"lease"`
	MaxKeys      int64     `json:"max_keys"`
	RestLimit    float64   `json:"rest_limit"`
	Overdraft    float64   `json:"overdraft"`
	MaxTTLS      float64   `json:"max_ttl_s"`
	Aligned      bool      `json:"aligned"`
	Shadow       bool      `json:"shadow"`
	Askers       bool      `json:"askers"`
	CountDenials bool      `json:"count_denials"`
	Ledger       bool      `json:"ledger"`
	Marks        string    `json:"marks"`
	UsageBy      string    `json:"usage_by"`
	UsageForS    float64   `json:"usage_for_s"`
	Calendar     string    `json:"calendar"`
	TimeZone     string    `json:"time_zone"`
	Anchor       string    `json:"anchor"`
	Durability   string    `json:"durability"`
	OnError      string    `json:"on_error"`
	LocalShare   float64   `json:"local_share"`
	Note         string    `json:"note"`
	Version      int64     `json:"version"`
	ChangedBy    string    `json:"changed_by"`
	ChangedAt    time.Time `json:"changed_at"`
}

// overrideRow is a row of pglimit_override as the history has it.
type overrideRow struct {
	plainOverride
	LimitUnits *float64   `json:"limit_units"`
	Until      *time.Time `json:"until"`
}

// plainOverride has no UnmarshalJSON.
type plainOverride Override

// rowForm is a Stored as a row.
var rowForm = sync.OnceValue(func() fields.Form {
	return fields.Row(reflect.TypeFor[Stored](), reflect.TypeFor[policyRow](), bad)
})

// row returns p as it is stored.
func (p Stored) row() (r policyRow) {
	p.MaxTTL = cmp.Or(p.MaxTTL, defaultMaxTTL)
	rowForm().To(&r, &p)
	return r
}

// stored returns a row as a policy, and an error if that is not valid.
func (r *policyRow) stored() (p Stored, err error) {
	if err = rowForm().From(&p, r); err == nil {
		err = p.Validate()
	}
	return p, err
}

// past returns a row of the history, valid or not; of nil, nil.
func (r *policyRow) past() *Stored {
	if r == nil {
		return nil
	}
	p, _ := r.stored()
	return &p
}

// past returns a row of the history; of nil, nil.
func (r *overrideRow) past() *Override {
	if r == nil {
		return nil
	}
	o := Override(r.plainOverride)
	if o.Limit = r.LimitUnits; r.Until != nil {
		o.Until = r.Until.UTC()
	}
	return &o
}

// loaded is all policies, by name, at one moment.
type loaded struct {
	version  int64
	mark     mark
	policies []policyRow
	more     bool // there are more than MaxOverrides overrides
}

// mark is the newest change that a process has; the zero value is none. The times of the
// history differ from those of another one after a restore.
type mark struct{ id, changedAtUs int64 }

// missingError is the error of a deletion of a row that does not exist.
type missingError struct {
	policy, key string // key is empty for a policy
	match       Match
}

// Error names the row.
func (e *missingError) Error() string {
	if e.key == "" {
		return fmt.Sprintf("no policy %q", e.policy)
	}
	return fmt.Sprintf("no override of policy %q for %s %q", e.policy, cmp.Or(e.match, "key"), e.key)
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

func policyOf(r *db.PoliciesRow) policyRow {
	p := policyRow{ChangedAt: timeOf(r.ChangedAtUs)}
	copyFields(&p, r)
	return p
}

func overrideOf(r *db.OverridesRow) Override {
	o := Override{
		Policy: r.Policy, Key: r.Key, Match: Match(r.Match), Anchor: r.Anchor, Unlimited: r.Unlimited, Blocked: r.Blocked, Note: r.Note,
		Version: r.Version, ChangedBy: r.ChangedBy, ChangedAt: timeOf(r.ChangedAtUs),
	}
	if r.LimitUnits != 0 {
		o.Limit = &r.LimitUnits
	}
	if r.Factor != 0 {
		o.Factor = &r.Factor
	}
	if r.Burst != 0 {
		o.Burst = &r.Burst
	}
	if r.Shadow >= 0 {
		o.Shadow = new(r.Shadow == 1)
	}
	if r.UntilUs != 0 {
		o.Until = timeOf(r.UntilUs)
	}
	return o
}

func changeOf(r *db.PolicyHistoryRow) (c Change, err error) {
	c = Change{Version: r.Version, ChangedAt: timeOf(r.ChangedAtUs), ChangedBy: r.ChangedBy, Note: r.Note, Name: r.Name, Key: r.Key}
	if r.Key == "" {
		c.Before, c.After, err = decodePair((*policyRow).past, r)
	} else {
		c.OverrideBefore, c.OverrideAfter, err = decodePair((*overrideRow).past, r)
	}
	if err != nil {
		return c, fmt.Errorf("pglimit: the history of policy %q at version %d: %w", r.Name, r.Version, err)
	}
	return c, nil
}

// decodePair returns what a row was before and after a change.
func decodePair[R, T any](past func(*R) *T, r *db.PolicyHistoryRow) (before, after *T, err error) {
	b, err := decode[R](r.Before)
	if err != nil {
		return nil, nil, err
	}
	a, err := decode[R](r.After)
	return past(b), past(a), err
}

// decode returns a row of the history, or nil for an empty text.
func decode[R any](text string) (*R, error) {
	if text == "" {
		return nil, nil
	}
	row := new(R)
	return row, json.Unmarshal([]byte(text), row)
}
