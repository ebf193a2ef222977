-- name: ReservationByIdempotency :one
-- ReservationByIdempotency reads the row admitted under an idempotency key. forgotten
-- reports whether its retention is over. overdue reports whether it is an open
-- reservation that has expired; returning its units frees the idempotency key.
--
-- Index: pglimit_reservation_idempotency. Locks nothing.
SELECT (h.forget_at_us <= c.us)::bool AS forgotten, (h.state = 'open' AND h.expires_at_us <= c.us)::bool AS overdue,
       h.id, h.state, h.reserved, coalesce(h.requested, 0)::float8 AS requested, h.level, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.ends_at_us, h.counted_at_us,
       h.created_at_us, h.expires_at_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us) AS c, pglimit_reservation AS h
WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.idempotency_key = sqlc.arg(idempotency_key)::text
  AND h.algorithm = sqlc.arg(algorithm);

-- name: ReservationConfirm :execrows
-- ReservationConfirm makes a repeated answer as durable as the first one. With
-- synchronous replication a commit can be visible before a standby has it: if the
-- session that waited for the standby was cancelled. This statement locks the row, and
-- so its own commit waits until a standby has both. Without synchronous replication it
-- locks nothing.
--
-- Index: the primary key. Locks the reservation until the transaction ends.
SELECT h.id
FROM (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits) AS c,
     pglimit_reservation AS h
WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.id = sqlc.arg(id)
  AND current_setting('synchronous_standby_names'::text, true) <> ''::text
FOR KEY SHARE OF h;

-- name: ReservationForget :execrows
-- ReservationForget deletes the row admitted under an idempotency key if its retention
-- is over and the janitor has not deleted it yet. Then the idempotency key is free.
--
-- Index: pglimit_reservation_idempotency. Locks the row that it deletes.
DELETE FROM pglimit_reservation AS h
USING (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits) AS c
WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.idempotency_key = sqlc.arg(idempotency_key)::text
  AND h.algorithm = sqlc.arg(algorithm) AND h.forget_at_us <= c.us AND h.state <> 'open';

-- name: ReservationsDue :many
-- ReservationsDue lists up to max_rows of a key's open reservations that have expired.
-- It skips reservations that another transaction has locked to end them: that
-- transaction may wait for the key's row, which this one may have locked.
--
-- Index: pglimit_reservation_open. Locks the reservations until the transaction ends.
SELECT h.id
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us) AS c
CROSS JOIN pglimit_reservation AS h
WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.state = 'open' AND h.expires_at_us <= c.us AND h.algorithm = sqlc.arg(algorithm)
ORDER BY h.expires_at_us, h.units
LIMIT sqlc.arg(max_rows)::bigint
FOR UPDATE OF h SKIP LOCKED;

-- name: ReservationEstimate :one
-- ReservationEstimate returns by what the key's next estimate is multiplied: the units that its
-- last estimates have really spent, as a part of those estimated, from 0.1 to 2. Estimates are
-- those of the last 20 reservations of that kind that were settled, without those whose
-- retention is over. With fewer than 5 it returns 1.
--
-- Index: pglimit_reservation_estimate, of which it reads 20 entries. Locks nothing.
SELECT (CASE WHEN count(*) >= 5 THEN LEAST(2::float8, GREATEST(0.1::float8, sum(e.units) / sum(e.estimate))) ELSE 1 END)::float8 AS factor
FROM (SELECT h.units, h.estimate, h.forget_at_us FROM pglimit_reservation AS h
      WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.algorithm = sqlc.arg(algorithm) AND h.state = 'settled' AND h.estimate IS NOT NULL
      ORDER BY h.created_at_us DESC
      LIMIT 20) AS e
WHERE e.forget_at_us > coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, statement_timestamp()) * 1000000::float8)::bigint);

-- name: ReservationsFree :exec
-- ReservationsFree completes a Reset, in the same transaction. It sets units to 0 in
-- reservations made while the Reset waited for the key's row. A transaction that ends
-- one of them may wait for that row, so this statement waits for no reservation. It
-- fails with lock_not_available instead, and the caller repeats the transaction.
--
-- Index: pglimit_reservation_open, then the primary key. Locks the reservations until
-- the transaction ends.
WITH made AS MATERIALIZED (
    SELECT h.id FROM pglimit_reservation AS h
    WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.algorithm = sqlc.arg(algorithm) AND h.state = 'open' AND h.units > 0::float8
    FOR UPDATE OF h NOWAIT
)
UPDATE pglimit_reservation AS h SET units = 0 FROM made AS m
WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.id = m.id;

-- name: ReservationLocked :one
-- ReservationLocked reports whether another transaction has locked a reservation now.
-- It is true if there is no such reservation, too.
--
-- Index: the primary key. Locks the reservation, if it is free, until the statement ends.
-- Waits for no lock and no disk.
WITH free AS MATERIALIZED (
    SELECT h.id FROM (SELECT set_config('synchronous_commit'::text, 'off'::text, true) AS commits) AS c, pglimit_reservation AS h
    WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.id = sqlc.arg(id)
    FOR UPDATE OF h SKIP LOCKED
)
SELECT (NOT EXISTS (SELECT 1 FROM free AS f))::bool AS locked;

-- name: ReservationHold :one
-- ReservationHold reads a reservation and locks it until the transaction ends. It, the
-- algorithm's Adjust and ReservationEnd are a Settle for a router of shards.
--
-- Index: the primary key. Locks the reservation until the transaction ends.
SELECT h.state, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.ends_at_us, h.counted_at_us, h.expires_at_us, h.forget_at_us,
       coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS now_us
FROM pglimit_reservation AS h
WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.id = sqlc.arg(id) AND h.algorithm = sqlc.arg(algorithm) AND h.state <> 'spent'
  AND CASE WHEN CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) IS NULL END THEN NULL
           WHEN CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                     THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) IS NULL END THEN NULL
           ELSE true END
FOR UPDATE OF h;

-- name: ReservationEnd :exec
-- ReservationEnd writes what a Settle leaves of a reservation that the transaction has
-- locked. One that was cancelled or has expired gives up its idempotency key.
--
-- Index: the primary key. Locks the reservation until the transaction ends.
UPDATE pglimit_reservation AS h SET
    state = sqlc.arg(state)::text, units = sqlc.arg(units)::float8,
    idempotency_key = CASE WHEN sqlc.arg(state)::text = 'settled' THEN h.idempotency_key END
WHERE h.policy = sqlc.arg(policy) AND h.key = sqlc.arg(key) AND h.id = sqlc.arg(id);

-- name: ReservationAdd :exec
-- ReservationAdd records what a Take of the same transaction granted. The two are a
-- Reserve for a router of shards.
--
-- Index: the primary key, pglimit_reservation_idempotency. Of two with one idempotency key
-- the second waits until the first commits, and fails with unique_violation.
INSERT INTO pglimit_reservation
       (policy, key, id, state, algorithm, idempotency_key, reserved, units, level, limit_units, burst, capacity,
        leak, tick_us, period_us, ends_at_us, counted_at_us, created_at_us, expires_at_us, forget_at_us, requested, estimate)
VALUES (sqlc.arg(policy), sqlc.arg(key), sqlc.arg(id), sqlc.arg(state), sqlc.arg(algorithm), sqlc.narg(idempotency_key)::text, sqlc.arg(reserved)::float8, sqlc.arg(reserved)::float8,
        sqlc.arg(level), sqlc.arg(limit_units), sqlc.arg(burst), sqlc.arg(capacity), sqlc.arg(leak), sqlc.arg(tick_us), sqlc.arg(period_us), sqlc.arg(ends_at_us),
        sqlc.arg(counted_at_us), sqlc.arg(created_at_us), sqlc.arg(expires_at_us), sqlc.arg(forget_at_us), sqlc.narg(requested)::float8, sqlc.narg(estimate)::float8);

-- name: ReservationsNext :one
-- ReservationsNext returns the earliest expiry of all open reservations: the largest
-- bigint if there is none.
--
-- Index: pglimit_reservation_expires. Locks nothing.
SELECT c.us::bigint AS now_us,
       coalesce((SELECT min(h.expires_at_us) FROM pglimit_reservation AS h WHERE h.state = 'open'), 9223372036854775807)::bigint AS expires_at_us
FROM (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c;

-- name: ReservationsExpired :many
-- ReservationsExpired lists up to max_rows open reservations that had expired at
-- cutoff_us, the oldest first.
--
-- Index: pglimit_reservation_expires. Locks nothing.
SELECT h.policy, h.key, h.id, h.algorithm
FROM pglimit_reservation AS h
WHERE h.state = 'open' AND h.expires_at_us <= sqlc.arg(cutoff_us)::bigint
ORDER BY h.expires_at_us
LIMIT sqlc.arg(max_rows)::bigint;

-- name: ReservationExpire :execrows
-- ReservationExpire deletes up to max_rows reservations whose retention was over at
-- cutoff_us, the oldest first. It keeps open reservations: their units are returned
-- first. It skips rows that another transaction has locked.
--
-- Index: pglimit_reservation_forget, then the primary key. Locks the rows that it deletes.
DELETE FROM pglimit_reservation AS t
USING (SELECT b.policy, b.key, b.id FROM pglimit_reservation AS b
       WHERE b.forget_at_us <= sqlc.arg(cutoff_us)::bigint AND b.state <> 'open'
       ORDER BY b.forget_at_us
       LIMIT sqlc.arg(max_rows)::bigint
       FOR UPDATE SKIP LOCKED) AS forgotten
WHERE t.policy = forgotten.policy AND t.key = forgotten.key AND t.id = forgotten.id
  AND t.forget_at_us <= sqlc.arg(cutoff_us)::bigint AND t.state <> 'open';
