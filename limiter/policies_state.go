package limiter

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/policies"
)

// policyState is all policies and overrides at one version. It does not change.
type policyState struct {
	version   int64
	stored    []StoredPolicy
	overrides []Override
	policies  map[string]Policy
	defaults  map[string]Policy
	// byKey has the overrides by policy and stored key; nil if there are none.
	byKey map[string]map[string]*Override
	// refused has the version of each row that is not valid and was logged.
	refused map[rowID]int64
}

// rowID names a policy, or an override if key is not empty.
type rowID struct{ policy, key string }

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

// next returns the state of rows that were loaded. A row that is not valid keeps the last
// known one, or is left out, and is logged once.
func (s *policyState) next(rows *policies.Rows, refuse func(row rowID, err error)) *policyState {
	n := &policyState{version: rows.Version, defaults: s.defaults, refused: map[rowID]int64{}, policies: map[string]Policy{}}
	note := func(row rowID, version int64, err error) {
		n.refused[row] = version
		if before, ok := s.refused[row]; !ok || before != version {
			refuse(row, err)
		}
	}
	for i := range rows.Policies {
		p, err := storedPolicy(&rows.Policies[i])
		if err != nil {
			note(rowID{p.Name, ""}, p.Version, err)
			at := slices.IndexFunc(s.stored, func(q StoredPolicy) bool { return q.Name == p.Name })
			if at < 0 {
				continue
			}
			p = s.stored[at]
		}
		n.stored = append(n.stored, p)
		n.policies[p.Name] = p.Policy
	}
	n.overrides = make([]Override, 0, len(rows.Overrides)) // byKey points into it
	for i := range rows.Overrides {
		o := storedOverride(&rows.Overrides[i])
		// A burst that its policy has no use for stays: apply ignores it, as the SQL functions do.
		if err := o.validate(func(string) (Policy, bool) { return Policy{}, false }); err != nil {
			note(rowID{o.Policy, o.Key}, o.Version, err)
			before := s.byKey[o.Policy][o.Key]
			if before == nil {
				continue
			}
			o = *before
		}
		n.overrides = append(n.overrides, o)
		if n.byKey == nil {
			n.byKey = map[string]map[string]*Override{}
		}
		if n.byKey[o.Policy] == nil {
			n.byKey[o.Policy] = map[string]*Override{}
		}
		n.byKey[o.Policy][o.Key] = &n.overrides[len(n.overrides)-1]
	}
	return n
}

// override applies the override of a valid request's key to its policy. It reports whether
// the key is unlimited. secret is that of the keys as stored.
func (s *policyState) override(policy *Policy, key string, secret []byte, now func() time.Time) (unlimited bool) {
	if s.byKey == nil {
		return false
	}
	of := s.byKey[policy.Name]
	if of == nil {
		return false
	}
	o := of[keys.Stored(key, secret)]
	if o == nil || !o.Until.IsZero() && !now().Before(o.Until) {
		return false
	}
	o.apply(policy)
	return o.Unlimited
}

// apply changes a policy. A Burst is only for buckets: another program may have another
// algorithm under the name.
func (o *Override) apply(p *Policy) {
	if o.Limit != nil {
		p.Limit = *o.Limit
		if !p.Algorithm.bucket() {
			p.Burst = 0
		}
	}
	if o.Burst != nil && p.Algorithm.bucket() {
		p.Burst = *o.Burst
	}
	if o.Shadow != nil {
		p.Shadow = *o.Shadow
	}
}

// load reads all. This process has what was committed before the call when load returns.
func (p *Policies) load(ctx context.Context) error {
	version, err := p.reload(ctx)
	if err == nil && p.config.OnChange != nil {
		p.config.OnChange(version)
	}
	return err
}

func (p *Policies) reload(ctx context.Context) (version int64, err error) {
	p.loading.Lock()
	defer p.loading.Unlock()
	rows, err := p.store.Load(ctx)
	if err != nil {
		return 0, err
	}
	p.state.Store(p.state.Load().next(rows, func(row rowID, err error) {
		attributes := []any{"policy", row.policy}
		if row.key != "" {
			attributes = append(attributes, "key", row.key)
		}
		p.config.Logger.ErrorContext(ctx, "pglimit: a stored policy or override is not valid; the last known one stays, if there is one", append(attributes, "error", err)...)
	}))
	if rows.More {
		p.config.Logger.LogAttrs(ctx, slog.LevelError, "pglimit: there are too many overrides; those after the last one loaded, by policy and key, do not apply",
			slog.Int("most", policies.MaxOverrides))
	}
	return rows.Version, nil
}
