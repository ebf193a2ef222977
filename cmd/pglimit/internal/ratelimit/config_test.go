package ratelimit

import (
	"fmt"
	"strings"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pglimit/pglimit/internal/must"
)

// mustConfig returns the configuration of a file.
func mustConfig(t testing.TB, text string) *Config {
	t.Helper()
	d := must.OK(Parse("test.yaml", []byte(text)))(t)
	c := must.OK(NewConfig(false, d))(t)
	return c
}

// descriptorOf returns a descriptor of keys and values, one after the other.
func descriptorOf(pairs ...string) *rlcommon.RateLimitDescriptor {
	d := &rlcommon.RateLimitDescriptor{}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &rlcommon.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return d
}

// TestFaultsNameTheirPlace checks that each fault of a file names it, the line and the key.
func TestFaultsNameTheirPlace(t *testing.T) {
	t.Parallel()
	const head = "domain: d\ndescriptors:\n"
	floored := func(floors, more string) string {
		return head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: 1, pglimit: {\n    floors: {" + floors + "}}}\n" + more
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty file":             {"", "f.yaml: is empty"},
		"not YAML":               {"domain: [", "f.yaml: line 1"},
		"no domain":              {"descriptors: []\n", "f.yaml: domain: is missing"},
		"two documents":          {"domain: d\n---\ndomain: e\n", "f.yaml:2: another document"},
		"unknown key at the top": {"domain: d\ndomains: e\n", `f.yaml:2: the file has no field "domains": use domain, descriptors`},
		"unknown key":            {head + "- key: a\n  rate_limits: {}\n", `f.yaml:4: descriptors: has no field "rate_limits"`},
		"key of another place":   {head + "- key: a\n  rate_limit:\n    unit: day\n    shadow_mode: true\n", `f.yaml:6: rate_limit: has no field "shadow_mode"`},
		"key twice":              {head + "- key: a\n  key: b\n", "f.yaml:4: descriptors: has key twice"},
		"empty key":              {head + "- value: a\n", "f.yaml:3: key: is missing or empty"},
		"not a list":             {"domain: d\ndescriptors: {}\n", "f.yaml:2: descriptors: must be a list"},
		"not a mapping":          {head + "- a\n", "f.yaml:3: descriptors: must be a mapping"},
		"no unit":                {head + "- key: a\n  rate_limit: {requests_per_unit: 1}\n", `f.yaml:4: unit: is "": must be second, minute, hour, day, week, month, year`},
		"bad unit":               {head + "- key: a\n  rate_limit: {unit: decade}\n", `f.yaml:4: unit: is "decade"`},
		"unit UNKNOWN":           {head + "- key: a\n  rate_limit: {unit: unknown}\n", `f.yaml:4: unit: is "unknown"`},
		"unlimited with a unit":  {head + "- key: a\n  rate_limit: {unlimited: true, unit: day}\n", "f.yaml:4: unit: has no meaning with unlimited"},
		"negative number":        {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: -1}\n", `f.yaml:4: requests_per_unit: is "-1": must be a whole number`},
		"a part of a request":    {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: 0.5}\n", `f.yaml:4: requests_per_unit: is "0.5": must be a whole number`},
		"a negative part":        {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: -0.5}\n", `f.yaml:4: requests_per_unit: is "-0.5"`},
		"a number and a part":    {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: 2.9}\n", `f.yaml:4: requests_per_unit: is "2.9"`},
		"an octal number":        {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: 0100}\n", `f.yaml:4: requests_per_unit: is "0100"`},
		"a text for a number":    {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: '5'}\n", `f.yaml:4: requests_per_unit: is "5": must be a number`},
		"own: an octal number":   {head + "- key: a\n  rate_limit:\n    unit: day\n    pglimit: {algorithm: gcra, burst: 010}\n", `f.yaml:6: burst: is "010": must be a number`},
		"own: no duration":       {head + "- key: a\n  rate_limit:\n    unit: day\n    pglimit: {algorithm: gcra, block_for: 60}\n", `f.yaml:6: pglimit: `},
		"an octal in metadata":   {head + "- key: a\n  metadata: {n: 0100}\n", `f.yaml:4: metadata: is "0100"`},
		"no number in metadata":  {head + "- key: a\n  metadata: {n: .nan}\n", `f.yaml:4: metadata: is ".nan"`},
		"number too large":       {head + "- key: a\n  rate_limit: {unit: day, requests_per_unit: 4294967296}\n", "f.yaml:4: requests_per_unit: "},
		"text for a switch":      {head + "- key: a\n  shadow_mode: maybe\n", `f.yaml:4: shadow_mode: is "maybe": must be true or false`},
		"replaces itself":        {head + "- key: a\n  rate_limit: {unit: day, name: n, replaces: [{name: n}]}\n", "f.yaml:4: replaces: has the limit's own name"},
		"replaces nothing":       {head + "- key: a\n  rate_limit: {unit: day, replaces: [{name: ''}]}\n", "f.yaml:4: replaces: has an entry without a name"},
		"share without wildcard": {head + "- key: a\n  value: b\n  share_threshold: true\n", "f.yaml:3: share_threshold: needs a *"},
		"duplicate":              {head + "- key: a\n  value: b\n- key: a_b\n", `f.yaml:5: key: "d.a_b" is that of f.yaml:3, too`},
		"duplicate below":        {head + "- key: a\n  descriptors:\n  - key: b\n  - key: b\n", `f.yaml:6: key: "d.a.b" is that of f.yaml:5, too`},
		"metadata":               {head + "- key: a\n  metadata: 1\n", "f.yaml:4: metadata: must be a mapping"},
		"metadata with a date":   {head + "- key: a\n  metadata: {since: 2026-01-01}\n", `f.yaml:4: metadata: is "2026-01-01"`},
		"own: unknown key":       {head + "- key: a\n  rate_limit:\n    unit: day\n    pglimit: {name: x}\n", `f.yaml:6: pglimit: has no field "name": use counting, algorithm, limit`},
		"own: bad algorithm":     {head + "- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    pglimit:\n      algorithm: leak\n", "f.yaml:8: pglimit.algorithm: is leak: must be one of"},
		"own: bad duration":      {head + "- key: a\n  rate_limit:\n    pglimit: {period: soon}\n", "f.yaml:5: pglimit: "},
		"own: a queue":           {head + "- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    pglimit: {algorithm: leaky_bucket_queue}\n", "f.yaml:5: pglimit.algorithm: leaky_bucket_queue makes callers wait"},
		"own: counting":          {head + "- key: a\n  rate_limit:\n    unit: day\n    pglimit: {counting: twice}\n", `f.yaml:5: pglimit.counting: is "twice"`},
		"own: count a bucket":    {head + "- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    pglimit: {counting: each, algorithm: gcra}\n", "f.yaml:5: pglimit.counting: each needs the algorithm fixed_window"},
		"own: no period":         {head + "- key: a\n  rate_limit:\n    pglimit: {algorithm: gcra}\n", `f.yaml:5: unit: is ""`},
		"own: aligned bucket":    {head + "- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    pglimit:\n      algorithm: gcra\n      aligned: true\n", "f.yaml:9: pglimit.aligned: is true"},
		"own: unlimited":         {head + "- key: a\n  rate_limit:\n    unlimited: true\n    pglimit: {algorithm: gcra}\n", "f.yaml:5: pglimit: has no meaning with unlimited"},
		"floors: no key":         {floored("values: {batch: 0.2}", ""), "f.yaml:5: pglimit.floors.key: is missing or empty"},
		"floors: no values":      {floored("key: priority", ""), "f.yaml:5: pglimit.floors.values: is missing or empty"},
		"floors: no mapping":     {floored("key: priority, values: [batch]", ""), "f.yaml:5: values: must be a mapping of values to floors"},
		"floors: its own key":    {floored("key: a, values: {batch: 0.2}", ""), `f.yaml:5: pglimit.floors.key: "a" is a descriptor of this limit or below it, too`},
		"floors: a key below":    {floored("key: b, values: {batch: 0.2}", "  descriptors: [{key: b, value: c}]\n"), `f.yaml:5: pglimit.floors.key: "b" is a descriptor of this limit`},
		"floors: all of it":      {floored("key: priority, values: {batch: 1}", ""), `f.yaml:5: values: has 1 for "batch": must be from 0 to 0.999999`},
		"floors: next to all":    {floored("key: priority, values: {batch: 0.9999996}", ""), `f.yaml:5: values: has 0.9999996 for "batch"`},
		"floors: negative":       {floored("key: priority, values: {batch: -0.1}", ""), `f.yaml:5: values: has -0.1 for "batch"`},
		"floors: a text":         {floored("key: priority, values: {batch: low}", ""), `f.yaml:5: values: is "low": must be a number`},
		"floors: twice":          {floored("key: priority, values: {batch: 0.2, 'batch': 0.3}", ""), `f.yaml:5: values: has "batch" twice`},
		"floors: unknown field":  {floored("key: priority, value: batch", ""), `f.yaml:5: floors: has no field "value": use key, values`},
		"floors: unlimited":      {head + "- key: a\n  rate_limit: {unlimited: true, pglimit: {floors: {key: priority, values: {batch: 0.2}}}}\n", "f.yaml:4: pglimit: has no meaning with unlimited"},
		"alias of itself":        {"domain: d\ndescriptors: &l\n- key: a\n  descriptors: *l\n", "f.yaml:3: descriptors: is more than 100 levels deep"},
	} {
		d, err := Parse("f.yaml", []byte(c.text))
		if err == nil {
			_, err = NewConfig(false, d)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestAliasesAreBounded checks that a file whose aliases multiply ends with an error.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	text := "domain: d\ndescriptors:\n- key: k\n  metadata: &m0 {a: b}\n"
	for i := range 30 {
		text += fmt.Sprintf("- key: k%d\n  metadata: &m%d {a: *m%d, b: *m%d}\n", i, i+1, i, i)
	}
	if _, err := Parse("f.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "more than 200000 mappings") {
		t.Errorf("error %.200v, want one of the bound", err)
	}
}

// TestAnchorsAndMerges checks that a file may use both.
func TestAnchorsAndMerges(t *testing.T) {
	t.Parallel()
	c := mustConfig(t, `
domain: d
descriptors:
- key: a
  rate_limit: &limit {unit: minute, requests_per_unit: 5}
- key: b
  rate_limit: *limit
- key: c
  rate_limit: {<<: *limit, requests_per_unit: 7}
`)
	for key, want := range map[string]uint32{"a": 5, "b": 5, "c": 7} {
		m, _, err := c.match("d", descriptorOf(key, "x"))
		if err != nil || m.limit == nil || m.perUnit != want || m.unit.String() != "MINUTE" {
			t.Errorf("%s has the limit %+v, error %v; want %d a minute", key, m.limit, err, want)
		}
	}
}

// TestDomains checks domains of several files.
func TestDomains(t *testing.T) {
	t.Parallel()
	parse := func(name, text string) *Domain {
		d := must.OK(Parse(name, []byte(text)))(t)
		return d
	}
	a := parse("a.yaml", "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day}}]")
	b := parse("b.yaml", "domain: d\ndescriptors: [{key: b, rate_limit: {unit: day}}]")
	if _, err := NewConfig(false, a, b); err == nil || err.Error() != `b.yaml: domain: "d" is that of a.yaml, too` {
		t.Errorf("two files of one domain: error %v", err)
	}
	c := must.OK(NewConfig(true, a, b))(t)
	for _, key := range []string{"a", "b"} {
		if m, known, _ := c.match("d", descriptorOf(key, "")); !known || m.limit == nil {
			t.Errorf("merged domains have no limit for %s", key)
		}
	}
	if _, err := NewConfig(true, a, a); err == nil || !strings.Contains(err.Error(), `a.yaml:2: key: "d.a" is that of a.yaml:2, too`) {
		t.Errorf("a descriptor in two parts of a domain: error %v", err)
	}
}

// TestXDSIsYAML checks that a resource of xDS gives the limits that its YAML gives.
func TestXDSIsYAML(t *testing.T) {
	t.Parallel()
	metadata, _ := structpb.NewStruct(map[string]any{"plan": "free"})
	c, err := NewConfig(false, FromProto(&rlsconf.RateLimitConfig{
		Name: "listener", Domain: "d",
		Descriptors: []*rlsconf.RateLimitDescriptor{{
			Key: "route", Value: "r",
			Descriptors: []*rlsconf.RateLimitDescriptor{{
				Key: "user", ShadowMode: true, QuotaMode: true, DetailedMetric: true, Metadata: metadata,
				RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_WEEK, RequestsPerUnit: 3, Name: "n", Replaces: []*rlsconf.RateLimitReplace{{Name: "m"}}},
			}, {Key: "free", RateLimit: &rlsconf.RateLimitPolicy{Unlimited: true}}},
		}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := mustConfig(t, `
domain: d
descriptors:
- key: route
  value: r
  descriptors:
  - key: user
    shadow_mode: true
    quota_mode: true
    detailed_metric: true
    metadata: {plan: free}
    rate_limit: {unit: week, requests_per_unit: 3, name: n, replaces: [{name: m}]}
  - key: free
    rate_limit: {unlimited: true}
`)
	if got, want := c.Dump(), want.Dump(); got != want {
		t.Errorf("limits\n%swant\n%s", got, want)
	}
	if m, _, _ := c.match("d", descriptorOf("route", "r", "user", "u")); m.limit == nil || m.name != "n" || m.replaces[0] != "m" || m.metadata != metadata || !m.quota {
		t.Errorf("the limit is %+v", m.limit)
	}
	_, err = NewConfig(false, FromProto(&rlsconf.RateLimitConfig{Name: "listener", Domain: "d", Descriptors: []*rlsconf.RateLimitDescriptor{{
		Key: "a", Descriptors: []*rlsconf.RateLimitDescriptor{{Key: "b", RateLimit: &rlsconf.RateLimitPolicy{}}}}}}))
	if err == nil || !strings.Contains(err.Error(), `listener: descriptors[0]: descriptors[0]: unit: is ""`) {
		t.Errorf("a resource without a unit: error %v", err)
	}
}

// FuzzParse checks that no file makes the reader fail otherwise than by an error, and that what
// is valid can be matched.
func FuzzParse(f *testing.F) {
	f.Add(twoLimits, "user", "x")
	f.Add("domain: d\ndescriptors: &a\n- key: k\n  <<: *a\n  rate_limit: {unit: day, pglimit: {calendar: day}}", "k", "v")
	f.Add("domain: d\ndescriptors: [{key: k, value: '*a*', metadata: {a: [1, {b: null}]}, rate_limit: {unit: year}}]", "k", "bab")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		d, err := Parse("f", []byte(text))
		if err != nil {
			return
		}
		c, err := NewConfig(false, d)
		if err != nil {
			return
		}
		if m, known, err := c.match(d.name, descriptorOf(key, value)); !known || err != nil || m.limit != nil && !m.unlimited && m.policy.Limit > 0 && m.policy.Validate() != nil {
			t.Errorf("%q: known %t, error %v, limit %+v", text, known, err, m.limit)
		}
	})
}
