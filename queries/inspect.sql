
-- name: InspectDenied :many
-- InspectDenied returns up to max_rows keys with denials in slots from from_us on, the last
-- after since_us: the most denied first, or with by_last the last denied. policy and
-- algorithm are '' for all.
--
-- Index: pglimit_denial_slot. Locks nothing.
SELECT d.policy, d.algorithm, d.key FROM pglimit_denial AS d
WHERE d.slot_us >= sqlc.arg(from_us)::bigint
  AND (sqlc.arg(policy)::text = ''::text OR d.policy = sqlc.arg(policy)::text)
  AND (sqlc.arg(algorithm)::text = ''::text OR d.algorithm = sqlc.arg(algorithm)::text)
GROUP BY d.policy, d.algorithm, d.key
HAVING max(d.last_denied_at_us) > sqlc.arg(since_us)::bigint
ORDER BY CASE WHEN sqlc.arg(by_last)::bool THEN max(d.last_denied_at_us)::numeric ELSE sum(d.denials) END DESC, d.policy, d.key, d.algorithm
LIMIT sqlc.arg(max_rows)::bigint;

-- name: ForgetDenials :execrows
-- ForgetDenials deletes the denials of some keys under one policy and algorithm.
--
-- Index: the primary key. Locks the rows in its order until the transaction ends.
WITH found AS MATERIALIZED (
    SELECT d.policy, d.key, d.algorithm, d.slot_us FROM pglimit_denial AS d
    WHERE d.policy = sqlc.arg(policy)::text AND d.key = ANY(sqlc.arg(keys)::text[]) AND d.algorithm = sqlc.arg(algorithm)::text
    ORDER BY d.policy, d.key, d.algorithm, d.slot_us
    FOR UPDATE OF d
)
DELETE FROM pglimit_denial AS d USING found AS f
WHERE d.policy = f.policy AND d.key = f.key AND d.algorithm = f.algorithm AND d.slot_us = f.slot_us;

-- name: ForgetEvents :execrows
-- ForgetEvents deletes the marks of some keys under one policy and algorithm.
--
-- Index: the primary key. Locks the events in the order of their keys.
WITH found AS MATERIALIZED (
    SELECT e.policy, e.key, e.algorithm, e.mark, e.window_ends_at_us FROM pglimit_event AS e
    WHERE e.policy = sqlc.arg(policy)::text AND e.key = ANY (sqlc.arg(keys)::text[]) AND e.algorithm = sqlc.arg(algorithm)::text
    ORDER BY e.key, e.mark, e.window_ends_at_us
    FOR UPDATE OF e
)
DELETE FROM pglimit_event AS e USING found AS f
WHERE e.policy = f.policy AND e.key = f.key AND e.algorithm = f.algorithm AND e.mark = f.mark AND e.window_ends_at_us = f.window_ends_at_us;

-- name: ForgetUsage :execrows
-- ForgetUsage deletes the sums of some keys under one policy and algorithm.
--
-- Index: the primary key. Locks the sums in the order of their keys.
WITH found AS MATERIALIZED (
    SELECT u.policy, u.key, u.algorithm, u.at_us FROM pglimit_usage AS u
    WHERE u.policy = sqlc.arg(policy)::text AND u.key = ANY (sqlc.arg(keys)::text[]) AND u.algorithm = sqlc.arg(algorithm)::text
    ORDER BY u.key, u.at_us
    FOR UPDATE OF u
)
DELETE FROM pglimit_usage AS u USING found AS f
WHERE u.policy = f.policy AND u.key = f.key AND u.algorithm = f.algorithm AND u.at_us = f.at_us;

-- name: ForgetLedger :execrows
-- ForgetLedger deletes the entries of some keys under one policy.
--
-- Index: the primary key. Locks the entries in the order of their keys.
WITH found AS MATERIALIZED (
    SELECT e.policy, e.key, e.number FROM pglimit_ledger AS e
    WHERE e.policy = sqlc.arg(policy)::text AND e.key = ANY (sqlc.arg(keys)::text[])
    ORDER BY e.key, e.number
    FOR UPDATE OF e
)
DELETE FROM pglimit_ledger AS e USING found AS f
WHERE e.policy = f.policy AND e.key = f.key AND e.number = f.number;

-- name: ForgetReservations :execrows
-- ForgetReservations deletes the reservations of some keys under one policy and algorithm,
-- open or not, and their idempotency keys.
--
-- Index: the primary key. Locks the reservations by policy, key and ID until the
-- transaction ends, before the keys' rows.
WITH found AS MATERIALIZED (
    SELECT h.policy, h.key, h.id FROM pglimit_reservation AS h
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = ANY(sqlc.arg(keys)::text[]) AND h.algorithm = sqlc.arg(algorithm)::text
    ORDER BY h.policy, h.key, h.id
    FOR UPDATE OF h
)
DELETE FROM pglimit_reservation AS h USING found AS f
WHERE h.policy = f.policy AND h.key = f.key AND h.id = f.id;

-- name: ForgetReservationsMade :execrows
-- ForgetReservationsMade completes ForgetReservations, in the same transaction, with
-- reservations made while it waited for the keys' rows. It waits for no reservation and
-- fails with lock_not_available instead, as ReservationsFree does.
--
-- Index: the primary key. Locks the reservations until the transaction ends.
WITH made AS MATERIALIZED (
    SELECT h.policy, h.key, h.id FROM pglimit_reservation AS h
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = ANY(sqlc.arg(keys)::text[]) AND h.algorithm = sqlc.arg(algorithm)::text
    FOR UPDATE OF h NOWAIT
)
DELETE FROM pglimit_reservation AS h USING made AS m
WHERE h.policy = m.policy AND h.key = m.key AND h.id = m.id;

-- name: ResetReservations :execrows
-- ResetReservations takes the units off the open reservations of some keys under one
-- policy and algorithm, as a Reset does before it deletes the row.
--
-- Index: pglimit_reservation_open, then the primary key. Locks the reservations by policy,
-- key and ID until the transaction ends, before the keys' rows.
WITH found AS MATERIALIZED (
    SELECT h.policy, h.key, h.id FROM pglimit_reservation AS h
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = ANY(sqlc.arg(keys)::text[]) AND h.algorithm = sqlc.arg(algorithm)::text AND h.state = 'open'
    ORDER BY h.policy, h.key, h.id
    FOR UPDATE OF h
)
UPDATE pglimit_reservation AS h SET units = 0 FROM found AS f
WHERE h.policy = f.policy AND h.key = f.key AND h.id = f.id;

-- name: ResetReservationsMade :execrows
-- ResetReservationsMade is ReservationsFree for several keys: it completes a Reset, in the
-- same transaction, waits for no reservation and fails with lock_not_available instead.
--
-- Index: pglimit_reservation_open, then the primary key. Locks the reservations until the
-- transaction ends.
WITH made AS MATERIALIZED (
    SELECT h.policy, h.key, h.id FROM pglimit_reservation AS h
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = ANY(sqlc.arg(keys)::text[]) AND h.algorithm = sqlc.arg(algorithm)::text
      AND h.state = 'open' AND h.units > 0::float8
    FOR UPDATE OF h NOWAIT
)
UPDATE pglimit_reservation AS h SET units = 0 FROM made AS m
WHERE h.policy = m.policy AND h.key = m.key AND h.id = m.id;

-- name: ForgetOverrides :execrows
-- ForgetOverrides deletes the overrides of some keys of one policy. Triggers raise the
-- version, so that programs load what is left, and note the change: run ForgetHistory
-- afterwards.
--
-- Index: the primary key. Locks the version, and then the overrides, until the transaction
-- ends.
DELETE FROM pglimit_override AS o
WHERE o.policy = sqlc.arg(policy)::text AND o.key = ANY(sqlc.arg(keys)::text[]);

-- name: ForgetHistory :execrows
-- ForgetHistory deletes the changes of the overrides of some keys of one policy. A trigger
-- raises the version, so that programs load all.
--
-- Index: pglimit_policy_history_name. Locks the version, and then the rows that it deletes.
DELETE FROM pglimit_policy_history AS h
WHERE h.name = sqlc.arg(policy)::text AND h.key = ANY(sqlc.arg(keys)::text[]);
