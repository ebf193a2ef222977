package ratelimit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/strictyaml"
	"github.com/pglimit/pglimit/limiter"
)

// Domain is the configuration of one domain, as a file or a resource of xDS has it. NewConfig
// checks what it means.
type Domain struct {
	at          string // where it is, for errors
	name        string
	descriptors []descriptor
}

// descriptor is one descriptor with those below it.
type descriptor struct {
	at, key, value                                string
	rule                                          *rule
	children                                      []descriptor
	shadow, quota, detailed, valueToMetric, share bool
	metadata                                      *structpb.Struct
}

// composite is the name by which requests find the descriptor.
func (d *descriptor) composite() string {
	if d.value == "" {
		return d.key
	}
	return d.key + "_" + d.value
}

// rule is a rate_limit.
type rule struct {
	at, unit, name string
	perUnit        uint32
	unlimited      bool
	replaces       []string
	own            *own
}

// own is what a rate_limit has under ownKey.
type own struct {
	policy   limiter.Policy
	at       map[string]string // the places of the policy's fields
	counting string
	floors   *floors
}

// FromProto returns the domain of a resource of xDS. It has no fields for value_to_metric,
// share_threshold and pglimit.
func FromProto(c *rlsconf.RateLimitConfig) *Domain {
	at := cmp.Or(c.GetName(), c.GetDomain())
	return &Domain{at: at, name: c.GetDomain(), descriptors: fromProto(at, c.GetDescriptors(), 1)}
}

func fromProto(at string, list []*rlsconf.RateLimitDescriptor, level int) []descriptor {
	if level > maxLevels {
		list = list[:min(1, len(list))] // which NewConfig refuses
	}
	all := make([]descriptor, len(list))
	for i, d := range list {
		at := fmt.Sprintf("%s: descriptors[%d]", at, i)
		all[i] = descriptor{
			at: at, key: d.GetKey(), value: d.GetValue(),
			shadow: d.GetShadowMode(), quota: d.GetQuotaMode(), detailed: d.GetDetailedMetric(), metadata: d.GetMetadata(),
		}
		if level <= maxLevels {
			all[i].children = fromProto(at, d.GetDescriptors(), level+1)
		}
		if l := d.GetRateLimit(); l != nil {
			r := &rule{at: at, name: l.GetName(), perUnit: l.GetRequestsPerUnit(), unlimited: l.GetUnlimited()}
			if l.GetUnit() != rlsconf.RateLimitUnit_UNKNOWN {
				r.unit = l.GetUnit().String()
			}
			for _, replaced := range l.GetReplaces() {
				r.replaces = append(r.replaces, replaced.GetName())
			}
			all[i].rule = r
		}
	}
	return all
}

// Config is the configuration of all domains. It does not change.
type Config struct {
	domains map[string]*node
}

// node is a descriptor that requests can match.
type node struct {
	at, name  string // name: with the value
	key       string // without it
	children  map[string]*node
	wildcards []wildcard      // of the children, in the configuration's order
	limit     *limit          // or nil
	classes   map[string]bool // of a domain: the keys of floors

	valueToMetric bool
	share         bool // all values that match the wildcard share one count
}

// wildcard is a composite name with *, cut there.
type wildcard struct {
	name  string
	parts []string
}

// matches reports whether s matches the pattern. Each * stands for any characters, or none.
func (w *wildcard) matches(s string) bool {
	first, last := w.parts[0], w.parts[len(w.parts)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range w.parts[1 : len(w.parts)-1] {
		var found bool
		if _, s, found = strings.Cut(s, part); !found {
			return false
		}
	}
	return true
}

// limit is what a rate_limit says.
type limit struct {
	path      string         // the metric's name: the domain and all composite names, joined by dots
	policy    limiter.Policy // a Limit of 0: nothing passes
	perUnit   uint32
	unit      pb.RateLimitResponse_RateLimit_Unit
	times     *wrapperspb.UInt32Value // of the unit; nil: 1
	name      string
	replaces  []string
	unlimited bool
	each      bool    // counted by itself, and above the limit too
	floors    *floors // or nil

	shadow, quota, detailed bool
	metadata                *structpb.Struct
}

// NewConfig checks and joins domains. The error has a line for each fault, with its place. With
// merge set, several may have parts of the same domain.
func NewConfig(merge bool, domains ...*Domain) (*Config, error) {
	c, b := &Config{domains: map[string]*node{}}, &builder{}
	for _, d := range domains {
		root := c.domains[d.name]
		switch {
		case d.name == "":
			b.Add(d.at, "domain: is missing or empty")
			continue
		case root == nil:
			root = &node{at: d.at, name: d.name, children: map[string]*node{}, classes: map[string]bool{}}
			c.domains[d.name] = root
		case !merge:
			b.Add(d.at, "domain: %.80q is that of %s, too", d.name, root.at)
			continue
		}
		b.root = root
		b.descriptors(root, d.descriptors, d.name, nil)
	}
	return c, errors.Join(b.Faults...)
}

// builder makes nodes of descriptors.
type builder struct {
	root *node // of the domain
	strictyaml.Faults
}

// descriptors adds those below a node, whose path and keys are given.
func (b *builder) descriptors(parent *node, list []descriptor, path string, keys []string) {
	if len(keys) == maxLevels && len(list) > 0 {
		b.Add(parent.at, "descriptors: are more than %d levels deep", maxLevels)
		return
	}
	for i := range list {
		d := &list[i]
		if b.Full() {
			return
		}
		if d.key == "" {
			b.Add(d.at, "key: is missing or empty")
			continue
		}
		name := d.composite()
		path, keys := path+"."+name, append(slices.Clip(keys), d.key)
		if twin := parent.children[name]; twin != nil {
			b.Add(d.at, "key: %.200q is that of %s, too: descriptors side by side differ in key and value", path, twin.at)
			continue
		}
		n := &node{at: d.at, name: name, key: d.key, children: map[string]*node{}, valueToMetric: d.valueToMetric, share: d.share}
		parent.children[name] = n
		if strings.Contains(name, "*") {
			parent.wildcards = append(parent.wildcards, wildcard{name, strings.Split(name, "*")})
		}
		if d.share && !strings.Contains(name, "*") {
			b.Add(d.at, "share_threshold: needs a * in the value, not %.80q", d.value)
		}
		if d.rule != nil {
			n.limit = b.limit(d, path, keys)
			if f := n.limit.floors; f != nil {
				b.floors(f, keys, d.children)
			}
		}
		b.descriptors(n, d.children, path, keys)
	}
}

// limit returns the limit of a descriptor that has a rate_limit.
func (b *builder) limit(d *descriptor, path string, keys []string) *limit {
	r := d.rule
	l := &limit{
		path: path, perUnit: r.perUnit, name: r.name, replaces: r.replaces, unlimited: r.unlimited,
		shadow: d.shadow, quota: d.quota, detailed: d.detailed, metadata: d.metadata,
	}
	if slices.Contains(r.replaces, "") {
		b.Add(r.at, "replaces: has an entry without a name")
	}
	if r.name != "" && slices.Contains(r.replaces, r.name) {
		b.Add(r.at, "replaces: has the limit's own name %.80q", r.name)
	}
	value, known := pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(r.unit)]
	l.unit = pb.RateLimitResponse_RateLimit_Unit(value)
	switch known = known && value != 0; {
	case r.unlimited && r.own != nil:
		b.Add(r.at, "%s: has no meaning with unlimited", ownKey)
	case r.unlimited && r.unit != "":
		b.Add(r.at, "unit: has no meaning with unlimited")
	case r.unlimited:
	case !known && (r.unit != "" || r.own == nil || r.own.policy.Period == 0 && r.own.policy.Calendar == ""):
		b.Add(r.at, "unit: is %.80q: must be %s", r.unit, strings.Join(unitNames(), ", "))
	default:
		b.policy(l, r, keys)
	}
	return l
}

// policy sets the policy of a limit: a window of its unit, with what the limit has under ownKey.
func (b *builder) policy(l *limit, r *rule, keys []string) {
	l.policy = window(b.root.name, keys, l.unit, l.perUnit)
	at := r.at
	if o := r.own; o != nil {
		own := o.policy
		own.Limit = cmp.Or(own.Limit, l.policy.Limit)
		own.Algorithm = cmp.Or(own.Algorithm, limiter.FixedWindow)
		span := string(own.Calendar)
		switch {
		case span != "":
			span = "calendar-" + span
		case own.Period == 0 || own.Period == l.policy.Period:
			own.Period, span = l.policy.Period, strings.ToLower(l.unit.String())
		default:
			span = own.Period.String()
		}
		if own.Algorithm == limiter.FixedWindow && own.Calendar == "" && o.at["Aligned"] == "" {
			own.Aligned = true
		}
		own.Name = policyName(b.root.name, keys, span)
		l.policy, l.each, l.floors = own, o.counting == "each", o.floors
		l.unit, l.perUnit = shown(own)
		switch {
		case !slices.Contains([]string{"", "together", "each"}, o.counting):
			b.Add(at, "%s.counting: is %.80q: must be together or each", ownKey, o.counting)
		case l.each && own.Algorithm != limiter.FixedWindow:
			b.Add(at, "%s.counting: each needs the algorithm %s", ownKey, limiter.FixedWindow)
		case own.Algorithm == limiter.LeakyBucketQueue:
			b.Add(at, "%s.algorithm: %s makes callers wait, and a proxy does not", ownKey, own.Algorithm)
		}
	}
	var bad *limiter.PolicyError
	err := l.policy.Validate()
	switch {
	case err == nil || l.policy.Limit == 0:
	case errors.As(err, &bad) && r.own != nil:
		i := slices.IndexFunc(policyfile.PolicyFields, func(f policyfile.Field) bool { return f.Go == bad.Field })
		b.Add(cmp.Or(r.own.at[bad.Field], at), "%s.%s: is %v: %s", ownKey, policyfile.PolicyFields[i].Name, bad.Value, bad.Reason)
	default:
		b.Add(at, "%v", err)
	}
}

// periods has the length of each unit. Months have 30 days and years 365.
var periods = map[pb.RateLimitResponse_RateLimit_Unit]time.Duration{
	pb.RateLimitResponse_RateLimit_SECOND: time.Second,
	pb.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	pb.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	pb.RateLimitResponse_RateLimit_DAY:    24 * time.Hour,
	pb.RateLimitResponse_RateLimit_WEEK:   7 * 24 * time.Hour,
	pb.RateLimitResponse_RateLimit_MONTH:  30 * 24 * time.Hour,
	pb.RateLimitResponse_RateLimit_YEAR:   365 * 24 * time.Hour,
}

func unitNames() (names []string) {
	for _, u := range slices.SortedFunc(maps.Keys(periods), func(a, b pb.RateLimitResponse_RateLimit_Unit) int { return cmp.Compare(periods[a], periods[b]) }) {
		names = append(names, strings.ToLower(u.String()))
	}
	return names
}

// shown returns the unit and number that stand for a policy in responses: UNKNOWN if its period
// is not that of a unit.
func shown(p limiter.Policy) (unit pb.RateLimitResponse_RateLimit_Unit, perUnit uint32) {
	unit = pb.RateLimitResponse_RateLimit_Unit(pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(string(p.Calendar))])
	for u, period := range periods {
		if period == p.Period {
			unit = u
		}
	}
	return unit, uint32(min(p.Limit, 1<<32-1))
}

// Dump returns a line for each limit.
func (c *Config) Dump() string {
	var lines []string
	for _, n := range c.domains {
		n.dump(&lines)
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (n *node) dump(lines *[]string) {
	if l := n.limit; l != nil {
		*lines = append(*lines, fmt.Sprintf("%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n", l.path, l.unit, l.perUnit, l.shadow, l.quota))
	}
	for _, child := range n.children {
		child.dump(lines)
	}
}
