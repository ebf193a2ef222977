package policies

import (
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/valid"
	"github.com/pglimit/pglimit/limiter"
)

// state is all policies and overrides at one version. It does not change.
type state struct {
	secret    []byte // of the keys as stored
	version   int64
	mark      mark
	stored    []Stored
	policies  map[string]limiter.Policy
	defaults  map[string]limiter.Policy
	overrides map[string]*overridesOf // by policy
	// refused has the last version of each row that was not valid and was logged.
	refused map[rowID]int64
}

// overridesOf is the overrides of one policy: those for one key, and those with a Match, nil for
// none.
type overridesOf struct {
	keys  map[keyHash]effect
	rules *ruleSet
}

// keyHash is a part of the SHA-256 of a key as stored: keys may be long. It has 128 bits, so that
// nobody can find two keys with one hash.
type keyHash [16]byte

func hashOf(stored string) keyHash {
	sum := sha256.Sum256([]byte(stored))
	return keyHash(sum[:])
}

// effect is the part of an Override that a decision needs. 0 is none.
type effect struct {
	limit, burst float64
	anchor       string
	untilUs      int64
	times        bool // limit is a factor
	unlimited    bool
	blocked      bool
	shadow       int8 // 1: true, -1: false
}

// rowID names a policy, or an override if key is not empty.
type rowID struct {
	policy, key string
	match       Match
}

func idOf(o *Override) rowID { return rowID{o.Policy, o.Key, o.Match} }

func (s *state) policy(name string) (limiter.Policy, bool) {
	p, ok := s.policies[name]
	if !ok {
		p, ok = s.defaults[name]
	}
	return p, ok
}

// withDefaults returns a copy with more defaults.
func (s *state) withDefaults(more []limiter.Policy) *state {
	next := *s
	next.defaults = maps.Clone(s.defaults)
	if next.defaults == nil {
		next.defaults = map[string]limiter.Policy{}
	}
	for _, p := range more {
		next.defaults[p.Name] = p
	}
	return &next
}

// next returns the state that follows s, still without policies, and a function that changes an
// override of it. all: it begins with none. A row that is not valid keeps the last known one,
// or is left out, and is logged once.
func (s *state) next(all bool, refuse func(row rowID, err error)) (n *state, change func(*Override)) {
	n = &state{secret: s.secret, defaults: s.defaults, policies: map[string]limiter.Policy{}, refused: map[rowID]int64{}, overrides: map[string]*overridesOf{}}
	maps.Copy(n.refused, s.refused)
	if !all {
		maps.Copy(n.overrides, s.overrides)
	}
	copied := map[string]bool{}
	return n, func(o *Override) {
		if !copied[o.Policy] {
			copied[o.Policy] = true
			n.overrides[o.Policy] = n.overrides[o.Policy].clone()
		}
		err := o.valid()
		if err != nil && !(!all && o.changesNothing()) { // a change to nothing: it is gone
			n.note(idOf(o), o.Version, err, refuse)
			if before := s.overrides[o.Policy]; before != nil {
				if last, ok := before.get(o); ok {
					n.overrides[o.Policy].set(o, last)
				}
			}
			return
		}
		n.overrides[o.Policy].set(o, o.effect())
	}
}

// clone returns a copy; of nil, an empty one.
func (of *overridesOf) clone() *overridesOf {
	n := &overridesOf{keys: map[keyHash]effect{}}
	if of != nil {
		maps.Copy(n.keys, of.keys)
		n.rules = of.rules.clone()
	}
	return n
}

// get returns the effect of the override that has the key and Match of o, which is as stored.
func (of *overridesOf) get(o *Override) (e effect, ok bool) {
	if o.Match != "" {
		e, ok = of.rules.all()[rule{o.Match, o.Key}]
	} else {
		e, ok = of.keys[hashOf(o.Key)]
	}
	return e, ok
}

// set gives that override an effect. Without one it is gone.
func (of *overridesOf) set(o *Override, e effect) {
	gone := o.changesNothing()
	switch {
	case o.Match != "":
		if of.rules == nil {
			of.rules = &ruleSet{rows: map[rule]effect{}}
		}
		if of.rules.rows[rule{o.Match, o.Key}] = e; gone {
			delete(of.rules.rows, rule{o.Match, o.Key})
		}
	case gone:
		delete(of.keys, hashOf(o.Key))
	default:
		of.keys[hashOf(o.Key)] = e
	}
}

// note calls refuse for a row that is not valid, unless it has had that version before.
func (s *state) note(row rowID, version int64, err error, refuse func(row rowID, err error)) {
	if before, ok := s.refused[row]; !ok || before != version {
		refuse(row, err)
	}
	s.refused[row] = version
}

// setPolicies gives n, which follows s, the policies that were loaded.
func (n *state) setPolicies(s *state, rows *loaded, refuse func(row rowID, err error)) {
	n.version, n.mark = rows.version, rows.mark
	for _, of := range n.overrides {
		of.rules.compile()
	}
	for i := range rows.policies {
		p, err := rows.policies[i].stored()
		if err != nil {
			n.note(rowID{policy: p.Name}, p.Version, err, refuse)
			at := slices.IndexFunc(s.stored, func(q Stored) bool { return q.Name == p.Name })
			if at < 0 {
				continue
			}
			p = s.stored[at]
		}
		n.stored = append(n.stored, p)
		n.policies[p.Name] = p.Policy
	}
}

// Override implements limiter.Overrides. A nil state has none.
func (s *state) Override(p *limiter.Policy, key string, now func() time.Time) (r limiter.Ruling) {
	if s == nil {
		return r
	}
	of := s.overrides[p.Name]
	if of == nil {
		return r
	}
	if len(of.keys) > 0 {
		if o, ok := of.keys[hashOf(keys.Stored(key, s.secret))]; ok && !o.ended(now) {
			o.apply(p)
			add(&r, &o)
		}
	}
	if of.rules != nil && !r.Unlimited && !r.Blocked {
		r = of.rules.ruling(key, now)
	}
	return r
}

// ended reports whether the override has ended. It calls now only if there is an end.
func (o *effect) ended(now func() time.Time) bool {
	return o.untilUs != 0 && now().UnixMicro() >= o.untilUs
}

func bucket(a limiter.Algorithm) bool { return algorithm.Name(a).Family() == algorithm.Buckets }

// apply changes a policy, as queries/functions/policy.tmpl does. A burst is only for buckets:
// another program may have another algorithm under the name. A policy that is not valid stays
// so.
func (o *effect) apply(p *limiter.Policy) {
	if o.limit != 0 && valid.Units(p.Limit) {
		per := p.Limit
		if p.Limit = o.limit; o.times {
			p.Limit, per = valid.Times(per, o.limit, 1), 1
		}
		if !bucket(p.Algorithm) {
			p.Burst = 0
		} else if p.Burst > 0 {
			p.Burst = valid.Times(p.Burst, o.limit, per)
		}
	}
	if o.burst != 0 && bucket(p.Algorithm) {
		p.Burst = o.burst
	}
	if _, err := algorithm.AnchorOf(p.Anchor); o.anchor != "" && p.Calendar != "" && err == nil {
		p.Anchor = o.anchor
	}
	if o.shadow != 0 {
		p.Shadow = o.shadow > 0
	}
}
