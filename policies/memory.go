package policies

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// maxHistory is the number of changes that a memory remembers.
const maxHistory = 10_000

// newMemory returns a backend in this process. now stamps changes.
func newMemory(now func() time.Time) *memory {
	return &memory{now: now, policies: map[string]Stored{}, overrides: map[rowID]Override{}}
}

// memory is a backend in this process: what database and its triggers do.
type memory struct {
	now func() time.Time

	mu        sync.Mutex
	version   int64
	policies  map[string]Stored
	overrides map[rowID]Override
	history   []Change // oldest first
}

// Version implements backend.
func (m *memory) Version(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version, nil
}

// Load implements backend.
func (m *memory) Load(_ context.Context, _ mark, begin func(all bool) (add func(*Override))) (*loaded, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	add := begin(true)
	for _, o := range m.overrides {
		add(&o)
	}
	rows := &loaded{version: m.version}
	for _, name := range slices.Sorted(maps.Keys(m.policies)) {
		rows.policies = append(rows.policies, m.policies[name].row())
	}
	return rows, nil
}

// Overrides implements backend.
func (m *memory) Overrides(_ context.Context, name string) (all []Override, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.overrides {
		if name == "" || o.Policy == name {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b Override) int {
		return cmp.Or(cmp.Compare(a.Policy, b.Policy), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Match, b.Match))
	})
	return all, nil
}

// History implements backend.
func (m *memory) History(_ context.Context, name string, limit int64) (all []Change, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range slices.Backward(m.history) {
		if (name == "" || c.Name == name) && int64(len(all)) < limit {
			all = append(all, c)
		}
	}
	return all, nil
}

// At implements backend.
func (m *memory) At(_ context.Context, name, key string, at time.Time, version int64) (p *Stored, all []Override, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now, ok := m.policies[name]; ok {
		p = &now
	}
	was := maps.Clone(m.overrides)
	for _, c := range slices.Backward(m.history) {
		switch before := c.OverrideBefore; {
		case c.Name != name || !c.ChangedAt.After(at):
		case c.Key == "":
			if c.Version > version {
				p = c.Before
			}
		case before == nil:
			delete(was, idOf(c.OverrideAfter))
		default:
			was[idOf(before)] = *before
		}
	}
	for id, o := range was {
		if id.policy == name && (id.match != "" || id.key == key) {
			all = append(all, o)
		}
	}
	return p, all, nil
}

// Apply implements backend.
func (m *memory) Apply(ctx context.Context, e *Edit) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.IfVersion != 0 && e.IfVersion != m.version {
		return 0, ErrChanged
	}
	if err := m.refuse(e); err != nil {
		return 0, err
	}
	at, next := m.now().UTC().Truncate(time.Microsecond), m.version+1
	note := func(c Change, before, after string) {
		if c.Note = e.Note; c.Note == "" && before != after {
			c.Note = after
		}
		c.Version, c.ChangedAt = next, at
		m.version, m.history = next, append(m.history, c)
	}
	for _, name := range e.Delete {
		before := m.policies[name]
		delete(m.policies, name)
		note(Change{Name: name, Before: &before}, "", "")
	}
	for _, o := range e.DeleteOverrides {
		before := m.overrides[idOf(&o)]
		delete(m.overrides, idOf(&o))
		note(Change{Name: o.Policy, Key: o.Key, OverrideBefore: &before}, "", "")
	}
	for _, p := range e.Set {
		c := Change{Name: p.Name, After: &p}
		before, ok := m.policies[p.Name]
		if ok {
			c.Before = &before
		}
		if c.Before != nil && samePolicy(*c.Before, p) {
			continue
		}
		p.Version, p.ChangedAt = next, at
		m.policies[p.Name] = p
		note(c, before.Note, p.Note)
	}
	for _, o := range e.SetOverrides {
		c := Change{Name: o.Policy, Key: o.Key, OverrideAfter: &o}
		before, ok := m.overrides[idOf(&o)]
		if ok {
			c.OverrideBefore = &before
		}
		if c.OverrideBefore != nil && sameOverride(*c.OverrideBefore, o) {
			continue
		}
		o.Version, o.ChangedAt = next, at
		m.overrides[idOf(&o)] = o
		note(c, before.Note, o.Note)
	}
	m.history = m.history[max(0, len(m.history)-maxHistory):]
	return m.version, nil
}

// refuse returns the error of an edit that cannot be made.
func (m *memory) refuse(e *Edit) error {
	for _, name := range e.Delete {
		if _, ok := m.policies[name]; !ok {
			return &missingError{policy: name}
		}
	}
	for _, o := range e.DeleteOverrides {
		if _, ok := m.overrides[idOf(&o)]; !ok {
			return &missingError{o.Policy, o.Key, o.Match}
		}
	}
	more, rules, patterns := 0, map[string]int{}, map[string]int{} // by policy
	count := func(policy string, match Match, n int) {
		if match != "" {
			rules[policy] += n
		}
		if match == MatchPattern {
			patterns[policy] += n
		}
	}
	for id := range m.overrides {
		count(id.policy, id.match, 1)
	}
	for _, o := range e.DeleteOverrides {
		count(o.Policy, o.Match, -1)
	}
	for _, o := range e.SetOverrides {
		if _, ok := m.overrides[idOf(&o)]; !ok {
			more++
			count(o.Policy, o.Match, 1)
		}
	}
	for name, n := range rules {
		if n > MaxRules || patterns[name] > MaxPatterns {
			return fmt.Errorf("%w: pglimit: a policy can have at most %d overrides with a match, and of these %d patterns", store.ErrInvalid, MaxRules, MaxPatterns)
		}
	}
	if len(m.overrides)-len(e.DeleteOverrides)+more > MaxOverrides {
		return fmt.Errorf("%w: pglimit: there can be at most %d overrides", store.ErrInvalid, MaxOverrides)
	}
	return nil
}

// samePolicy compares all but the stamps.
func samePolicy(a, b Stored) bool {
	a.Version, a.ChangedAt, a.ChangedBy = b.Version, b.ChangedAt, b.ChangedBy
	return a == b
}

// sameOverride compares all but the stamps.
func sameOverride(a, b Override) bool {
	a.Version, a.ChangedAt, a.ChangedBy = b.Version, b.ChangedAt, b.ChangedBy
	return reflect.DeepEqual(a, b)
}
