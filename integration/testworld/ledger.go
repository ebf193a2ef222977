package testworld

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ExpectLedgers fails the test unless each ledger's entries add up to the balance: from its last
// entry of the kind open, and each lot alone. Where something changed without an entry since, it is
// not compared.
func ExpectLedgers(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	wrong := Value[string](t, pool, `WITH entries AS (
		SELECT e.* FROM pglimit_ledger AS e
		WHERE e.number >= coalesce((SELECT max(o.number) FROM pglimit_ledger AS o WHERE o.policy = e.policy AND o.key = e.key AND o.kind = 'open'), 0)
	), kept AS (
		SELECT t.policy, t.key, 0 AS lot, -t.debt AS has FROM pglimit_balance AS t WHERE t.entries > 0
		UNION ALL SELECT t.policy, t.key, l.number, CASE WHEN l.n = 1 THEN t.units ELSE l.has END
		FROM pglimit_balance AS t, ROWS FROM (unnest(t.numbers), unnest(t.lefts)) WITH ORDINALITY AS l (number, has, n) WHERE t.entries > 0
		UNION ALL SELECT e.policy, e.key, l.number, -l.units FROM entries AS e JOIN pglimit_balance AS t ON t.policy = e.policy AND t.key = e.key AND t.entries > 0,
		    ROWS FROM (unnest(e.lots), unnest(e.lot_units)) AS l (number, units)
		UNION ALL SELECT t.policy, t.key, -1, t.units + t.later - t.debt FROM pglimit_balance AS t WHERE t.entries > 0
		UNION ALL SELECT e.policy, e.key, -1, -e.units FROM entries AS e JOIN pglimit_balance AS t ON t.policy = e.policy AND t.key = e.key AND t.entries > 0
	)
	SELECT coalesce(string_agg(format('%s %s, lot %s: %s', w.policy, w.key, w.lot, w.off), '; '), '')
	FROM (SELECT k.policy, k.key, k.lot, sum(k.has) AS off FROM kept AS k GROUP BY k.policy, k.key, k.lot HAVING abs(sum(k.has)) > 1e-6 LIMIT 10) AS w`)
	if wrong != "" {
		t.Errorf("balances without their entries (lot -1: the sum): %s", wrong)
	}
}
