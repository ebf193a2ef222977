package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/policies"
	"github.com/pglimit/pglimit/internal/store"
)

// Apply makes changes in one transaction, all or none, after it has validated all. It
// returns the version after them once this process has them. Changes of others wait until
// they are committed.
//
//   - It returns ErrInvalid, which names field and value, ErrPolicyChanged for
//     IfVersion, or ErrNoPolicy for a deletion of what does not exist.
//   - What is already so is no change: it raises no version and is not in the history.
//   - There can be at most 100,000 overrides, and 1,000 of a policy with a Match, 100 of these
//     patterns. One more is ErrInvalid.
//   - Deleting a policy keeps its overrides. They apply to programs that have a
//     default policy with its name.
func (p *Policies) Apply(ctx context.Context, edit PolicyEdit) (version int64, err error) {
	e, err := p.compileEdit(&edit)
	if err != nil {
		return 0, err
	}
	version, err = p.store.Apply(ctx, e)
	var missing *policies.MissingError
	switch {
	case errors.Is(err, policies.ErrChanged):
		return 0, fmt.Errorf("%w: IfVersion is %d: read them again", ErrPolicyChanged, edit.IfVersion)
	case errors.As(err, &missing):
		return 0, fmt.Errorf("%w: there is %w in the database", ErrNoPolicy, missing)
	case err != nil:
		return 0, err
	case p.Version() == version:
		return version, nil // it changed nothing, or the follower was faster
	}
	if err := p.load(ctx, p.store); err != nil {
		return version, fmt.Errorf("pglimit: the policies are stored as version %d, but this process could not load them yet: %w", version, err)
	}
	return version, nil
}

// compileEdit validates an edit.
func (p *Policies) compileEdit(edit *PolicyEdit) (*policies.Edit, error) {
	if err := validateNote(edit.Note); err != nil {
		return nil, err
	}
	e := &policies.Edit{IfVersion: edit.IfVersion, Note: edit.Note}
	rows := map[rowID]bool{}
	once := func(row rowID) error {
		if rows[row] {
			return fmt.Errorf("%w: PolicyEdit has policy %s, %s %s twice", store.ErrInvalid, store.Quote(row.policy), cmp.Or(row.match, "key"), store.Quote(row.key))
		}
		rows[row] = true
		return nil
	}
	state := p.state.Load()
	set := map[string]Policy{}
	for i := range edit.Set {
		q := &edit.Set[i]
		if err := q.Validate(); err != nil {
			return nil, fmt.Errorf("PolicyEdit.Set[%d]: %w", i, err)
		}
		if err := once(rowID{policy: q.Name}); err != nil {
			return nil, err
		}
		set[q.Name] = q.Policy
		e.Set = append(e.Set, q.row())
	}
	for i, name := range edit.Delete {
		if !validName(name) {
			return nil, store.Invalid(fmt.Sprintf("PolicyEdit.Delete[%d]", i), store.Quote(name), "must match "+nameHelp)
		}
		if err := once(rowID{policy: name}); err != nil {
			return nil, err
		}
		e.Delete = append(e.Delete, name)
	}
	named := func(name string) (Policy, bool) {
		if q, ok := set[name]; ok {
			return q, true
		}
		return state.policy(name)
	}
	for i := range edit.SetOverrides {
		o := &edit.SetOverrides[i]
		if err := o.validate(named); err != nil {
			return nil, fmt.Errorf("PolicyEdit.SetOverrides[%d]: %w", i, err)
		}
		row := o.row()
		row.Key = o.stored(p.config.KeySecret)
		if err := once(rowID{row.Policy, row.Key, o.Match}); err != nil {
			return nil, err
		}
		e.SetOverrides = append(e.SetOverrides, row)
	}
	if n := len(edit.SetOverrides); n > policies.MaxOverrides {
		return nil, store.Invalid("PolicyEdit.SetOverrides", strconv.Itoa(n)+" overrides", fmt.Sprintf("there can be at most %d", policies.MaxOverrides))
	}
	for i, o := range edit.DeleteOverrides {
		if !validName(o.Policy) {
			return nil, store.Invalid(fmt.Sprintf("PolicyEdit.DeleteOverrides[%d].Policy", i), store.Quote(o.Policy), "must match "+nameHelp)
		}
		if err := validateKey(o.Key); err != nil {
			return nil, fmt.Errorf("PolicyEdit.DeleteOverrides[%d]: %w", i, err)
		}
		key := o.stored(p.config.KeySecret)
		if err := once(rowID{o.Policy, key, o.Match}); err != nil {
			return nil, err
		}
		e.DeleteOverrides = append(e.DeleteOverrides, policies.Override{Policy: o.Policy, Key: key, Match: string(o.Match)})
	}
	return e, nil
}

// History returns the last changes of a policy and its overrides, or of all if name is
// empty, newest first, at most limit, which is from 1 to 10,000.
func (p *Policies) History(ctx context.Context, name string, limit int) ([]PolicyChange, error) {
	const most = 10_000
	switch {
	case name != "" && !validName(name):
		return nil, store.Invalid("name", store.Quote(name), "must match "+nameHelp)
	case limit < 1 || limit > most:
		return nil, store.Invalid("limit", strconv.Itoa(limit), fmt.Sprintf("must be from 1 to %d", most))
	}
	rows, err := p.store.History(ctx, name, int64(limit))
	if err != nil {
		return nil, err
	}
	all := make([]PolicyChange, len(rows))
	for i := range rows {
		r := &rows[i]
		all[i] = PolicyChange{
			Version: r.Version, ChangedAt: r.ChangedAt, ChangedBy: r.ChangedBy, Note: r.Note, Name: r.Name, Key: r.Key,
			Before: pastPolicy(r.Before), After: pastPolicy(r.After),
			OverrideBefore: pastOverride(r.OverrideBefore), OverrideAfter: pastOverride(r.OverrideAfter),
		}
	}
	return all, nil
}

// At returns the policy called name that the database had at a time, and the override that
// decided about key, or else changed its limit; nil for none. The time is by the database's
// clock. Before the first entry of the history all is as in that. The error is that of the
// database, or ErrInvalid.
func (p *Policies) At(ctx context.Context, name, key string, at time.Time) (*StoredPolicy, *Override, error) {
	if !validName(name) {
		return nil, nil, store.Invalid("name", store.Quote(name), "must match "+nameHelp)
	}
	if err := validateKey(key); err != nil {
		return nil, nil, err
	}
	policy, rows, err := p.store.At(ctx, name, (&Override{Key: key}).stored(p.config.KeySecret), at, 0)
	if i := deciding(rows, key, at); i >= 0 {
		return pastPolicy(policy), pastOverride(&rows[i]), err
	}
	return pastPolicy(policy), nil, err
}

// deciding is policies.Deciding.
func deciding(rows []policies.Override, key string, at time.Time) int {
	place, first := -1, (*Override)(nil)
	for i := range rows {
		if o := storedOverride(&rows[i]); o.concerns(key, at) && (first == nil || o.before(first)) {
			place, first = i, &o
		}
	}
	return place
}

// AtVersion returns the policy called name that the database had at a version, nil for none.
// The error is that of the database, or ErrInvalid.
func (p *Policies) AtVersion(ctx context.Context, name string, version int64) (*StoredPolicy, error) {
	if !validName(name) {
		return nil, store.Invalid("name", store.Quote(name), "must match "+nameHelp)
	}
	policy, _, err := p.store.At(ctx, name, "", time.Unix(0, 0), version)
	return pastPolicy(policy), err
}

// pastPolicy returns a row of the history, valid or not.
func pastPolicy(r *policies.Policy) *StoredPolicy {
	if r == nil {
		return nil
	}
	p, _ := storedPolicy(r)
	return &p
}

func pastOverride(r *policies.Override) *Override {
	if r == nil {
		return nil
	}
	o := storedOverride(r)
	return &o
}
