package memory

import (
	"strings"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// tries are the rows of a key's attempts, by their source: "" is that of all sources which have
// not succeeded before. It is a State only to be kept in an entry.
type tries struct {
	algorithm.State
	rows map[string]*tried
}

// tried is a row with the rules of its last Attempt.
type tried struct {
	algorithm.Tries
	rules algorithm.AttemptRules
}

// Seen returns nothing: the outcome of attempts is op.Attempt.
func (*tries) Seen(*algorithm.Rules, int64, int64, float64, float64) algorithm.View { return nil }

// IdleAt returns the time from which all rows decide as missing ones.
func (s *tries) IdleAt(*algorithm.Rules) (at int64) {
	for _, row := range s.rows {
		at = max(at, row.EmptyAt(&row.rules), row.KnownUntil)
	}
	return at
}

// row returns a source's row, with a clock that does not move back.
func (s *tries) row(source string, now int64) (*tried, int64) {
	row := s.rows[source]
	if row == nil {
		row = &tried{Tries: algorithm.Tries{UpdatedAt: now}}
		s.rows[strings.Clone(source)] = row
	}
	return row, max(row.UpdatedAt, now)
}

// blockedUntil returns the end of the block of all sources.
func (s *tries) blockedUntil() int64 {
	if row := s.rows[""]; row != nil {
		return row.BlockedUntil
	}
	return 0
}

// attempts carries out an op about attempts.
func (m *Store) attempts(op *store.Op) error {
	if op.Kind == store.Reset {
		m.reset(&op.Query)
		return nil
	}
	found := false
	_, err := m.with(&op.Query, op.Kind == store.Attempt || op.Kind == store.Block, func(e *entry, now, _ int64) float64 {
		found = e.state.(*tries).do(op, now)
		return 0
	})
	if err == nil && !found && (op.Kind == store.Succeeded || op.Kind == store.Failed) {
		err = store.NoTicket(op)
	}
	return err
}

// do carries out an op about the rows of one key. It reports whether a ticket was found.
func (s *tries) do(op *store.Op, now int64) (found bool) {
	a := op.Attempt
	switch op.Kind {
	case store.Attempt:
		source := ""
		if known := s.rows[a.Source]; a.Source != "" && known != nil && known.KnownUntil > now {
			source = a.Source
		}
		row, at := s.row(source, now)
		row.rules = a.Rules
		a.Granted = row.Begin(&a.Rules, at, s.blockedUntil(), strings.Clone(op.ID), strings.Clone(a.Source), at+a.TTL)
		s.saw(op, row, now, at)
	case store.Succeeded, store.Failed:
		return s.report(op, now)
	case store.GetAttempts:
		row := &tried{Tries: algorithm.Tries{UpdatedAt: now}}
		if shared := s.rows[""]; shared != nil {
			row.Tries = *shared.Clone()
		}
		at := max(row.UpdatedAt, now)
		row.Fold(&a.Rules, at)
		s.saw(op, row, now, at)
	case store.Block:
		row, at := s.row("", 0) // its clock does not move
		row.BlockedUntil = max(row.BlockedUntil, max(at, now)+op.ForUs)
	case store.Unblock:
		for _, row := range s.rows {
			row.Unblock(&row.rules, max(row.UpdatedAt, now))
		}
	}
	return false
}

// report ends the ticket of a Succeeded or Failed, in the row that has it.
func (s *tries) report(op *store.Op, now int64) (found bool) {
	for source, row := range s.rows {
		at := max(row.UpdatedAt, now)
		from, has := row.End(&row.rules, at, op.ID)
		switch {
		case !has:
			continue
		case op.Kind == store.Failed:
			row.Fail(&row.rules, at)
		default:
			row.Succeed()
			if source == "" && from != "" && s.remembers(from, at) {
				known, _ := s.row(from, at)
				if known.rules.AtOnce == 0 {
					known.rules = row.rules
				}
				known.KnownUntil = max(known.KnownUntil, at+store.KnownFor)
			} else if source != "" {
				row.KnownUntil = at + store.KnownFor
			}
		}
		s.saw(op, row, now, at)
		return true
	}
	return false
}

// remembers reports whether a success at a time makes a source known: if it is already, or few are.
func (s *tries) remembers(source string, at int64) bool {
	known := 0
	for of, row := range s.rows {
		if row.KnownUntil > at {
			known++
			if of == source {
				return true
			}
		}
	}
	return known < store.MostKnown
}

// saw sets the outcome of an op that was decided in a row.
func (s *tries) saw(op *store.Op, row *tried, now, at int64) {
	op.Outcome = store.Outcome{Decided: true, Now: now, UpdatedAt: at}
	op.Attempt.Tries = row.Clone()
	op.Attempt.Tries.BlockedUntil = s.blockedUntil()
	if op.Kind != store.GetAttempts {
		op.Attempt.Rules = row.rules
	}
}
