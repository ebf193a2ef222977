package policies

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/limiter"
)

// FuzzStoredText: whatever is read is written so that it is read alike, and a policy
// that cannot be read leaves the old one.
func FuzzStoredText(f *testing.F) {
	for _, text := range []string{
		`{"name":"a","algorithm":"token_bucket","limit":5,"period":"1m","note":"why","askers":true,"max_ttl":"30d","version":7,"changed_at":"2027-01-31T00:00:00Z","changed_by":"app"}`,
		`{"name":"a","max_ttl":"24h"}`, `{"max_ttl":"-1ns"}`, `{"max_ttl":"d"}`, `{"changed_at":"0001-01-01T00:00:00Z"}`, `{"changed_at":"9999-12-31T23:59:59.999999999+14:00"}`,
		`{"name":"a","algorithm":"token_bucket","limit":5,"period":"1d12h"}`,
		`{"name":"a","algorithm":"fixed_window","limit":1e3,"calendar":"month","time_zone":"Europe/Vienna","on_error":"fail_open"}`,
		`{"name":"a","algorithm":"leaky_bucket","limit":0.5,"burst":3,"period":"1h","tick":"1s","block_for":"1m","durability":"relaxed"}`,
		`{"name":"\u0000","limit":1e999}`, `{"limit":-0}`, `{"period":"-9223372036854775808ns"}`, `{"period":""}`, `{"Name":"a","NAME":"b"}`,
		`[]`, `{"name":"a"}{"name":"b"}`, `{"durability":""}`, "\xff", `{"name":"` + "\xff" + `"}`,
		`{"name":"a","period":"soon"}`, `{"name":"a","durability":"often"}`, `{"name":"a","on_error":"fail"}`, `{"name":"a","more":1}`, `{"name":"a","on_error":"fail_closed","shadow":true}`,
		`{"version":-1}`, `{"version":9223372036854775808}`, `{"note":"\ud800"}`, `{"policy":{}}`, `{"Policy":{"name":"a"}}`, `{"policyText":{}}`, `{"NOTE":"a","note":"b"}`, `null`, `{}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		before := Stored{Note: "before"}
		p := before
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			if p != before {
				t.Errorf("%q: refused, and changed the policy to %+v", text, p)
			}
			return
		}
		written, err := json.Marshal(p)
		if err != nil {
			if year := p.ChangedAt.Year(); year < 0 || year > 9999 {
				return // time.Time has no such JSON
			}
			t.Fatalf("%q: %v", text, err)
		}
		var back Stored
		err = json.Unmarshal(written, &back)
		if form, _ := p.MarshalYAML(); err == nil {
			var again Stored
			err = again.UnmarshalYAML(func(into any) error {
				to, from := reflect.ValueOf(into).Elem(), reflect.ValueOf(form)
				for i := range to.NumField() { // a whole number is an integer
					to.Field(i).Set(from.Field(i).Convert(to.Field(i).Type()))
				}
				return nil
			})
			if again.ChangedAt = back.ChangedAt; again != back {
				t.Errorf("%q is %+v, but by YAML it is %+v", text, back, again)
			}
		}
		same := back.ChangedAt.Equal(p.ChangedAt)
		back.ChangedAt = p.ChangedAt // equal times may have different locations
		if p.MaxTTL == defaultMaxTTL && back.MaxTTL == 0 {
			back.MaxTTL = defaultMaxTTL // its default is not written
		}
		if err != nil || !same || back != p {
			t.Errorf("%q is %+v, but written as %s it is %+v, %v", text, p, written, back, err)
		}
		if _, err := limiter.NewMemory(nil).Allow(t.Context(), p.Policy, "k"); (err == nil) != (p.Policy.Validate() == nil) {
			t.Errorf("%q: Validate returns %v, Allow %v", text, p.Policy.Validate(), err)
		}
	})
}

// FuzzPolicyRow: a row of pglimit_policy is refused as ErrInvalid, or it is a valid policy
// that is stored as the same row.
func FuzzPolicyRow(f *testing.F) {
	f.Add("a", "token_bucket", 5.0, 60.0, 10.0, 0.0, 0.0, 86400.0, uint8(0), "", "", "durable", "fail_closed", "note", 0.0)
	f.Add("a", "fixed_window", 5.0, 0.0, 0.0, 0.0, 0.0, 1.0, uint8(6), "quarter", "Europe/Vienna", "relaxed", "fail_local", "", 0.25)
	f.Add("a", "fixed_window", 5.0, 0.0, 0.0, 0.0, 0.0, 1.0, uint8(0), "year", "Europe/Vienna", "durable", "fail_closed", "2024-01-31T09:30", 0.0)
	f.Add("a", "fixed_window", 5.0, 3600.0, 0.0, 0.0, 1e-6, 1.5, uint8(1), "", "", "durable", "fail_closed", "", 0.0)
	f.Add("a", "gcra", 5.0, 0.001001, 0.0, 0.0, 0.001009, 86400.0, uint8(0), "", "", "durable", "fail_closed", "", 0.0) // not whole as floats
	f.Add("a", "leaky_bucket", 0.5, 1e-6, 3.0, 1e-6, 3155760000.0, 0.999999, uint8(0), "", "", "", "", "\x00", 0.0)
	f.Add("A", "log", math.NaN(), math.Inf(1), -1.0, 1e300, math.Copysign(0, -1), math.NaN(), uint8(1), "year", "Local", "Durable", "open", "\xff", math.NaN())
	f.Add("a", "gcra", 9007199254740992.0, 3155760000.0, 1e-9, 0.0, 4e-7, 3155760000.1, uint8(0), "", "UTC", "durable", "fail_closed", strings.Repeat("é", 1001), 0.0)
	f.Fuzz(func(t *testing.T, name, algorithm string, limit, period, burst, tick, blockFor, ttl float64, flags uint8, calendar, zone, durability, onError, note string, share float64) {
		row := policyRow{
			Name: name, Algorithm: algorithm, LimitUnits: limit, PeriodS: period, Burst: burst, TickS: tick, BlockForS: blockFor, MaxTTLS: ttl,
			Aligned: flags&1 > 0, Shadow: flags&2 > 0, Askers: flags&4 > 0, CountDenials: flags&8 > 0, Calendar: calendar, TimeZone: zone, Anchor: note, Durability: durability, OnError: onError, LocalShare: share, Note: note,
		}
		p, err := row.stored()
		if err != nil {
			if !errors.Is(err, limiter.ErrInvalid) {
				t.Errorf("%+v: %v, which is no ErrInvalid", row, err)
			}
			return
		}
		if err := p.Policy.Validate(); err != nil {
			t.Errorf("%+v is read as %+v, which is not valid: %v", row, p, err)
		}
		if off := math.Abs(p.Period.Seconds() - period); off > 0.6e-6+1e-15*period {
			t.Errorf("%v s are read as %v", period, p.Period)
		}
		if !utf8.ValidString(p.Note) {
			t.Errorf("the note %q was read", p.Note)
		}
		stored := p.row()
		back, err := stored.stored()
		if p.MaxTTL == 0 {
			p.MaxTTL = defaultMaxTTL
		}
		if err != nil || back != p {
			t.Errorf("%+v is %+v, but stored as %+v it is %+v, %v", row, p, stored, back, err)
		}
	})
}

// FuzzOverrideRow: an override that may be stored is read as it was, its end to the
// microsecond.
func FuzzOverrideRow(f *testing.F) {
	f.Add("login", "alice", 100.0, 100.0, true, int64(1_800_000_000_123_456_789), "why", uint8(0b0011))
	f.Add("login", "alice", 0.0, 0.0, true, int64(0), "", uint8(0b1000))
	f.Add("login", "\x00", math.NaN(), math.Inf(1), false, int64(-1), "\xff", uint8(0b0111))
	f.Add("login", "k", 5.0, 0.0, false, int64(0), "", uint8(0b0111))
	f.Add("login", "k", 5.0, 0.0, false, int64(0), "2024-01-31T09:30", uint8(0b10000))
	f.Fuzz(func(t *testing.T, policy, key string, limit, burst float64, shadow bool, until int64, note string, given uint8) {
		o := Override{Policy: policy, Key: key, Note: note, Unlimited: given&8 > 0}
		if given&16 > 0 {
			o.Anchor = note
		}
		if given&1 > 0 {
			o.Limit = &limit
		}
		if given&2 > 0 {
			o.Burst = &burst
		}
		if given&4 > 0 {
			o.Shadow = &shadow
		}
		if until != 0 {
			o.Until = time.Unix(0, until).UTC()
		}
		if err := o.valid(); err != nil {
			if !errors.Is(err, limiter.ErrInvalid) {
				t.Errorf("%+v: %v, which is no ErrInvalid", o, err)
			}
			return
		}
		row := columns([]Override{o.normal(nil)})
		back := overrideOf(&db.OverridesRow{
			Policy: row.Policies[0], Key: row.Keys[0], Note: row.Notes[0], Match: row.Matches[0], Anchor: row.Anchors[0], Unlimited: row.Unlimited[0], Blocked: row.Blocked[0],
			LimitUnits: row.Limits[0], Factor: row.Factors[0], Burst: row.Bursts[0], Shadow: row.Shadows[0], UntilUs: row.UntilsUs[0],
		})
		if o.Burst != nil && *o.Burst == 0 {
			o.Burst = o.Limit // for which 0 stands
		}
		equal := func(a, b *float64) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }
		if back.Policy != o.Policy || back.Key != o.Key || back.Note != o.Note || back.Anchor != o.Anchor || back.Unlimited != o.Unlimited || !equal(back.Limit, o.Limit) || !equal(back.Burst, o.Burst) ||
			(back.Shadow == nil) != (o.Shadow == nil) || o.Shadow != nil && *back.Shadow != *o.Shadow || !back.Until.Equal(o.Until.Truncate(time.Microsecond)) {
			t.Errorf("%+v is stored as %+v, read as %+v", o, row, back)
		}
	})
}
