package ratelimit

import (
	"fmt"
	"math/rand/v2"
	"strings"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// draw draws configurations and requests.
type draw struct {
	*rand.Rand
	domain string
	// What a configuration has.
	modes    bool // shadow_mode and quota_mode
	metadata bool // instead of the keys for metrics: the two do not go together in envoyproxy/ratelimit
	names    int  // limits so far
}

func newDraw(seed uint64, domain string) *draw {
	r := rand.New(rand.NewPCG(seed, 1))
	return &draw{Rand: r, domain: domain, metadata: newest && r.IntN(2) == 0}
}

// one in n is true.
func (d *draw) one(n int) bool { return d.IntN(n) == 0 }

func pick[T any](d *draw, from ...T) T { return from[d.IntN(len(from))] }

func or[T any](condition bool, yes, no T) T {
	if condition {
		return yes
	}
	return no
}

// units have the lengths in seconds.
var (
	units   = []string{"second", "minute", "hour", "day", "week", "month", "year"}
	lengths = []int64{1, 60, 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400}
)

// config returns a configuration. It draws the limits from numbers, so that two configurations
// can have the same descriptors with other limits.
func (d *draw) config(numbers *rand.Rand) string {
	var out strings.Builder
	fmt.Fprintf(&out, "domain: %s\ndescriptors:\n", d.domain)
	d.names = 0
	d.descriptors(&out, "", 0, numbers)
	return out.String()
}

func (d *draw) descriptors(out *strings.Builder, indent string, depth int, numbers *rand.Rand) {
	seen := map[string]bool{}
	for range 2 + d.IntN(4) {
		keys := []string{"a", "b", "c"}
		if !d.metadata {
			keys = append(keys, "a*", "a_b")
		}
		values := []string{"", "", "x", "y", "b", "x*", "*", "/f/*"}
		if newest {
			values = append(values, "x*z", "*y*", "x*y*z")
		}
		key, value := pick(d, keys...), pick(d, values...)
		composite := key
		if value != "" {
			composite += "_" + value
		}
		if seen[composite] || !newest && strings.HasSuffix(key, "*") && value != "" {
			continue
		}
		seen[composite] = true
		line := func(format string, args ...any) { fmt.Fprintf(out, indent+"  "+format+"\n", args...) }
		fmt.Fprintf(out, "%s- key: %q\n", indent, key)
		if value != "" {
			line("value: %q", value)
		}
		if strings.HasSuffix(composite, "*") && d.one(2) {
			line("share_threshold: true")
		}
		if !d.metadata && d.one(3) {
			line("value_to_metric: true")
		}
		if !d.one(4) {
			d.limit(line, numbers)
		}
		if depth < 2 && d.one(2) {
			line("descriptors:")
			d.descriptors(out, indent+"  ", depth+1, numbers)
		}
	}
	if len(seen) == 0 {
		fmt.Fprintf(out, "%s- key: only\n", indent)
	}
}

// limit writes a rate_limit and the keys beside it.
func (d *draw) limit(line func(string, ...any), numbers *rand.Rand) {
	d.names++
	unit := pick(d, units...)
	limit := fmt.Sprintf("unit: %s, requests_per_unit: %d", unit, numbers.IntN(8))
	if d.one(8) {
		limit = "unlimited: true"
	}
	if d.one(3) {
		limit += fmt.Sprintf(", name: n%d", d.names)
	}
	if d.one(5) && d.names > 1 {
		limit += fmt.Sprintf(", replaces: [{name: n%d}]", 1+d.IntN(d.names-1))
	}
	line("rate_limit: {%s}", limit)
	if d.modes && numbers.IntN(4) == 0 {
		line("shadow_mode: true")
	}
	if d.modes && newest && numbers.IntN(3) == 0 {
		line("quota_mode: true")
	}
	switch {
	case d.metadata && d.one(2):
		line("metadata: {n%d: {number: %d, list: [1, a, true]}, last: %d}", d.names, d.names, d.names)
	case !d.metadata && d.one(3):
		line("detailed_metric: true")
	}
}

// request returns a request of one to four descriptors.
func (d *draw) request() *pb.RateLimitRequest {
	r := &pb.RateLimitRequest{Domain: d.domain, HitsAddend: uint32(d.IntN(3))}
	if d.one(20) {
		r.Domain = "elsewhere"
	}
	for range 1 + d.IntN(4) {
		if len(r.Descriptors) > 0 && d.one(4) { // the same again, or with another limit
			again := proto.CloneOf(pick(d, r.Descriptors...))
			if again.Limit != nil {
				again.Limit.RequestsPerUnit = uint32(d.IntN(5))
			}
			r.Descriptors = append(r.Descriptors, again)
			continue
		}
		desc := &rlcommon.RateLimitDescriptor{}
		for range 1 + d.IntN(3) {
			desc.Entries = append(desc.Entries, &rlcommon.RateLimitDescriptor_Entry{
				Key: pick(d, "a", "b", "c", or(d.metadata, "c", "a_b"), "ab", "other"), Value: pick(d, "", "x", "y", "b", "xz", "xyz", "xyzz", "/f/1", "/f/2", "/f/", "*", "x*"),
			})
			if d.one(2) {
				break
			}
		}
		if d.one(3) {
			desc.HitsAddend = wrapperspb.UInt64(uint64(d.IntN(4)))
		}
		if d.one(12) { // of entries that no configured limit has, as both would count together
			desc.Entries[0].Key = "requested"
			desc.Limit = &rlcommon.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(d.IntN(5)), Unit: pick(d,
				typev3.RateLimitUnit_SECOND, typev3.RateLimitUnit_MINUTE, typev3.RateLimitUnit_HOUR, typev3.RateLimitUnit_DAY, typev3.RateLimitUnit_MONTH, typev3.RateLimitUnit_YEAR)}
		}
		r.Descriptors = append(r.Descriptors, desc)
	}
	return r
}

// advance moves the clock on to a moment at which no two units have windows that began
// together: envoyproxy/ratelimit would count those as one.
func (d *draw) advance(c *clock) {
	if d.one(3) {
		c.now += pick[int64](d, 1, 1, 10, 60, 3600, 86400, 30*86400)
	}
	for i := 0; i < len(lengths); i++ {
		for _, longer := range lengths[i+1:] {
			if c.now/lengths[i]*lengths[i] == c.now/longer*longer {
				c.now += lengths[i]
				i = -1 // again from the first
				break
			}
		}
	}
}
