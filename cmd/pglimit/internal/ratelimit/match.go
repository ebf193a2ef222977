package ratelimit

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/pglimit/pglimit/limiter"
)

// match is the limit of a request's descriptor.
type match struct {
	*limit         // nil: none
	key    string  // to count under
	metric string  // its name in metrics
	floor  float64 // the share of the burst that the class of the descriptor leaves free
}

// match returns the limit of a descriptor. known reports whether the domain has a configuration.
// An error is the request's fault.
func (c *Config) match(domain string, d *rlcommon.RateLimitDescriptor) (m match, known bool, err error) {
	at := c.domains[domain]
	if at == nil {
		return m, false, nil
	}
	if n := len(d.GetEntries()); n > maxLevels {
		return m, true, fmt.Errorf("entries: there are %d, and must be at most %d", n, maxLevels)
	}
	if d.GetLimit() != nil {
		m, err = requested(domain, d)
		return m, true, err
	}
	entries := d.GetEntries()
	m = at.match(domain, entries)
	for class, rest := range at.classed(entries) {
		if c := at.match(domain, rest); m.limit == nil && c.limit != nil && c.floors != nil && c.floors.key == class.GetKey() {
			m, m.floor = c, c.floors.values[class.GetValue()]
		}
	}
	return m, true, nil
}

// match returns the limit of the entries of a descriptor of a domain.
func (n *node) match(domain string, entries []*rlcommon.RateLimitDescriptor_Entry) (m match) {
	at := n
	values, shared := make([]string, len(entries)), make([]string, len(entries))
	var whole []string
	var path strings.Builder
	path.WriteString(domain)
	for i, e := range entries {
		n, by := at.find(e)
		if n == nil {
			return m
		}
		values[i] = e.GetValue()
		metric := values[i]
		switch pattern := strings.TrimPrefix(n.name, e.GetKey()+"_"); {
		case by == byWildcard && n.share:
			values[i], shared[i], metric = pattern, pattern, pattern
		case by == byWildcard && !n.valueToMetric:
			metric = pattern
		case by == byKey && !n.valueToMetric:
			metric = ""
		}
		write(&path, e.GetKey(), metric)
		if e.GetKey() != n.key { // a name such as "a_b" or "a*", without a value, matched the entry as a whole
			// The key follows the values, of which the policy fixes the number.
			whole = append(whole, fmt.Sprintf("%d=%s", i, e.GetKey()))
		}
		at = n
	}
	if m.limit = at.limit; m.limit != nil {
		m.key, m.metric = key(append(values, whole...)), path.String()
		if m.detailed {
			m.metric = detailed(domain, entries, shared)
		}
		m.metric = bounded(m.metric)
	}
	return m
}

// by is how a node was found.
type by uint8

const (
	byValue by = iota
	byWildcard
	byKey // alone, whatever the value
)

// find returns the child for an entry: that of its key and value, else the first wildcard that
// matches both, else that of the key.
func (n *node) find(e *rlcommon.RateLimitDescriptor_Entry) (*node, by) {
	whole := e.GetKey() + "_" + e.GetValue()
	if child := n.children[whole]; child != nil {
		return child, byValue
	}
	for i := range n.wildcards {
		if n.wildcards[i].matches(whole) {
			return n.children[n.wildcards[i].name], byWildcard
		}
	}
	return n.children[e.GetKey()], byKey
}

// requested returns the limit that a descriptor of a request has itself.
func requested(domain string, d *rlcommon.RateLimitDescriptor) (m match, err error) {
	keys, values := make([]string, len(d.GetEntries())), make([]string, len(d.GetEntries()))
	var path strings.Builder
	for i, e := range d.GetEntries() {
		keys[i], values[i] = e.GetKey(), e.GetValue()
		write(&path, keys[i], values[i])
	}
	l := &limit{perUnit: d.GetLimit().GetRequestsPerUnit(), unit: pb.RateLimitResponse_RateLimit_Unit(d.GetLimit().GetUnit()), times: d.GetLimit().GetUnitMultiplier()}
	if periods[l.unit] == 0 {
		return m, fmt.Errorf("limit.unit %s: must be one of %s", l.unit, strings.Join(unitNames(), ", "))
	}
	times := int64(1)
	if l.times != nil {
		times = int64(l.times.GetValue())
	}
	if most := 100 * int64(periods[pb.RateLimitResponse_RateLimit_YEAR]/periods[l.unit]); times < 1 || times > most {
		return m, fmt.Errorf("limit.unit_multiplier %d: must be from 1 to %d", times, most)
	}
	l.policy = window(domain, keys, l.unit, l.perUnit)
	if times > 1 {
		l.policy.Period *= time.Duration(times)
		l.policy.Name = policyName(domain, keys, l.policy.Period.String())
	}
	return match{limit: l, key: key(values), metric: bounded(domain + "." + strings.TrimPrefix(path.String(), "."))}, nil
}

// write adds a key and its value, unless that is empty, to a metric's name.
func write(path *strings.Builder, key, value string) {
	path.WriteByte('.')
	path.WriteString(key)
	if value != "" {
		path.WriteByte('_')
		path.WriteString(value)
	}
}

// detailed returns the metric's name of a limit with detailed_metric: all values, or the
// patterns of those that share a count.
func detailed(domain string, entries []*rlcommon.RateLimitDescriptor_Entry, shared []string) string {
	var path strings.Builder
	path.WriteString(domain)
	any := strings.Join(shared, "") != ""
	for i, e := range entries {
		switch {
		case shared[i] != "":
			write(&path, e.GetKey(), shared[i])
		case any:
			write(&path, e.GetKey(), e.GetValue())
		default:
			path.WriteString("." + e.GetKey() + "_" + e.GetValue())
		}
	}
	return path.String()
}

// window returns the policy of a unit: windows that begin at whole multiples of it since 1970.
func window(domain string, keys []string, unit pb.RateLimitResponse_RateLimit_Unit, perUnit uint32) limiter.Policy {
	return limiter.Policy{
		Name:      policyName(domain, keys, strings.ToLower(unit.String())),
		Algorithm: limiter.FixedWindow, Limit: float64(perUnit), Period: periods[unit], Aligned: true,
	}
}

// counter returns the policy that counts for p all that is asked for, also above the limit.
func counter(p limiter.Policy) limiter.Policy {
	return limiter.Policy{
		Name: p.Name, Algorithm: p.Algorithm, Limit: mostHits, Period: p.Period, Aligned: p.Aligned,
		Calendar: p.Calendar, TimeZone: p.TimeZone, Anchor: p.Anchor, Durability: p.Durability, OnError: limiter.FailClosed,
	}
}

// mostHits is the largest number of hits that a float64 counts exactly.
const mostHits = 1 << 53

var plain = regexp.MustCompile(`^[a-z0-9_-]+$`)

// policyName returns the name of the policy that counts descriptors of these keys in a span:
// envoy.domain.key.minute, with a hash if that is too long or has other characters. The
// values are in the key, so that a limit for one value continues with what it has used.
func policyName(domain string, keys []string, span string) string {
	const longest, hashed = 64, 13
	parts := append(append([]string{domain}, keys...), span)
	name, clean := strings.Join(append([]string{"envoy"}, parts...), "."), true
	sum := sha256.New()
	for _, part := range parts {
		clean = clean && plain.MatchString(part) && !strings.Contains(part, "--") // which only a hash has before it
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	if clean && len(name) <= longest {
		return name
	}
	hash := strings.ToLower(base32.HexEncoding.EncodeToString(sum.Sum(nil)))[:hashed]
	name = strings.Map(func(r rune) rune {
		if r == '.' || r < 128 && plain.MatchString(string(r)) {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return name[:min(len(name), longest-hashed-2)] + "--" + hash
}

// key returns the key of values. JoinKey never returns the other two: one colon alone for one
// value, and a backslash before another letter.
func key(values []string) string {
	const longest = 1024
	switch k := limiter.JoinKey(values...); {
	case k == "":
		return ":"
	case len(k) > longest || strings.ContainsRune(k, 0):
		sum := sha256.Sum256([]byte(k))
		return `\sha256:` + hex.EncodeToString(sum[:])
	default:
		return k
	}
}

// hits returns the units that a descriptor of a request asks for, or gives back: no more than can
// be counted. 0 only checks.
func hits(request *pb.RateLimitRequest, d *rlcommon.RateLimitDescriptor) uint64 {
	if own := d.GetHitsAddend(); own != nil {
		return min(own.GetValue(), mostHits)
	}
	return uint64(max(1, request.GetHitsAddend()))
}
