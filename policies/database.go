package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// backend has policies and overrides. It is safe for concurrent use.
type backend interface {
	// Version returns the version of all.
	Version(ctx context.Context) (int64, error)
	// Load returns all policies. It calls begin, and the function that begin returns with each
	// override, or with each that has changed since the mark, as far as that
	// is known. One that is gone limits nothing. After a conflict it begins again.
	Load(ctx context.Context, since mark, begin func(all bool) (add func(*Override))) (*loaded, error)
	// Overrides returns the overrides of a policy, or of all if name is empty, by policy, key
	// and match: at most MaxOverrides.
	Overrides(ctx context.Context, name string) ([]Override, error)
	// Apply makes all changes or none, and returns the version after them. It returns
	// ErrChanged or a *missingError.
	Apply(ctx context.Context, e *Edit) (version int64, err error)
	// History returns the last changes, newest first, of one policy and its overrides, or
	// of all if name is empty.
	History(ctx context.Context, name string, limit int64) ([]Change, error)
	// At returns a policy, nil for none, with its override of a key and those with a Match,
	// as of a time, as far as the history goes back. The policy is as of a version, if that is
	// later. An empty key has no overrides.
	At(ctx context.Context, name, key string, at time.Time, version int64) (*Stored, []Override, error)
}

// newDatabase returns the backend in the database of a pool. warn is called once if a pooler
// loses prepared statements.
func newDatabase(connections exec.Connections, warn func(error)) *database {
	run := exec.NewPool(connections, exec.NewCache(warn))
	return &database{run: run, statements: db.New(), heard: make(chan struct{}, 1)}
}

// database is a backend in a database.
type database struct {
	run        exec.Runner
	statements *db.Queries
	hears      bool          // a connection gets notifications
	heard      chan struct{} // one of an event has come
}

// errNoVersion: someone deleted the row.
var errNoVersion = errors.New("pglimit_policy_version has no row: run " +
	"INSERT INTO pglimit_policy_version (version) SELECT coalesce(max(version), 0) FROM pglimit_policy_history")

// explain returns a driver's error as one of the store's errors.
func explain(err error) error {
	var answer interface{ SQLState() string }
	var missing *missingError
	switch {
	case err == nil, err == ErrChanged, errors.As(err, &missing):
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: %w", store.ErrMisconfigured, errNoVersion)
	case errors.As(err, &answer):
		switch code := answer.SQLState(); {
		case code == "54000":
			return fmt.Errorf("%w: %w: delete those that have ended", store.ErrInvalid, err)
		case strings.HasPrefix(code, "23"):
			return fmt.Errorf("%w: %w", store.ErrInvalid, err)
		}
	}
	return exec.Translate(err, false)
}

// Version implements backend.
func (d *database) Version(ctx context.Context) (version int64, err error) {
	err = d.run.Run(ctx, exec.Statement, func(tx db.DBTX) (err error) {
		version, err = d.statements.PolicyVersion(ctx, tx)
		return err
	})
	return version, explain(err)
}

// A load reads page overrides at a time, and at most maxChanges changes.
const (
	page       = 1000
	maxChanges = 5 * page
)

// Load implements backend.
func (d *database) Load(ctx context.Context, since mark, begin func(all bool) (add func(*Override))) (rows *loaded, err error) {
	err = d.run.Run(ctx, exec.Transaction, func(tx db.DBTX) (err error) {
		// All statements see one moment.
		if _, err := tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY`); err != nil {
			return err
		}
		if rows, err = read(ctx, tx); err != nil {
			return err
		}
		if since != (mark{}) {
			changes, err := d.statements.OverridesChanged(ctx, tx, db.OverridesChangedParams{FirstID: since.id, MaxRows: maxChanges})
			if err != nil {
				return err
			}
			if complete(changes, since, rows.version) {
				rows.change(changes, begin(false))
				return nil
			}
		}
		return rows.all(ctx, tx, begin(true))
	})
	return rows, explain(err)
}

// complete reports whether changes, of which the first has the mark, are all up to a
// version. Each version has a change, unless a row of the history was deleted.
func complete(changes []db.OverridesChangedRow, since mark, version int64) bool {
	n := len(changes)
	if n == 0 || n == maxChanges || (mark{changes[0].ID, changes[0].ChangedAtUs}) != since || changes[n-1].ChangedVersion != version {
		return false
	}
	for i := range changes[1:] {
		if changes[i+1].ChangedVersion > changes[i].ChangedVersion+1 {
			return false
		}
	}
	return true
}

// change adds what has changed.
func (r *loaded) change(changes []db.OverridesChangedRow, add func(*Override)) {
	for i := range changes {
		c := &changes[i]
		if r.mark = (mark{c.ID, c.ChangedAtUs}); i == 0 || c.Key == "" {
			continue
		}
		o := overrideOf(&db.OverridesRow{
			Policy: c.Name, Key: c.Key, Match: c.Match, LimitUnits: c.LimitUnits, Factor: c.Factor, Burst: c.Burst, Anchor: c.Anchor, Unlimited: c.Unlimited, Blocked: c.Blocked, Shadow: c.Shadow,
			UntilUs: c.UntilUs, Version: c.Version,
		})
		add(&o)
	}
}

// read returns the version and all policies.
func read(ctx context.Context, tx db.DBTX) (rows *loaded, err error) {
	rows = &loaded{}
	if rows.version, err = db.New().PolicyVersion(ctx, tx); err != nil {
		return nil, err
	}
	policies, err := db.New().Policies(ctx, tx)
	for i := range policies {
		rows.policies = append(rows.policies, policyOf(&policies[i]))
	}
	return rows, err
}

// all adds all overrides.
func (r *loaded) all(ctx context.Context, tx db.DBTX, add func(*Override)) error {
	last, err := db.New().PolicyHistory(ctx, tx, db.PolicyHistoryParams{MaxRows: 1})
	if err != nil {
		return err
	}
	next := db.OverridesParams{MaxRows: page}
	for n := 0; ; {
		some, err := db.New().Overrides(ctx, tx, next)
		if err != nil {
			return err
		}
		for i := range some {
			if n++; n > MaxOverrides {
				r.more = true
				return nil // without a mark: a change of one more would add it
			}
			o := overrideOf(&some[i])
			next.AfterPolicy, next.AfterKey, next.AfterMatch = o.Policy, o.Key, string(o.Match)
			add(&o)
		}
		if len(some) < page {
			break
		}
	}
	if len(last) > 0 {
		r.mark = mark{last[0].ID, last[0].ChangedAtUs}
	}
	return nil
}

// Overrides implements backend.
func (d *database) Overrides(ctx context.Context, name string) (all []Override, err error) {
	err = d.run.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		rows, err := d.statements.Overrides(ctx, tx, db.OverridesParams{Name: name, MaxRows: MaxOverrides})
		all = make([]Override, len(rows))
		for i := range rows {
			all[i] = overrideOf(&rows[i])
		}
		return err
	})
	return all, explain(err)
}

// Apply implements backend.
func (d *database) Apply(ctx context.Context, e *Edit) (version int64, err error) {
	err = d.run.Run(ctx, exec.Transaction, func(tx db.DBTX) (err error) {
		// The lock keeps a row from being inserted between an update and an insert.
		before, err := d.statements.PolicyVersionLock(ctx, tx)
		switch {
		case err != nil:
			return err
		case e.IfVersion != 0 && before != e.IfVersion:
			return ErrChanged
		}
		if err := d.statements.PolicyNote(ctx, tx, e.Note); err != nil {
			return err
		}
		if err := d.delete(ctx, tx, e); err != nil {
			return err
		}
		if err := d.set(ctx, tx, e); err != nil {
			return err
		}
		if version, err = d.statements.PolicyVersion(ctx, tx); err != nil || version != before {
			return err
		}
		if _, err := tx.Exec(ctx, `SAVEPOINT pglimit_trial`); err != nil {
			return err
		}
		if lost, err := Lost(ctx, tx); err != nil || len(lost) > 0 {
			return cmp.Or(err, fmt.Errorf("%w: changes of %s are lost: see `pglimit doctor`", store.ErrMisconfigured, strings.Join(lost, " and ")))
		}
		_, err = tx.Exec(ctx, `ROLLBACK TO SAVEPOINT pglimit_trial`) // the edit changed nothing
		return err
	})
	return version, explain(err)
}

func (d *database) delete(ctx context.Context, tx db.DBTX, e *Edit) error {
	for _, name := range e.Delete {
		n, err := d.statements.PolicyDelete(ctx, tx, name)
		if err != nil {
			return err
		}
		if n == 0 {
			return &missingError{policy: name}
		}
	}
	if len(e.DeleteOverrides) == 0 {
		return nil
	}
	var all db.OverridesDeleteParams
	for _, o := range e.DeleteOverrides {
		all.Policies, all.Keys, all.Matches = append(all.Policies, o.Policy), append(all.Keys, o.Key), append(all.Matches, string(o.Match))
	}
	gone, err := d.statements.OverridesDelete(ctx, tx, all)
	if err != nil || len(gone) == len(e.DeleteOverrides) {
		return err
	}
	deleted := map[db.OverridesDeleteRow]bool{}
	for _, row := range gone {
		deleted[row] = true
	}
	for _, o := range e.DeleteOverrides {
		if !deleted[db.OverridesDeleteRow{Policy: o.Policy, Key: o.Key, Match: string(o.Match)}] {
			return &missingError{o.Policy, o.Key, o.Match}
		}
	}
	return nil
}

func (d *database) set(ctx context.Context, tx db.DBTX, e *Edit) error {
	for i := range e.Set {
		var p db.PolicyUpdateParams
		row := e.Set[i].row()
		copyFields(&p, &row)
		n, err := d.statements.PolicyUpdate(ctx, tx, p)
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if err := d.statements.PolicyInsert(ctx, tx, db.PolicyInsertParams(p)); err != nil {
			return err
		}
	}
	if len(e.SetOverrides) == 0 {
		return nil
	}
	all := columns(e.SetOverrides)
	if err := d.statements.OverridesUpdate(ctx, tx, all); err != nil {
		return err
	}
	return d.statements.OverridesInsert(ctx, tx, db.OverridesInsertParams(all))
}

// columns returns overrides as the parameters of a statement.
func columns(overrides []Override) (all db.OverridesUpdateParams) {
	for _, o := range overrides {
		orZero := func(units *float64) float64 {
			if units == nil {
				return 0
			}
			return *units
		}
		shadow, until := int64(-1), int64(0)
		if o.Shadow != nil {
			shadow = 0
			if *o.Shadow {
				shadow = 1
			}
		}
		if !o.Until.IsZero() {
			until = o.Until.UnixMicro()
		}
		all.Policies, all.Keys, all.Notes = append(all.Policies, o.Policy), append(all.Keys, o.Key), append(all.Notes, o.Note)
		all.Limits, all.Factors = append(all.Limits, orZero(o.Limit)), append(all.Factors, orZero(o.Factor))
		all.Bursts, all.Unlimited = append(all.Bursts, orZero(o.Burst)), append(all.Unlimited, o.Unlimited)
		all.Anchors = append(all.Anchors, o.Anchor)
		all.Matches, all.Blocked = append(all.Matches, string(o.Match)), append(all.Blocked, o.Blocked)
		all.Shadows, all.UntilsUs = append(all.Shadows, shadow), append(all.UntilsUs, until)
	}
	return all
}

// History implements backend.
func (d *database) History(ctx context.Context, name string, limit int64) (all []Change, err error) {
	err = d.run.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		rows, err := d.statements.PolicyHistory(ctx, tx, db.PolicyHistoryParams{Name: name, MaxRows: limit})
		if err != nil {
			return err
		}
		all = make([]Change, len(rows))
		for i := range rows {
			if all[i], err = changeOf(&rows[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return all, explain(err)
}

// At implements backend.
func (d *database) At(ctx context.Context, name, key string, at time.Time, version int64) (p *Stored, all []Override, err error) {
	err = d.run.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		text, err := d.statements.PolicyAt(ctx, tx, db.PolicyAtParams{Name: name, AtUs: at.UnixMicro(), Version: version})
		if err != nil {
			return err
		}
		row, err := decode[policyRow](text)
		if p = row.past(); err != nil || key == "" {
			return err
		}
		rows, err := d.statements.OverridesAt(ctx, tx, db.OverridesAtParams{Name: name, Key: key, AtUs: at.UnixMicro()})
		for i := 0; i < len(rows) && err == nil; i++ {
			var o *overrideRow
			if o, err = decode[overrideRow](rows[i]); err == nil {
				all = append(all, *o.past())
			}
		}
		return err
	})
	return p, all, explain(err)
}

// Probe notifies the sessions that follow changes.
func (d *database) Probe(ctx context.Context, payload string) error {
	return d.run.Run(ctx, exec.Statement, func(tx db.DBTX) error { return d.statements.PolicyProbe(ctx, tx, payload) })
}
