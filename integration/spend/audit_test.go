package spend

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// spendSchema is the application's tables and two audit tables, written in the same
// transactions: ended, with each change of a reservation, and overdrafts, with each time
// that a key counted more than its budget.
const spendSchema = `
CREATE TABLE places (policy text, key text, budget float8, leaks float8, PRIMARY KEY (policy, key));

CREATE TABLE orders (
	id text PRIMARY KEY, client text NOT NULL, policy text NOT NULL, account text NOT NULL, tenant text, units float8 NOT NULL,
	state text NOT NULL, -- spent, spent before (the order came), denied; with a hold: held, settled, cancelled
	hold text UNIQUE, returned bool NOT NULL DEFAULT false);
CREATE INDEX ON orders (policy, account) WHERE NOT returned AND state IN ('spent', 'spent before');
CREATE INDEX ON orders (policy, tenant) WHERE NOT returned AND state IN ('spent', 'spent before');
CREATE INDEX ON orders (state) WHERE state = 'open';

CREATE TABLE ended (
	n bigserial PRIMARY KEY, tx bigint NOT NULL, hold text NOT NULL, policy text NOT NULL, key text NOT NULL, was text NOT NULL, state text NOT NULL,
	before float8 NOT NULL, units float8 NOT NULL, early bool NOT NULL, returned bool NOT NULL DEFAULT false);
CREATE INDEX ON ended (policy, key) WHERE state = 'settled' AND NOT returned AND units > 0;
CREATE INDEX ON ended (tx);
CREATE FUNCTION note_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO ended (tx, hold, policy, key, was, state, before, units, early)
	VALUES (txid_current(), NEW.id, NEW.policy, NEW.key, OLD.state, NEW.state, OLD.units, NEW.units,
	        NEW.state = 'expired' AND OLD.expires_at_us > extract(epoch FROM clock_timestamp()) * 1000000);
	RETURN NULL;
END $$;
CREATE TRIGGER note_end AFTER UPDATE ON pglimit_reservation FOR EACH ROW EXECUTE FUNCTION note_end();

CREATE TABLE overdrafts (tx bigint NOT NULL, policy text NOT NULL, key text NOT NULL, rise float8 NOT NULL);
CREATE FUNCTION note_overdraft() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF NEW.level > (SELECT budget + leaks FROM places WHERE policy = NEW.policy AND key = NEW.key) THEN
		INSERT INTO overdrafts VALUES (txid_current(), NEW.policy, NEW.key, NEW.level - OLD.level);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER note_overdraft AFTER UPDATE ON pglimit_fixed_window
	FOR EACH ROW WHEN (NEW.level > OLD.level) EXECUTE FUNCTION note_overdraft();
CREATE TRIGGER note_overdraft AFTER UPDATE ON pglimit_token_bucket
	FOR EACH ROW WHEN (NEW.level > OLD.level) EXECUTE FUNCTION note_overdraft();

-- What each budget counts, and what it should.
CREATE VIEW balance AS
WITH counted AS (
	SELECT policy, key, level FROM pglimit_fixed_window UNION ALL SELECT policy, key, level FROM pglimit_token_bucket
), entry (policy, key, what, units) AS (
	SELECT policy, account, 'orders', units FROM orders WHERE state = 'spent' AND NOT returned
	UNION ALL SELECT 'tenant', tenant, 'orders', units FROM orders WHERE state = 'spent' AND NOT returned AND tenant IS NOT NULL
	UNION ALL SELECT h.policy, h.key, 'orders', h.units FROM pglimit_reservation AS h LEFT JOIN orders AS o ON o.id = h.idempotency_key
		WHERE h.state = 'spent' AND h.idempotency_key LIKE 'after-%' AND o.returned IS NOT TRUE
	UNION ALL SELECT policy, key, state, units FROM pglimit_reservation WHERE state IN ('open', 'settled')
	UNION ALL SELECT policy, key, 'settled', -units FROM ended WHERE returned
)
SELECT p.policy, p.key, p.budget, p.leaks, coalesce(c.level, 0) AS counted,
       coalesce(sum(e.units) FILTER (WHERE e.what = 'orders'), 0) AS orders,
       coalesce(sum(e.units) FILTER (WHERE e.what = 'open'), 0) AS held,
       coalesce(sum(e.units) FILTER (WHERE e.what = 'settled'), 0) AS settled
FROM places AS p LEFT JOIN counted AS c USING (policy, key) LEFT JOIN entry AS e USING (policy, key)
GROUP BY p.policy, p.key, c.level;

-- All that is wrong, as of one snapshot: a transaction is in it as a whole or not
-- at all, so nothing may be at any moment, whatever else runs.
CREATE VIEW findings AS
SELECT format('%s of %s counts %s: orders %s + held %s + settled %s are %s', key, policy, counted, orders, held, settled, orders + held + settled) AS finding
FROM balance WHERE abs(counted - orders - held - settled) > leaks
UNION ALL
SELECT format('%s of %s rose by %s above its budget, for which no hold was settled above its units', o.key, o.policy, o.rise)
FROM overdrafts AS o
WHERE NOT EXISTS (SELECT 1 FROM ended AS e WHERE e.tx = o.tx AND e.policy = o.policy AND e.key = o.key AND e.state = 'settled'
                  AND abs(e.units - e.before - o.rise) < 0.001)
UNION ALL
SELECT format('hold %s went from %s, %s units, to %s, %s units%s', hold, was, before, state, units, CASE WHEN early THEN ', too early' END)
FROM ended WHERE early OR (was, state) NOT IN (('open', 'settled'), ('open', 'cancelled'), ('open', 'expired'), ('expired', 'settled'))
UNION ALL
SELECT format('hold %s is %s, and %s units of it are still counted', h.id, h.state, h.units)
FROM pglimit_reservation AS h JOIN places AS p USING (policy, key) WHERE h.state IN ('cancelled', 'expired') AND h.units > p.leaks
UNION ALL
SELECT format('order %s is %s, %s units, and its hold %s, %s units', o.id, o.state, o.units, coalesce(h.state, 'none'), h.units)
FROM orders AS o LEFT JOIN pglimit_reservation AS h ON h.id = split_part(o.hold, ':', 2) AND h.policy = o.policy AND h.key = o.account
WHERE o.state IN ('open', 'settled', 'cancelled') AND NOT coalesce(CASE o.state
	WHEN 'open' THEN h.state = 'open' AND h.units = o.units OR h.state = 'expired' AND h.reserved = o.units
	WHEN 'settled' THEN h.state = 'settled' AND h.units = o.units
	ELSE h.state IN ('cancelled', 'expired') END, false)
UNION ALL
SELECT format('hold %s is %s, and the order that it was made with is not there', h.id, h.state)
FROM pglimit_reservation AS h LEFT JOIN orders AS o ON o.id = h.idempotency_key AND split_part(o.hold, ':', 2) = h.id
WHERE h.idempotency_key LIKE 'job-%' AND o.id IS NULL
UNION ALL
SELECT format('order %s of %s units has spent %s', coalesce(o.id, h.idempotency_key), o.units, h.units)
FROM (SELECT * FROM orders WHERE id LIKE 'once-%' OR id LIKE 'after-%') AS o
FULL JOIN (SELECT * FROM pglimit_reservation WHERE state = 'spent') AS h ON h.idempotency_key = o.id AND h.policy = o.policy AND h.key = o.account
WHERE h.id IS NULL OR o.units <> h.units OR o.id IS NULL AND h.idempotency_key LIKE 'once-%';
`

// audit queries only the database for violations of the invariant.
func audit(t testing.TB, pool *pgxpool.Pool, when string) {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT finding FROM findings LIMIT 10")
	if err != nil {
		t.Fatal(err)
	}
	findings, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		t.Errorf("%s: %s", when, f)
	}
	if len(findings) > 0 {
		t.FailNow() // it would be found again and again
	}
}

// logBalance logs the state of each budget.
func logBalance(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT policy, key, budget, counted, orders, held, settled FROM balance ORDER BY policy, key")
	if err != nil {
		t.Fatal(err)
	}
	var policy, key string
	var budget, counted, orders, held, settled float64
	_, err = pgx.ForEachRow(rows, []any{&policy, &key, &budget, &counted, &orders, &held, &settled}, func() error {
		t.Logf("%s of %s: budget %v, counted %.7g = orders %v + held %v + settled %v", key, policy, budget, counted, orders, held, settled)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// newSpendTables creates the application's tables in a database that has pglimit's.
func newSpendTables(ctx context.Context, pool *pgxpool.Pool, p spendPolicies) error {
	if _, err := pool.Exec(ctx, spendSchema); err != nil {
		return err
	}
	const place = "INSERT INTO places VALUES ($1, $2, $3, $4)"
	var batch pgx.Batch
	for i := range spendAccounts {
		batch.Queue(place, p.month.Name, fmt.Sprint("a", i), accountBudget, leaks(p.month))
		batch.Queue(place, p.bucket.Name, fmt.Sprint("a", i), accountBudget, leaks(p.bucket))
	}
	for i := range spendTenants {
		batch.Queue(place, p.tenant.Name, fmt.Sprint("t", i), tenantBudget, leaks(p.tenant))
	}
	return pool.SendBatch(ctx, &batch).Close()
}
