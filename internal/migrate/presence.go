package migrate

import (
	"context"
	"slices"
)

// Presence reports which of the objects that a migration creates exist in a database, and
// whether they are as it makes them.
type Presence struct {
	// Version is the migration's number, from 1, and Name the name of its file without
	// the number and .sql.
	Version int64
	Name    string
	// Present and Missing are the objects that exist and that do not, in the order of
	// the migration: tables, indexes, views, triggers and functions by name, and settings
	// such as "fillfactor of pglimit_token_bucket". Both are empty for a migration that creates none.
	Present, Missing []string
	// Changed says in what objects that exist are not as the migration makes them, such as
	// "pglimit_token_bucket without cost double precision NOT NULL". What they have besides is not
	// in it.
	Changed []string
}

// Complete reports whether the migration creates objects and all of them exist as it makes
// them.
func (p Presence) Complete() bool { return len(p.Present) > 0 && len(p.Wrong()) == 0 }

// Wrong lists what [Set.Up] makes again, such as "pglimit_keys missing", and Changed.
func (p Presence) Wrong() (all []string) {
	for _, name := range p.Missing {
		all = append(all, name+" missing")
	}
	return append(all, p.Changed...)
}

// Present returns what stands of each migration, in order of the versions, however it was
// created: also by exported migrations in an application's goose folder, or by printed SQL,
// which the set does not record. It looks in the schema of the tables. Present only reads.
func (s *Set) Present(ctx context.Context, tx Tx) ([]Presence, error) {
	stands, err := Standing(ctx, tx)
	if err != nil {
		return nil, s.explain(err)
	}
	return s.present(stands), nil
}

func (s *Set) present(stands []Part) (all []Presence) {
	parts := parts(s.made)
	for _, f := range s.list() {
		p := Presence{Version: f.version, Name: f.name}
		for _, m := range parts {
			if m.version != f.version {
				continue
			}
			exists, as := slices.ContainsFunc(stands, m.of), slices.ContainsFunc(stands, m.is)
			switch {
			case !exists:
				p.Missing = append(p.Missing, m.label())
			case !as:
				p.Changed = append(p.Changed, m.String())
			}
			if as || exists && m.since == f.version {
				p.Present = append(p.Present, m.label())
			}
		}
		p.Present, p.Missing = slices.Compact(p.Present), slices.Compact(p.Missing)
		all = append(all, p)
	}
	return all
}
