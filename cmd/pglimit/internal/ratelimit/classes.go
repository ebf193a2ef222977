package ratelimit

import (
	"iter"
	"math"
	"slices"
	"strconv"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"go.yaml.in/yaml/v3"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

// floors are the classes of a limit: the value of one more entry says which share of the burst a
// request leaves to others. The entry is neither a descriptor nor a part of the key.
type floors struct {
	at, key string
	values  map[string]float64 // for another value the floor is 0
}

// floors reads those of a limit.
func (r *reader) floors(into **floors) setter {
	return func(key string, n *yaml.Node) {
		f := &floors{at: r.Place(n), values: map[string]float64{}}
		r.Mapping(n, key, named("key", r.Text(&f.key)), named("values", func(key string, n *yaml.Node) {
			if n = r.Enter(n, key, yaml.MappingNode, "a mapping of values to floors"); n == nil {
				return
			}
			defer r.Leave()
			for i := 0; i+1 < len(n.Content) && !r.Full(); i += 2 {
				var value string
				r.Scalar(n.Content[i], key, &value, "a text")
				floor, ok := r.Number(n.Content[i+1], key)
				if _, twice := f.values[value]; twice {
					r.Fault(n.Content[i], key, "has %.80q twice", value)
				} else if ok && !(floor >= 0 && math.RoundToEven(floor*1e6) < 1e6) {
					r.Fault(n.Content[i+1], key, "has %s for %.80q: must be from 0 to 0.999999, the share of the burst that stays free", strconv.FormatFloat(floor, 'g', -1, 64), value)
				}
				f.values[value] = floor
			}
		}))
		*into = f
	}
}

// floors checks the floors of a limit with descriptors below it.
func (b *builder) floors(f *floors, keys []string, below []descriptor) {
	switch {
	case f.key == "":
		b.Add(f.at, "%s.floors.key: is missing or empty", ownKey)
	case slices.Contains(keys, f.key), slices.ContainsFunc(below, func(d descriptor) bool { return d.key == f.key }):
		b.Add(f.at, "%s.floors.key: %.80q is a descriptor of this limit or below it, too: it must be another entry", ownKey, f.key)
	case len(f.values) == 0:
		b.Add(f.at, "%s.floors.values: is missing or empty", ownKey)
	}
	b.root.classes[f.key] = true
}

// classed returns each entry that may be a class, with the others.
func (n *node) classed(entries []*rlcommon.RateLimitDescriptor_Entry) iter.Seq2[*rlcommon.RateLimitDescriptor_Entry, []*rlcommon.RateLimitDescriptor_Entry] {
	return func(yield func(*rlcommon.RateLimitDescriptor_Entry, []*rlcommon.RateLimitDescriptor_Entry) bool) {
		for i, e := range entries {
			if n.classes[e.GetKey()] && !yield(e, slices.Delete(slices.Clone(entries), i, i+1)) {
				return
			}
		}
	}
}

// ceiling returns how many units of a burst may be in use for the descriptor's class.
func (a *asked) ceiling(burst float64) float64 {
	return store.Ceiling(burst, int64(math.RoundToEven(a.floor*1e6)))
}

// request returns the request for the descriptor's hits, which leaves its floor free.
func (a *asked) request(p limiter.Policy) limiter.Request {
	return limiter.Request{Policy: p, Key: a.key, Cost: float64(a.hits), Floor: a.floor}
}
