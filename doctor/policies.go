package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/sqldb"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/policies"
)

// manyOverrides is the number of overrides from which on the check warns: programs keep
// all in memory, up to policies.MaxOverrides.
const manyOverrides = 80_000

func checkPolicies(ctx context.Context, p *patient) (Check, error) {
	t, ok := p.has("pglimit_policy")
	overrides, also := p.has("pglimit_override")
	version, too := p.has("pglimit_policy_version")
	if !ok || !also || !too {
		return Check{}, fmt.Errorf("%w: no table pglimit_policy in schema %s", errNoTables, p.home)
	}
	var policy, override []string // those that are not valid
	named, n, ended, more := 0, 0, 0, false
	err := p.atHome(ctx, func(tx db.DBTX) (err error) {
		more, err = policies.Review(ctx, tx, func(q policies.Stored, err error) {
			if named++; err != nil {
				policy = append(policy, fmt.Sprintf("policy %s: %s", q.Name, strings.TrimPrefix(err.Error(), "pglimit: ")))
			}
		}, func(o policies.Override, err error) {
			n++
			if !o.Until.IsZero() && !o.Until.After(p.config.Now()) {
				ended++
			}
			if err != nil { // the error may quote the key or the note
				text := strings.NewReplacer("pglimit: ", "", store.Quote(o.Key), "…", store.Quote(o.Note), "…").Replace(err.Error())
				override = append(override, fmt.Sprintf("an override of policy %s: %s", o.Policy, text))
			}
		})
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return Check{Verdict: Fail, Message: fmt.Sprintf("%s has 0 rows, so that no policy can be changed", version.quoted),
			Fix: fmt.Sprintf("INSERT INTO %s (version) SELECT coalesce(max(version), 0) FROM %s.pglimit_policy_history", version.quoted, p.home)}, nil
	}
	if err != nil {
		return Check{}, err
	}
	if lost, err := p.lostChanges(ctx); err != nil || lost.Verdict != OK {
		return lost, err
	}
	c := Check{Message: fmt.Sprintf("%s and %s are stored", printable.Count(named, "policy"), printable.Count(n, "override"))}
	if len(policy)+len(override) == 0 {
		c.Message += ", all valid"
	}
	c = judgeRows(c, "policies", t.quoted, named, policy)
	c = judgeRows(c, "overrides", overrides.quoted, n, override)
	if more {
		n++
	}
	return judgeOverrides(c, n, ended, overrides.quoted), nil
}

// errLost is the error of a lost change.
var errLost = errors.New("a change is lost")

// lostChanges makes a trial change, and rolls it back. It returns errLost with its verdict: the
// migrations may be the cause.
func (p *patient) lostChanges(ctx context.Context) (c Check, err error) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return c, err
	}
	defer tx.Rollback()
	var lost []string
	if err = p.bound(ctx, sqldb.Tx(tx)); err == nil {
		lost, err = policies.Lost(ctx, sqldb.Tx(tx))
	}
	switch code := sqlState(err); {
	case code == forbidden, code == "25006": // as checks grants and primary say
		return c, nil
	case err != nil || len(lost) == 0:
		return c, err
	}
	return Check{Verdict: Fail, Message: fmt.Sprintf("changes of %s are lost: a trigger is off or answers NULL", strings.Join(lost, " and ")),
		NextStep: "look at the table's triggers with \\d in psql: enable those of pglimit, run `pglimit migrate up`, and disable any other that answers NULL"}, errLost
}

// judgeRows adds those of n rows of a table that are not valid.
func judgeRows(c Check, what, table string, n int, bad []string) Check {
	const most = 20 // lines
	if len(bad) == 0 {
		return c
	}
	c.Message += fmt.Sprintf("; %d of %d stored %s are not valid, and programs keep the last valid ones: %s", len(bad), n, what, bad[0])
	return worse(c, Check{Verdict: Fail, Details: bad[:min(len(bad), most)], NextStep: fmt.Sprintf("correct the rows in %s, or delete them", table)})
}

// judgeOverrides adds what is to say of n overrides, of which some have ended.
func judgeOverrides(c Check, n, ended int, table string) Check {
	if n < manyOverrides {
		return c
	}
	verdict := Warn
	if n > policies.MaxOverrides {
		verdict = Fail
	}
	one := Check{Verdict: verdict, Details: []string{fmt.Sprintf("%d overrides of at most %d, of which %d have ended", n, policies.MaxOverrides, ended)}, NextStep: "give large groups of keys their own policy"}
	if ended > 0 {
		one.Fix = fmt.Sprintf("DELETE FROM %s WHERE until <= clock_timestamp()", table)
	}
	return worse(c, one)
}
