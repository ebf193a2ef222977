package policies

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Store has policies and overrides. It is safe for concurrent use.
type Store interface {
	// Version returns the version of all.
	Version(ctx context.Context) (int64, error)
	// Load returns all.
	Load(ctx context.Context) (*Rows, error)
	// Apply makes all changes or none, and returns the version after them. It returns
	// ErrChanged or a *MissingError.
	Apply(ctx context.Context, e *Edit) (version int64, err error)
	// History returns the last changes, newest first, of one policy and its overrides, or
	// of all if name is empty.
	History(ctx context.Context, name string, limit int64) ([]Change, error)
}

// NewDatabase returns the Store in the database of a pool. warn is called once if a pooler
// loses prepared statements.
func NewDatabase(connections exec.Connections, warn func(error)) *Database {
	run := exec.NewFallback(exec.NewPool(connections), connections, exec.NewCache(warn))
	return &Database{run: run, statements: db.New()}
}

// Database is a Store in a database.
type Database struct {
	run        exec.Runner
	statements *db.Queries
}

// errNoVersion: someone deleted the row.
var errNoVersion = errors.New("pglimit_policy_version has no row: run " +
	"INSERT INTO pglimit_policy_version (version) SELECT coalesce(max(version), 0) FROM pglimit_policy_history")

// explain returns a driver's error as one of the store's errors.
func explain(err error) error {
	var answer interface{ SQLState() string }
	var missing *MissingError
	switch {
	case err == nil, err == ErrChanged, errors.As(err, &missing):
		return err
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("%w: %w", store.ErrMisconfigured, errNoVersion)
	case errors.As(err, &answer):
		switch code := answer.SQLState(); {
		case code == "54000":
			return fmt.Errorf("%w: %w: delete those that have ended, or use another policy for many keys with the same limit", store.ErrInvalid, err)
		case strings.HasPrefix(code, "23"):
			return fmt.Errorf("%w: %w", store.ErrInvalid, err)
		}
	}
	return exec.Translate(err, false)
}

// Version implements Store.
func (d *Database) Version(ctx context.Context) (version int64, err error) {
	err = d.run.Do(ctx, func(tx db.DBTX) (err error) {
		version, err = d.statements.PolicyVersion(ctx, tx)
		return err
	})
	return version, explain(err)
}

// Load implements Store.
func (d *Database) Load(ctx context.Context) (*Rows, error) {
	rows := &Rows{}
	err := d.run.Within(ctx, func(tx db.DBTX) (err error) {
		// All statements see one moment.
		if _, err := tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY`); err != nil {
			return err
		}
		if rows.Version, err = d.statements.PolicyVersion(ctx, tx); err != nil {
			return err
		}
		policies, err := d.statements.Policies(ctx, tx)
		if err != nil {
			return err
		}
		overrides, err := d.statements.Overrides(ctx, tx, MaxOverrides+1)
		if err != nil {
			return err
		}
		if rows.More = len(overrides) > MaxOverrides; rows.More {
			overrides = overrides[:MaxOverrides]
		}
		rows.Policies, rows.Overrides = make([]Policy, len(policies)), make([]Override, len(overrides))
		for i := range policies {
			rows.Policies[i] = policyOf(&policies[i])
		}
		for i := range overrides {
			rows.Overrides[i] = overrideOf(&overrides[i])
		}
		return nil
	})
	if err != nil {
		return nil, explain(err)
	}
	return rows, nil
}

// Apply implements Store.
func (d *Database) Apply(ctx context.Context, e *Edit) (version int64, err error) {
	err = d.run.Within(ctx, func(tx db.DBTX) (err error) {
		// The lock keeps a row from being inserted between an update and an insert.
		before, err := d.statements.PolicyVersionLock(ctx, tx)
		switch {
		case err != nil:
			return err
		case e.IfVersion != 0 && before != e.IfVersion:
			return ErrChanged
		}
		if err := d.delete(ctx, tx, e); err != nil {
			return err
		}
		if err := d.set(ctx, tx, e); err != nil {
			return err
		}
		version, err = d.statements.PolicyVersion(ctx, tx)
		return err
	})
	return version, explain(err)
}

func (d *Database) delete(ctx context.Context, tx db.DBTX, e *Edit) error {
	if len(e.Delete) == 0 && len(e.DeleteOverrides) == 0 {
		return nil
	}
	if err := d.statements.PolicyNote(ctx, tx, e.Note); err != nil {
		return err
	}
	for _, name := range e.Delete {
		n, err := d.statements.PolicyDelete(ctx, tx, name)
		if err != nil {
			return err
		}
		if n == 0 {
			return &MissingError{Policy: name}
		}
	}
	if len(e.DeleteOverrides) == 0 {
		return nil
	}
	var all db.OverridesDeleteParams
	for _, o := range e.DeleteOverrides {
		all.Policies, all.Keys = append(all.Policies, o.Policy), append(all.Keys, o.Key)
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
		if !deleted[db.OverridesDeleteRow{Policy: o.Policy, Key: o.Key}] {
			return &MissingError{o.Policy, o.Key}
		}
	}
	return nil
}

func (d *Database) set(ctx context.Context, tx db.DBTX, e *Edit) error {
	for i := range e.Set {
		p := &e.Set[i]
		n, err := d.statements.PolicyUpdate(ctx, tx, db.PolicyUpdateParams{
			Algorithm: p.Algorithm, LimitUnits: p.LimitUnits, PeriodS: p.PeriodS, Burst: p.Burst, TickS: p.TickS, BlockForS: p.BlockForS,
			MaxTtlS: p.MaxTTLS, Aligned: p.Aligned, Shadow: p.Shadow, Askers: p.Askers, Calendar: p.Calendar, TimeZone: p.TimeZone,
			Durability: p.Durability, OnError: p.OnError, Note: p.Note, Name: p.Name,
		})
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if err := d.statements.PolicyInsert(ctx, tx, db.PolicyInsertParams{
			Name: p.Name, Algorithm: p.Algorithm, LimitUnits: p.LimitUnits, PeriodS: p.PeriodS, Burst: p.Burst, TickS: p.TickS, BlockForS: p.BlockForS,
			MaxTtlS: p.MaxTTLS, Aligned: p.Aligned, Shadow: p.Shadow, Askers: p.Askers, Calendar: p.Calendar, TimeZone: p.TimeZone,
			Durability: p.Durability, OnError: p.OnError, Note: p.Note,
		}); err != nil {
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
		limit, burst, shadow, until := 0.0, 0.0, int64(-1), int64(0)
		if o.LimitUnits != nil {
			limit = *o.LimitUnits
		}
		if o.Burst != nil {
			burst = *o.Burst
		}
		if o.Shadow != nil {
			shadow = 0
			if *o.Shadow {
				shadow = 1
			}
		}
		if o.Until != nil {
			until = o.Until.UnixMicro()
		}
		all.Policies, all.Keys, all.Notes = append(all.Policies, o.Policy), append(all.Keys, o.Key), append(all.Notes, o.Note)
		all.Limits, all.Bursts, all.Unlimited = append(all.Limits, limit), append(all.Bursts, burst), append(all.Unlimited, o.Unlimited)
		all.Shadows, all.UntilsUs = append(all.Shadows, shadow), append(all.UntilsUs, until)
	}
	return all
}

// History implements Store.
func (d *Database) History(ctx context.Context, name string, limit int64) (all []Change, err error) {
	err = d.run.Do(ctx, func(tx db.DBTX) error {
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

// Probe notifies the sessions that follow changes.
func (d *Database) Probe(ctx context.Context, payload string) error {
	return d.run.Do(ctx, func(tx db.DBTX) error { return d.statements.PolicyProbe(ctx, tx, payload) })
}
