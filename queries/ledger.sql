-- The ledgers of balances. Decisions enter in them: see BalanceTakeMarked.

-- name: LedgerList :many
-- LedgerList lists up to max_rows entries of a key, the newest first: those with a number below
-- before, entered at since_us or later.
--
-- Index: the primary key. Locks nothing.
SELECT e.number, e.at_us, e.kind, e.units, e.left_units, e.lots, e.lot_units, e.sources, e.note,
       coalesce(e.reservation, ''::text)::text AS reservation, coalesce(e.idempotency_key, ''::text)::text AS idempotency_key
FROM pglimit_ledger AS e
WHERE e.policy = sqlc.arg(policy) AND e.key = sqlc.arg(key) AND e.number < sqlc.arg(before)::bigint AND e.at_us >= sqlc.arg(since_us)::bigint
ORDER BY e.number DESC
LIMIT sqlc.arg(max_rows)::bigint;

-- name: LedgerForget :execrows
-- LedgerForget deletes up to max_rows entries of cutoff_us or before, the oldest first. It skips
-- those that another transaction has locked.
--
-- Index: pglimit_ledger_at; the primary key. Locks the entries that it deletes.
WITH old AS MATERIALIZED (
    SELECT e.policy, e.key, e.number FROM pglimit_ledger AS e
    WHERE e.at_us <= sqlc.arg(cutoff_us)::bigint
    ORDER BY e.at_us
    LIMIT sqlc.arg(max_rows)::bigint
    FOR UPDATE OF e SKIP LOCKED
)
DELETE FROM pglimit_ledger AS e USING old AS o
WHERE e.policy = o.policy AND e.key = o.key AND e.number = o.number;
