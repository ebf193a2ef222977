package limiter

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/policies"
	"github.com/pglimit/pglimit/internal/store"
)

// policyState is all policies and overrides at one version. It does not change.
type policyState struct {
	version   int64
	mark      policies.Mark
	stored    []StoredPolicy
	policies  map[string]Policy
	defaults  map[string]Policy
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

// keyHash is a part of the SHA-256 of a key as stored: keys may be long. No two keys with the
// same one can be found.
type keyHash [16]byte

func hashOf(stored string) keyHash {
	sum := sha256.Sum256([]byte(stored))
	return keyHash(sum[:])
}

// effect is the part of an Override that a decision needs. 0 is none.
type effect struct {
	limit, burst float64
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

func (s *policyState) policy(name string) (Policy, bool) {
	p, ok := s.policies[name]
	if !ok {
		p, ok = s.defaults[name]
	}
	return p, ok
}

// withDefaults returns a copy with more defaults.
func (s *policyState) withDefaults(more []Policy) *policyState {
	next := *s
	next.defaults = maps.Clone(s.defaults)
	if next.defaults == nil {
		next.defaults = map[string]Policy{}
	}
	for _, p := range more {
		next.defaults[p.Name] = p
	}
	return &next
}

// next returns the state that follows s, still without policies, and a function that changes an
// override of it. all: it begins with none. A row that is not valid keeps the last known one,
// or is left out, and is logged once.
func (s *policyState) next(all bool, refuse func(row rowID, err error)) (n *policyState, change func(*policies.Override)) {
	n = &policyState{defaults: s.defaults, policies: map[string]Policy{}, refused: map[rowID]int64{}, overrides: map[string]*overridesOf{}}
	maps.Copy(n.refused, s.refused)
	if !all {
		maps.Copy(n.overrides, s.overrides)
	}
	copied := map[string]bool{}
	return n, func(r *policies.Override) {
		if !copied[r.Policy] {
			copied[r.Policy] = true
			n.overrides[r.Policy] = n.overrides[r.Policy].clone()
		}
		o, err := validOverride(r)
		if err != nil && !(!all && o.changesNothing()) { // a change to nothing: it is gone
			n.note(rowID{o.Policy, o.Key, o.Match}, o.Version, err, refuse)
			if before := s.overrides[o.Policy]; before != nil {
				if last, ok := before.get(&o); ok {
					n.overrides[o.Policy].set(&o, last)
				}
			}
			return
		}
		n.overrides[o.Policy].set(&o, o.effect())
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
func (s *policyState) note(row rowID, version int64, err error, refuse func(row rowID, err error)) {
	if before, ok := s.refused[row]; !ok || before != version {
		refuse(row, err)
	}
	s.refused[row] = version
}

// setPolicies gives n, which follows s, the policies that were loaded.
func (n *policyState) setPolicies(s *policyState, rows *policies.Rows, refuse func(row rowID, err error)) {
	n.version, n.mark = rows.Version, rows.Mark
	for _, of := range n.overrides {
		of.rules.compile()
	}
	for i := range rows.Policies {
		p, err := storedPolicy(&rows.Policies[i])
		if err != nil {
			n.note(rowID{policy: p.Name}, p.Version, err, refuse)
			at := slices.IndexFunc(s.stored, func(q StoredPolicy) bool { return q.Name == p.Name })
			if at < 0 {
				continue
			}
			p = s.stored[at]
		}
		n.stored = append(n.stored, p)
		n.policies[p.Name] = p.Policy
	}
}

// override applies the override of a valid request's key to its policy, and returns what
// overrides decide about the key. secret is that of the keys as stored.
func (s *policyState) override(policy *Policy, key string, secret []byte, now func() time.Time) (r ruling) {
	of := s.overrides[policy.Name]
	if of == nil {
		return r
	}
	if len(of.keys) > 0 {
		if o, ok := of.keys[hashOf(keys.Stored(key, secret))]; ok && !o.ended(now) {
			o.apply(policy)
			r.add(&o)
		}
	}
	if of.rules != nil && !r.decides() {
		r = of.rules.ruling(key, now)
	}
	return r
}

// ended reports whether the override has ended. It calls now only if there is an end.
func (o *effect) ended(now func() time.Time) bool {
	return o.untilUs != 0 && now().UnixMicro() >= o.untilUs
}

// apply changes a policy, as queries/functions/policy.tmpl does. A burst is only for buckets:
// another program may have another algorithm under the name. A policy that is not valid stays
// so.
func (o *effect) apply(p *Policy) {
	if o.limit != 0 && validUnits(p.Limit) {
		per := p.Limit
		if p.Limit = o.limit; o.times {
			p.Limit, per = times(per, o.limit, 1), 1
		}
		if !p.Algorithm.bucket() {
			p.Burst = 0
		} else if p.Burst > 0 {
			p.Burst = times(p.Burst, o.limit, per)
		}
	}
	if o.burst != 0 && p.Algorithm.bucket() {
		p.Burst = o.burst
	}
	if o.shadow != 0 {
		p.Shadow = o.shadow > 0
	}
}

// times returns units*factor/per within the bounds of a policy's numbers. It removes the
// rounding of a whole product: 1.1 times 100 is 110.
func times(units, factor, per float64) float64 {
	v := units * factor / per
	if whole := math.RoundToEven(v); math.Abs(v-whole) <= v*1e-12 {
		v = whole
	}
	return min(max(v, minUnits), maxUnits)
}

// Times between two looks for changes.
const (
	defaultPollEvery = 500 * time.Millisecond
	minPollEvery     = 10 * time.Millisecond
)

// Times between two writes of a program's row, and the longest name in it.
const (
	defaultPublishEvery = 2 * time.Minute
	minPublishEvery     = time.Second
	maxPublishEvery     = 12 * time.Hour // other programs delete a row that is a day old
	maxProgram          = 200            // characters
)

// newPolicies returns Policies without a store.
func newPolicies(config *PoliciesConfig) (*Policies, error) {
	p := &Policies{now: time.Now}
	if config != nil {
		p.config = *config
	}
	c := &p.config
	c.PollEvery, c.PublishEvery = cmp.Or(c.PollEvery, defaultPollEvery), cmp.Or(c.PublishEvery, defaultPublishEvery)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch n := len(c.KeySecret); {
	case c.PollEvery < minPollEvery:
		return nil, store.Invalid("PoliciesConfig.PollEvery", c.PollEvery.String(), "must be at least "+minPollEvery.String())
	case c.PublishEvery > 0 && (c.PublishEvery < minPublishEvery || c.PublishEvery > maxPublishEvery):
		return nil, store.Invalid("PoliciesConfig.PublishEvery", c.PublishEvery.String(), "must be from 1s to 12h, or negative to list no program")
	case !utf8.ValidString(c.Program) || strings.IndexByte(c.Program, 0) >= 0 || utf8.RuneCountInString(c.Program) > maxProgram:
		return nil, store.Invalid("PoliciesConfig.Program", store.Quote(c.Program), fmt.Sprintf("must be UTF-8 without NUL, of at most %d characters", maxProgram))
	case c.KeySecret != nil && n < keys.MinSecret:
		return nil, store.Invalid("PoliciesConfig.KeySecret", fmt.Sprintf("of %d bytes", n),
			fmt.Sprintf("must have at least %d bytes; use that of Config.KeySecret, or nil", keys.MinSecret))
	}
	c.KeySecret = bytes.Clone(c.KeySecret)
	p.state.Store(&policyState{})
	return p, nil
}

// follower returns one that polls.
func (p *Policies) follower(s policies.Store) *policies.Follower {
	return &policies.Follower{Every: p.config.PollEvery, Store: s, Look: p.look, Failed: p.failed}
}

// open loads, unless Background is set, follows changes and lists the program.
func (p *Policies) open(ctx context.Context, database *policies.Database, f *policies.Follower) (*Policies, error) {
	p.store, p.ofDatabase = database, true
	if p.config.PublishEvery > 0 {
		p.listing = policies.NewHeartbeat(database, p.config.Program, p.config.PublishEvery)
		p.listing.State, p.listing.Failed = p.published, p.unlisted
	}
	if !p.config.Background {
		if err := p.load(ctx, p.store); err != nil {
			return nil, err
		}
	}
	following, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.running.Go(func() { f.Run(following) })
	if p.listing != nil {
		p.running.Go(func() { p.listing.Run(following) })
	}
	return p, nil
}

// published returns what the program's row has.
func (p *Policies) published() (version int64, defaults string, loaded bool) {
	s := p.state.Load()
	all := slices.SortedFunc(maps.Values(s.defaults), func(a, b Policy) int { return cmp.Compare(a.Name, b.Name) })
	text, err := json.Marshal(append([]Policy{}, all...))
	return s.version, string(text), p.loaded.Load() && err == nil
}

// unlisted logs the first of several errors in a row.
func (p *Policies) unlisted(ctx context.Context, err error) {
	p.config.Logger.WarnContext(ctx, "pglimit: this program cannot be listed in pglimit_program; its decisions and policies do not depend on that", "error", err)
}

// look loads if the store has another version than the loaded one. One that is lower is
// that of a database that was restored.
func (p *Policies) look(ctx context.Context, s policies.Store, version int64) error {
	if version == p.Version() && p.loaded.Load() {
		return nil
	}
	return p.load(ctx, s)
}

// failed logs at most one warning a minute.
func (p *Policies) failed(ctx context.Context, err error) {
	if _, ok := p.failing.Next(time.Minute); ok {
		p.config.Logger.WarnContext(ctx, "pglimit: the policies in the database cannot be read; those last known stay",
			"version", p.Version(), "error", err)
	}
}

// load reads all. This process has what was committed before the call when load returns.
func (p *Policies) load(ctx context.Context, s policies.Store) error {
	version, err := p.reload(ctx, s)
	if err != nil {
		return err
	}
	p.loaded.Store(true)
	p.listing.Changed()
	if p.config.OnChange != nil {
		p.config.OnChange(version)
	}
	return nil
}

func (p *Policies) reload(ctx context.Context, s policies.Store) (version int64, err error) {
	p.loading.Lock()
	defer p.loading.Unlock()
	last := p.state.Load()
	refuse := func(row rowID, err error) {
		attributes := []any{"policy", row.policy}
		if row.key != "" {
			attributes = append(attributes, cmp.Or(string(row.match), "key"), row.key)
		}
		p.config.Logger.ErrorContext(ctx, "pglimit: a stored policy or override is not valid; the last known one stays, if there is one", append(attributes, "error", err)...)
	}
	var next *policyState
	rows, err := s.Load(ctx, last.mark, func(all bool) (change func(*policies.Override)) {
		next, change = last.next(all, refuse)
		return change
	})
	if err != nil {
		return 0, err
	}
	next.setPolicies(last, rows, refuse)
	p.state.Store(next)
	if rows.More {
		p.config.Logger.LogAttrs(ctx, slog.LevelError, "pglimit: there are too many overrides; those after the last one loaded, by policy and key, do not apply",
			slog.Int("most", policies.MaxOverrides))
	}
	return rows.Version, nil
}
