package policyfile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

const fine = "name: a, algorithm: gcra, limit: 1, period: 1s"

// accepted and refused are files at the edges of what is valid.
var (
	accepted = []string{
		limits, "- {" + fine + "}", "- {" + fine + ", burst: null, note: ~, shadow: null}", "- {" + fine + ", burst: &n 5, note: *n}",
		"- {" + fine + ", note: " + strings.Repeat("é", maxNote) + "}", "overrides: &o []\npolicies: *o",
		"overrides: [{policy: p, key: a, limit: 0x10}, {policy: p, key: b, burst: 1e3}, {policy: q, key: a, shadow: false}]",
	}
	refused = []string{
		"", "# only this", "- 5", "more: 1", "- {" + fine + ", more: 1}", "- {" + fine + ", name: a}", "policies: []\npolicies: []",
		"- {" + fine + ", note: " + strings.Repeat("é", maxNote+1) + "}", "- {" + fine + ", burst: .nan}", "- {" + fine + ", burst: .inf}", "- {" + fine + ", burst: '5'}",
		"- {" + fine + ", burst: -1}", "- {" + fine + ", shadow: yes}", "- {" + fine + "}\n- {" + fine + "}", "- {" + fine + ", max_ttl: 1}", "- {" + fine + ", note: [a]}",
		"overrides: [{policy: p, limit: 1}]", "overrides: [{key: a, limit: 1}]", "overrides: [{policy: p, key: a}]", "overrides: [{policy: p, key: a, unlimited: true, limit: 1}]",
		"overrides: [{policy: p, key: a, limit: 1}, {policy: p, key: a, limit: 2}]", "overrides: [{policy: p, key: a, limit: .nan}]", "overrides: [{policy: p, key: a, burst: -.inf}]", "overrides: [{policy: p, key: a, limit: 1, until: soon}]",
	}
)

// FuzzFormats: a file is read alike as YAML and as JSON. Each line of an error begins with
// the file's name and says where.
func FuzzFormats(f *testing.F) {
	for _, text := range accepted {
		if _, err := Read("limits.yaml", strings.NewReader(text)); err != nil {
			f.Errorf("%q: %v", text, err)
		}
		f.Add(text)
	}
	for _, text := range refused {
		if file, err := Read("limits.yaml", strings.NewReader(text)); err == nil {
			f.Errorf("%q is read as %+v", text, file)
		}
		f.Add(text)
	}
	f.Add("- {name: a, algorithm: gcra, limit: 1, period: 1s, max_ttl: 30d, note: 'é'}")
	f.Add("policies: [{name: a, limit: .inf}, {name: 1e3, algorithm: [x]}, 5, null]\noverrides: {}\nmore: 1")
	f.Add("overrides:\n- {policy: login, key: 007, limit: 0x10, until: 2027-01-31}\n- {policy: login, key: '7', shadow: yes}")
	f.Add("policies: []\noverrides:\n- {policy: p, key: \"\\u2028\\t\", unlimited: true, note: |\n  a\n\n  b\n }")
	f.Add("? [a]\n: b")
	f.Add("a: !!binary x")
	f.Fuzz(func(t *testing.T, text string) {
		const name = "limits.yaml"
		file, err := Read(name, strings.NewReader(text))
		if err != nil {
			for _, l := range strings.Split(err.Error(), "\n"+name) {
				l = strings.TrimPrefix(l, name)
				if !strings.HasPrefix(l, ":") || len(l) < 3 {
					t.Errorf("%q: the error %q does not begin with the file's name", text, l)
				}
			}
			return
		}
		seen := map[[2]string]bool{}
		for _, p := range file.Policies {
			if id := [2]string{p.Name}; seen[id] || utf8.RuneCountInString(p.Note) > 1000 || p.Validate() != nil {
				t.Errorf("%q: the policy %+v was read", text, p)
			} else {
				seen[id] = true
			}
		}
		for _, o := range file.Overrides {
			id := [2]string{o.Policy, o.Key}
			if err := Check(o); err != nil || o.Policy == "" || o.Key == "" || seen[id] || utf8.RuneCountInString(o.Note) > 1000 {
				t.Errorf("%q: the override %+v was read: %v", text, o, err)
			}
			seen[id] = true
		}
		written, err := json.Marshal(file.Portable())
		if err != nil {
			if year := years(file); year < 0 || year > 9999 {
				return
			}
			t.Fatalf("%q: %v", text, err)
		}
		if !utf8.ValidString(text) {
			t.Errorf("%q is read, though it is not UTF-8", text)
		}
		back, err := Read(name, strings.NewReader(string(written)))
		if err != nil || len(Compare(file, back, true).Changes) > 0 {
			t.Errorf("%q was written as %s, read as %+v: %v", text, written, back, err)
		}
	})
}

// years returns the last year of an override's end.
func years(file File) (last int) {
	for _, o := range file.Overrides {
		last = max(last, o.Until.Year())
	}
	return last
}

// FuzzParseUntil: a time is read as written, to the nanosecond, and a date as its beginning
// in UTC.
func FuzzParseUntil(f *testing.F) {
	for _, text := range []string{"", "2027-01-31", "2027-02-29", "2028-02-29", "2027-01-31T18:00:00Z", "2027-01-31T18:00:00+14:00", "2027-01-31 18:00:00", "2027-1-31", "0000-01-01", "9999-12-31T23:59:59.999999999-23:59", "tomorrow", "1d", "2027-01-31T24:00:00Z"} {
		f.Add(text, int64(len(text))*1e17)
	}
	f.Fuzz(func(t *testing.T, text string, ns int64) {
		at := time.Unix(0, ns).UTC()
		for _, written := range []string{at.Format(time.RFC3339Nano), at.In(time.FixedZone("", 5400)).Format(time.RFC3339Nano)} {
			if got, err := ParseUntil(written); err != nil || !got.Equal(at) {
				t.Errorf("%s is read as %v, %v", written, got, err)
			}
		}
		if got, err := ParseUntil(at.Format(time.DateOnly)); err != nil || !got.Equal(at.Truncate(24*time.Hour)) {
			t.Errorf("%s is read as %v, %v", at.Format(time.DateOnly), got, err)
		}
		got, err := ParseUntil(text)
		if err != nil {
			if !got.IsZero() || !strings.Contains(err.Error(), "such as 2027-01-31") {
				t.Errorf("%q: %v, %v", text, got, err)
			}
			return
		}
		if day := len("2027-01-31"); len(text) < day || got.Format(time.DateOnly) != text[:day] || len(text) == day && !got.Equal(got.Truncate(24*time.Hour)) {
			t.Errorf("%q is read as %v", text, got)
		}
	})
}
