package sample

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Overrides returns the overrides of a policy.
func (s *Source) Overrides(ctx context.Context, policy string) (dashboard.Overrides, error) {
	err := s.call(ctx, "Overrides")
	defer s.mu.Unlock()
	all := dashboard.Overrides{At: s.now(), Overrides: []inspect.Override{}}
	for _, key := range slices.Sorted(maps.Keys(s.overrides)) {
		if o := s.overrides[key]; o.Policy == policy {
			all.Overrides = append(all.Overrides, o)
		}
	}
	return all, err
}

// Current returns what an edit changes.
func (s *Source) Current(ctx context.Context, e dashboard.Edit) (dashboard.Current, error) {
	err := s.call(ctx, "Current")
	defer s.mu.Unlock()
	c := dashboard.Current{At: s.now(), Version: s.version}
	name := ""
	if e.Policy != nil {
		name = e.Policy.Name
	} else {
		name = e.Override.Policy
		if o, is := s.overrides[e.Override.Key]; is && o.Policy == name {
			c.Override = new(o.Stored())
		}
	}
	if i := s.policy(name); i >= 0 {
		c.Policy = new(s.policies[i])
	}
	return c, err
}

// asRow is the reverse of inspect.Override.Limiter.
func asRow(o policies.Override) *inspect.Override {
	row := &inspect.Override{Policy: o.Policy, Key: o.Key, Match: string(o.Match), Limit: o.Limit, Factor: o.Factor, Burst: o.Burst, Anchor: o.Anchor, Unlimited: o.Unlimited, Blocked: o.Blocked, Shadow: o.Shadow, Note: o.Note, ChangedBy: "ops"}
	if !o.Until.IsZero() {
		row.Until = &o.Until
	}
	return row
}

func (s *Source) policy(name string) int {
	return slices.IndexFunc(s.policies, func(p policies.Stored) bool { return p.Name == name })
}

// Facts adds up denials and rows.
func (s *Source) Facts(ctx context.Context, e dashboard.Edit, _ limiter.Algorithm, since time.Time, burst float64) (dashboard.Facts, error) {
	err := s.call(ctx, "Facts")
	defer s.mu.Unlock()
	f, name, key, slots := dashboard.Facts{Since: since}, "", "", s.denials
	if e.Policy != nil {
		name = e.Policy.Name
	} else {
		name, key = e.Override.Policy, e.Override.Key
		slots = s.denialsOf(key)
	}
	for _, d := range slots {
		if d.Policy == name && !d.Start.Before(since) {
			f.Denials, f.Shadowed, f.Blocked, f.AboveBurst = f.Denials+d.Denials, f.Shadowed+d.Shadowed, f.Blocked+d.Blocked, f.AboveBurst+d.AboveBurst
		}
	}
	for _, r := range s.rows {
		if r.Policy == name && (key == "" || r.Key == key) {
			if f.Keys++; r.Level != nil && *r.Level > burst {
				f.Above++
			}
		}
	}
	return f, err
}

// Touch raises the version, as a change by others does.
func (s *Source) Touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
}

// Apply makes an edit in memory.
func (s *Source) Apply(ctx context.Context, e dashboard.Edit) (int64, error) {
	err := s.call(ctx, "Apply")
	defer s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if e.Version != 0 && e.Version != s.version {
		return 0, policies.ErrChanged
	}
	key := ""
	if e.Override != nil {
		key = e.Override.Key
	}
	edit := e.PolicyEdit(key)
	edit.IfVersion = 0 // that of the sample differs
	if _, err := s.applied.Apply(ctx, edit); err != nil {
		return 0, err
	}
	s.version++
	for _, p := range edit.Set {
		p.Version, p.ChangedAt, p.ChangedBy = s.version, s.now(), "ops"
		before := (*policies.Stored)(nil)
		if i := s.policy(p.Name); i >= 0 {
			before = new(s.policies[i])
			s.policies[i] = p
		} else {
			s.policies = append(s.policies, p)
		}
		s.history = slices.Insert(s.history, 0, policies.Change{Version: s.version, ChangedAt: s.now(), ChangedBy: "ops", Note: p.Note, Name: p.Name, Before: before, After: &p})
	}
	for _, name := range edit.Delete {
		s.policies = slices.DeleteFunc(s.policies, func(p policies.Stored) bool { return p.Name == name })
	}
	for _, o := range edit.SetOverrides {
		s.overrides[o.Key] = *asRow(o)
	}
	for _, o := range edit.DeleteOverrides {
		delete(s.overrides, o.Key)
	}
	return s.version, nil
}
