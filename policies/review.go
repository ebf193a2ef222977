package policies

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// What package doctor asks of a database.

// Review reads all policies and overrides, as programs do, and calls one of the functions with
// each. An error there is why programs refuse the row. more: there are more than MaxOverrides.
// The error is pgx.ErrNoRows if the version is missing.
func Review(ctx context.Context, tx db.DBTX, policy func(Stored, error), override func(Override, error)) (more bool, err error) {
	rows, err := read(ctx, tx)
	if err == nil {
		err = rows.all(ctx, tx, func(o *Override) { override(*o, o.valid()) })
	}
	if err != nil {
		return false, err
	}
	for i := range rows.policies {
		policy(rows.policies[i].stored())
	}
	return rows.more, nil
}

// Lost makes a trial policy with an override, which the caller rolls back, and returns the tables
// whose triggers do not keep, stamp and note that.
func Lost(ctx context.Context, tx db.DBTX) (tables []string, err error) {
	name := "trial-" + strings.ToLower(rand.Text())
	for _, insert := range []string{
		`INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ($1::text, 'gcra', 1, 1)`, `INSERT INTO pglimit_override (policy, key, blocked) VALUES ($1::text, 'k', true)`,
	} {
		if _, err := tx.Exec(ctx, insert, name); exec.SQLState(err) == "54000" { // there are MaxOverrides: a trigger says so
			return nil, nil
		} else if err != nil {
			return nil, err
		}
	}
	const noted = `EXISTS (SELECT FROM pglimit_policy_version AS v JOIN pglimit_policy_history AS h ON h.version = v.version JOIN `
	rows, err := tx.Query(ctx, `SELECT 'pglimit_policy'::text WHERE NOT `+noted+`pglimit_policy AS t ON t.version = v.version WHERE t.name = $1::text AND h.name = $1::text AND h.key IS NULL)
UNION ALL SELECT 'pglimit_override'::text WHERE NOT `+noted+`pglimit_override AS t ON t.version = v.version WHERE t.policy = $1::text AND h.name = $1::text AND h.key IS NOT NULL)`, name)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
