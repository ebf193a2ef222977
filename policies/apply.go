package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
	"github.com/pglimit/pglimit/limiter"
)

// Apply makes changes in one transaction, all or none, after it has validated all. It
// returns the version after them once this process has them. Changes of others wait until
// they are committed.
//
//   - It returns limiter.ErrInvalid, which names field and value, ErrChanged for
//     IfVersion, or ErrNoPolicy for a deletion of what does not exist.
//   - What is already so is no change: it raises no version and is not in the history.
//   - There can be at most 100,000 overrides, and 1,000 of a policy with a Match, 100 of these
//     patterns. One more is limiter.ErrInvalid.
//   - Deleting a policy keeps its overrides. They apply to programs that have a
//     default policy with its name.
func (p *Policies) Apply(ctx context.Context, edit Edit) (version int64, err error) {
	e, err := p.compile(&edit)
	if err != nil {
		return 0, err
	}
	version, err = p.rows.Apply(ctx, e)
	var missing *missingError
	switch {
	case errors.Is(err, ErrChanged):
		return 0, fmt.Errorf("%w: IfVersion is %d: read them again", ErrChanged, edit.IfVersion)
	case errors.As(err, &missing):
		return 0, fmt.Errorf("%w: there is %w in the database", ErrNoPolicy, missing)
	case err != nil:
		return 0, err
	case p.Version() == version:
		return version, nil // it changed nothing, or the follower was faster
	}
	if err := p.load(ctx, p.rows); err != nil {
		return version, fmt.Errorf("pglimit: the policies are stored as version %d, but this process could not load them yet: %w", version, err)
	}
	return version, nil
}

// compile validates an edit, and returns it with keys and numbers as they are stored.
func (p *Policies) compile(edit *Edit) (*Edit, error) {
	if err := validateNote(edit.Note); err != nil {
		return nil, err
	}
	e, rows, set := &Edit{IfVersion: edit.IfVersion, Note: edit.Note}, once{}, map[string]limiter.Policy{}
	for i, q := range edit.Set {
		if err := q.Validate(); err != nil {
			return nil, fmt.Errorf("Edit.Set[%d]: %w", i, err)
		}
		if err := rows.add(rowID{policy: q.Name}); err != nil {
			return nil, err
		}
		set[q.Name] = q.Policy
		q.MaxTTL = cmp.Or(q.MaxTTL, defaultMaxTTL)
		e.Set = append(e.Set, q)
	}
	for i, name := range edit.Delete {
		if !valid.Name(name) {
			return nil, store.Invalid(fmt.Sprintf("Edit.Delete[%d]", i), store.Quote(name), "must match "+valid.NameHelp)
		}
		if err := rows.add(rowID{policy: name}); err != nil {
			return nil, err
		}
		e.Delete = append(e.Delete, name)
	}
	state := p.state.Load()
	named := func(name string) (limiter.Policy, bool) {
		if q, ok := set[name]; ok {
			return q, true
		}
		return state.policy(name)
	}
	return e, p.compileOverrides(edit, e, rows, named)
}

// compileOverrides adds the overrides of an edit to e. named returns a policy as it is after the
// edit.
func (p *Policies) compileOverrides(edit, e *Edit, rows once, named func(string) (limiter.Policy, bool)) error {
	for i := range edit.SetOverrides {
		o := &edit.SetOverrides[i]
		if err := o.validate(named); err != nil {
			return fmt.Errorf("Edit.SetOverrides[%d]: %w", i, err)
		}
		row := o.normal(p.config.KeySecret)
		if err := rows.add(idOf(&row)); err != nil {
			return err
		}
		e.SetOverrides = append(e.SetOverrides, row)
	}
	if n := len(edit.SetOverrides); n > MaxOverrides {
		return store.Invalid("Edit.SetOverrides", strconv.Itoa(n)+" overrides", fmt.Sprintf("there can be at most %d", MaxOverrides))
	}
	for i, o := range edit.DeleteOverrides {
		if !valid.Name(o.Policy) {
			return store.Invalid(fmt.Sprintf("Edit.DeleteOverrides[%d].Policy", i), store.Quote(o.Policy), "must match "+valid.NameHelp)
		}
		if err := valid.Key(o.Key); err != nil {
			return fmt.Errorf("Edit.DeleteOverrides[%d]: %w", i, err)
		}
		o.Key = o.stored(p.config.KeySecret)
		if err := rows.add(idOf(&o)); err != nil {
			return err
		}
		e.DeleteOverrides = append(e.DeleteOverrides, o)
	}
	return nil
}

// once is the rows of an edit.
type once map[rowID]bool

// add returns an error if row is in the edit already.
func (o once) add(row rowID) error {
	if o[row] {
		return fmt.Errorf("%w: Edit has policy %s, %s %s twice", store.ErrInvalid, store.Quote(row.policy), cmp.Or(row.match, "key"), store.Quote(row.key))
	}
	o[row] = true
	return nil
}

// History returns the last changes of a policy and its overrides, or of all if name is
// empty, newest first, at most limit, which is from 1 to 10,000.
func (p *Policies) History(ctx context.Context, name string, limit int) ([]Change, error) {
	const most = 10_000
	switch {
	case name != "" && !valid.Name(name):
		return nil, store.Invalid("name", store.Quote(name), "must match "+valid.NameHelp)
	case limit < 1 || limit > most:
		return nil, store.Invalid("limit", strconv.Itoa(limit), fmt.Sprintf("must be from 1 to %d", most))
	}
	return p.rows.History(ctx, name, int64(limit))
}

// At returns the policy called name that the database had at a time, and the override that
// decided about key, or else changed its limit; nil for none. The time is by the database's
// clock. Before the first entry of the history all is as in that. The error is that of the
// database, or limiter.ErrInvalid.
func (p *Policies) At(ctx context.Context, name, key string, at time.Time) (*Stored, *Override, error) {
	if !valid.Name(name) {
		return nil, nil, store.Invalid("name", store.Quote(name), "must match "+valid.NameHelp)
	}
	if err := valid.Key(key); err != nil {
		return nil, nil, err
	}
	policy, all, err := p.rows.At(ctx, name, (&Override{Key: key}).stored(p.config.KeySecret), at, 0)
	if i := Deciding(all, key, at); i >= 0 {
		return policy, &all[i], err
	}
	return policy, nil, err
}

// Deciding returns the index of the override that decides about a key at a time, or else changes
// its limit; -1 for none. The overrides are of one policy, and have the key or a Match. The key is
// as its caller has it: a hash matches nothing.
func Deciding(all []Override, key string, at time.Time) int {
	place := -1
	for i := range all {
		if all[i].concerns(key, at) && (place < 0 || all[i].before(&all[place])) {
			place = i
		}
	}
	return place
}

// AtVersion returns the policy called name that the database had at a version, nil for none.
// The error is that of the database, or limiter.ErrInvalid.
func (p *Policies) AtVersion(ctx context.Context, name string, version int64) (*Stored, error) {
	if !valid.Name(name) {
		return nil, store.Invalid("name", store.Quote(name), "must match "+valid.NameHelp)
	}
	policy, _, err := p.rows.At(ctx, name, "", time.Unix(0, 0), version)
	return policy, err
}
