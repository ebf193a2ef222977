















-- name: LeakyBucketTake :one
-- LeakyBucketTake decides count asks of cost units each and grants as many as fit.
-- The bucket leaks; an ask that would overflow it is denied (policing).
--
-- With E = GREATEST(t.updated_at_us, clock), the clock that never moves back:
--   used    = the level less what leaked until E, never below 0
--   granted = LEAST(count, floor((capacity - used) / cost)), never below 0
--   level   = used + cost * granted
-- A level above the capacity, of a policy that had a larger one, leaks like any other.
--
-- The leak goes by whole ticks, and so does leaked_at_us: the part of a tick that
-- has passed is not lost. An empty bucket starts its tick at the hit.
--
-- expires_at_us is indexed, and set for a new row only, to when the janitor is to look
-- at it first: all updates stay HOT. The row to be inserted carries block_for_us,
-- negated, as its block.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
-- Denied: granted is 0, and block_for_us > 0 starts a block; -1 while blocked.
INSERT INTO pglimit_leaky_bucket AS t
       (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(leak)::float8 AS leak,
             sqlc.arg(tick_us)::bigint AS tick_us,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(capacity)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us;

-- name: LeakyBucketTakeMany :many
-- LeakyBucketTakeMany is LeakyBucketTake for many keys at once, each at most once: the
-- clock is read once for all, and the rows are locked in the order of policy and
-- key. The count of a row is that of equal asks, granted one after the other: if
-- some are granted and some not, block_for_us starts a block as well. Rows come
-- back in no order that can be relied on.
--
-- Index: the primary key. Locks the keys' rows until the transaction ends.
-- Denied: as in LeakyBucketTake. A row that stays locked for longer than
-- lock_timeout fails the statement: LeakyBucketHeld tells which.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
)
INSERT INTO pglimit_leaky_bucket AS t
       (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT c.now_us, r.*, LEAST(r.count, floor(r.capacity / r.cost)) AS granted
      FROM c, (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key,
                      pg_catalog.unnest(sqlc.arg(costs)::float8[]) AS cost, pg_catalog.unnest(sqlc.arg(counts)::float8[]) AS count,
                      pg_catalog.unnest(sqlc.arg(capacities)::float8[]) AS capacity,
                      pg_catalog.unnest(sqlc.arg(leaks)::float8[]) AS leak,
                      pg_catalog.unnest(sqlc.arg(ticks_us)::bigint[]) AS tick_us,
                      pg_catalog.unnest(sqlc.arg(holds_us)::bigint[]) AS hold_us, pg_catalog.unnest(sqlc.arg(blocks_for_us)::bigint[]) AS block_for_us) AS r) AS a
ORDER BY a.policy COLLATE "C", a.key COLLATE "C"
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)) / EXCLUDED.cost) < EXCLUDED.granted
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.policy, t.key, t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us;

-- name: LeakyBucketReserve :one
-- LeakyBucketReserve is LeakyBucketTake for one ask that, if it is granted, is noted in
-- pglimit_hold as well: as a hold, to be settled by its id (state 'held'), or only
-- to be remembered under its idempotency key (state 'spent').
--
-- No row comes back where that key has been admitted before: nothing is decided
-- then. If what was admitted is a hold that has expired, it is to be given back first. Two at once under one idempotency key: the second waits for the first's
-- commit and fails with unique_violation, all of it undone; asked again, it finds
-- the first's.
--
-- Index: the primary key; pglimit_hold_idempotency. Locks the key's row until the
-- transaction ends.
-- Denied: as in LeakyBucketTake; no hold is made.
WITH taken AS (
INSERT INTO pglimit_leaky_bucket AS t
       (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(leak)::float8 AS leak,
             sqlc.arg(tick_us)::bigint AS tick_us,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(capacity)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = sqlc.narg(idempotency_key)::text
                    AND h.algorithm = 'leaky_bucket' AND h.forget_at_us > a.now_us)
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
), held AS (
INSERT INTO pglimit_hold
       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
SELECT sqlc.arg(id)::text, sqlc.arg(state)::text, 'leaky_bucket', sqlc.arg(policy)::text, sqlc.arg(key)::text, sqlc.narg(idempotency_key)::text,
       sqlc.arg(cost)::float8, sqlc.arg(cost)::float8, sqlc.arg(limit_units)::float8, sqlc.arg(burst)::float8, sqlc.arg(capacity)::float8,
       t.updated_at_us, t.updated_at_us + sqlc.arg(ttl_us)::bigint, t.updated_at_us + sqlc.arg(ttl_us)::bigint + sqlc.arg(remember_us)::bigint,
       t.level, sqlc.arg(leak)::float8, sqlc.arg(tick_us)::bigint, 0, 0, t.leaked_at_us
FROM taken AS t
WHERE t.granted > 0::float8
)
SELECT t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us FROM taken AS t;

-- name: LeakyBucketSettle :one
-- LeakyBucketSettle ends a hold: units is what is to stay counted of it (0 to cancel
-- it, or when it expired), state what it becomes. The hold comes first and then the
-- key's row, so no two of these wait for each other. It changes something only
-- where the hold is open (for 'expired' only once it has), or has expired and is
-- settled late; changes tells. units_before is what was counted until now. A hold
-- that is cancelled or expires gives its idempotency key up.
--
-- How the key stands comes from its row after the change, or, where that was left
-- alone, as the statement finds it: updated_at_us tells as of when.
--
-- What has leaked of a hold since it was made is not there to be given back: with
-- n units counted, at most n less the rate times its age. What was spent beyond the
-- hold is added, even where there is no room.
--
-- Index: the primary keys. Locks the hold and the key's row until the transaction
-- ends. No row comes back for a hold that is not known.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
), hold AS MATERIALIZED (
    SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
           h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, sqlc.arg(units)::float8 AS actual,
           (h.state = 'held' AND (sqlc.arg(state)::text <> 'expired' OR h.expires_at_us <= c.now_us)
            OR h.state = 'expired' AND sqlc.arg(state)::text = 'settled') AS changes
    FROM c JOIN pglimit_hold AS h ON h.id = sqlc.arg(id)::text AND h.state <> 'spent'
                AND (h.forget_at_us > c.now_us OR sqlc.arg(state)::text = 'expired')
    FOR UPDATE OF h
), counted AS (
INSERT INTO pglimit_leaky_bucket AS t
       (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT h.policy, h.key, h.units, h.actual, GREATEST(0, h.actual - h.units), h.capacity, h.leak, h.tick_us, h.now_us,
       h.now_us, -h.counted_at_us, h.now_us
FROM hold AS h
WHERE h.changes AND h.actual <> h.units
ON CONFLICT (policy, key) DO UPDATE SET
    cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END, leak = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END, tick_us = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END,
    granted = LEAST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END), GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END, ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)))),
    level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END) - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END, ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)))) + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END) = 0::float8
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
), ended AS (
UPDATE pglimit_hold AS h SET
    state = sqlc.arg(state)::text,
    idempotency_key = CASE WHEN sqlc.arg(state)::text = 'settled' THEN h.idempotency_key END,
    units = CASE WHEN sqlc.arg(state)::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
FROM hold AS b LEFT JOIN counted AS t ON true
WHERE h.id = b.id AND b.changes
)
SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
       h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.now_us::bigint AS now_us, h.expires_at_us,
       (coalesce(t.granted, 0) > 0::float8)::bool AS freed,
       coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, r.blocked_until_us, 0)::bigint AS blocked_until_us,
       coalesce(t.level, r.level, 0)::float8 AS level, 0::float8 AS previous, coalesce(t.leaked_at_us, r.leaked_at_us, h.now_us)::bigint AS at_us, 0::bigint AS window_us
FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_leaky_bucket AS r ON r.policy = h.policy AND r.key = h.key;

-- name: LeakyBucketFill :one
-- LeakyBucketFill records units that were spent whatever the limit says. What is
-- there is drained and clamped at zero first, then filled up to the capacity at
-- most; granted is what went in. Blocks neither stop it nor start.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_leaky_bucket AS t
       (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 1, a.granted, a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, 0, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(leak)::float8 AS leak,
             sqlc.arg(tick_us)::bigint AS tick_us,
             sqlc.arg(hold_us)::bigint AS hold_us,
             LEAST(sqlc.arg(units)::float8, sqlc.arg(capacity)::float8) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
    granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))),
    level = GREATEST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak), LEAST(EXCLUDED.capacity, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) + EXCLUDED.granted)),
    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us;

-- name: LeakyBucketRefund :one
-- LeakyBucketRefund gives units back, at most what is there; granted is what went
-- back. Without a row nothing is there.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
), back AS (
UPDATE pglimit_leaky_bucket AS t SET
    cost = 1,
    granted = LEAST(sqlc.arg(units)::float8, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak)),
    level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak) - sqlc.arg(units)::float8),
    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak) = 0::float8
                        THEN GREATEST(t.updated_at_us, c.us)
                        ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us * t.tick_us END,
updated_at_us = GREATEST(t.updated_at_us, c.us)
FROM c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
)
SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM c LEFT JOIN back AS t ON true;

-- name: LeakyBucketUndo :one
-- LeakyBucketUndo gives back units that one decision granted, as far as they are still
-- there: what has leaked since, or has left the window, is not. granted is what
-- went back. Without a row nothing is there.
-- Of n units at most n less the rate times the time since counted_at_us goes back.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
), back AS (
UPDATE pglimit_leaky_bucket AS t SET
    cost = 1,
    granted = LEAST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak), GREATEST(0, LEAST(sqlc.arg(units)::float8, sqlc.arg(units)::float8 - GREATEST(((GREATEST(t.updated_at_us, c.us) - sqlc.arg(counted_at_us)::bigint) / t.tick_us)::float8 * t.leak, ((GREATEST(t.updated_at_us, c.us) - sqlc.arg(counted_at_us)::bigint) / sqlc.arg(tick_us)::bigint)::float8 * sqlc.arg(leak)::float8)))),
    level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak) - GREATEST(0, LEAST(sqlc.arg(units)::float8, sqlc.arg(units)::float8 - GREATEST(((GREATEST(t.updated_at_us, c.us) - sqlc.arg(counted_at_us)::bigint) / t.tick_us)::float8 * t.leak, ((GREATEST(t.updated_at_us, c.us) - sqlc.arg(counted_at_us)::bigint) / sqlc.arg(tick_us)::bigint)::float8 * sqlc.arg(leak)::float8)))),
    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak) = 0::float8
                        THEN GREATEST(t.updated_at_us, c.us)
                        ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us * t.tick_us END,
updated_at_us = GREATEST(t.updated_at_us, c.us)
FROM c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
)
SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM c LEFT JOIN back AS t ON true;

-- name: LeakyBucketGet :one
-- LeakyBucketGet reads the key's row and the clock: one row comes back even when
-- the key has none, with a level of 0 and the clock's reading as its times.
--
-- Index: the primary key. Locks nothing.
SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_leaky_bucket AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: LeakyBucketHeld :many
-- LeakyBucketHeld tells which of the keys have a row that another transaction
-- holds at this moment.
--
-- Index: the primary key. Locks the rows that nobody holds, and waits for none,
-- nor for the disk: the locks are gone with the statement.
WITH asked AS MATERIALIZED (
    SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key
    FROM (SELECT set_config('synchronous_commit'::text, 'off'::text, true) AS commits) AS c
), free AS MATERIALIZED (
    SELECT t.policy, t.key FROM asked AS a JOIN pglimit_leaky_bucket AS t ON t.policy = a.policy AND t.key = a.key
    FOR UPDATE OF t SKIP LOCKED
)
SELECT t.policy, t.key FROM asked AS a JOIN pglimit_leaky_bucket AS t ON t.policy = a.policy AND t.key = a.key
WHERE NOT EXISTS (SELECT 1 FROM free AS f WHERE f.policy = t.policy AND f.key = t.key);

-- name: LeakyBucketBlock :exec
-- LeakyBucketBlock denies the key until the clock plus for_us, or until the end
-- of an earlier block if that is later. What the key holds stays as it is.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_leaky_bucket AS t
       (policy, key, level, capacity, leak, tick_us, leaked_at_us, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 0, 0, 1, 1, c.us, 1, 0, c.us,
       c.us + sqlc.arg(for_us)::bigint, c.us + sqlc.arg(for_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us, CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits) AS c
ON CONFLICT (policy, key) DO UPDATE SET
    blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(for_us)::bigint);

-- name: LeakyBucketUnblock :exec
-- LeakyBucketUnblock lifts the key's block and nothing else: any, or the one that
-- ends at until_us if that is not 0. No row, no effect.
--
-- Index: the primary key. Locks the key's row, if there is one, until the
-- transaction ends.
UPDATE pglimit_leaky_bucket AS t SET blocked_until_us = 0
FROM (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits) AS c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text AND t.blocked_until_us > 0
  AND (sqlc.arg(until_us)::bigint = 0 OR t.blocked_until_us = sqlc.arg(until_us)::bigint);

-- name: LeakyBucketReset :execrows
-- LeakyBucketReset forgets the key: what it holds and its block. Open holds stay,
-- but nothing of them is counted any more that they could give back. Those that it
-- cannot see, because they were made while it waited for the key's row, are for
-- HoldsFree.
--
-- Index: the primary key, of holds pglimit_hold_open. Locks the key's open holds
-- and then its row, if there is one, until the transaction ends.
WITH freed AS (
    UPDATE pglimit_hold AS h SET units = 0
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = sqlc.arg(key)::text AND h.algorithm = 'leaky_bucket' AND h.state = 'held'
    RETURNING h.id
)
DELETE FROM pglimit_leaky_bucket AS t
USING (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
WHERE c.holds >= 0 AND t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: LeakyBucketSweep :one
-- LeakyBucketSweep looks at up to max_rows rows that are due at cutoff_us, the
-- longest due first. It deletes those that hold nothing, by their own columns, and
-- have no open hold; deleted counts them. The others are due again when they are
-- empty, and in an hour at the soonest; kept counts them.
--
-- A row that another transaction holds is passed over. What a row holds is read as it
-- is locked (due), and that alone tells which rows go: to ask the row that DELETE or
-- UPDATE finds would be to ask the one from before the lock.
--
-- Index: expires_at_us, then the primary key; for what is deleted
-- pglimit_hold_open. Locks the rows that it changes.
WITH due AS MATERIALIZED (
    SELECT t.policy, t.key, GREATEST(CASE WHEN t.level = 0::float8 THEN t.updated_at_us
                     ELSE t.leaked_at_us + LEAST(3155760000000000::float8, (ceil(t.level / t.leak) + CASE WHEN t.level > ceil(t.level / t.leak) * t.leak THEN 1 ELSE 0 END::float8) * t.tick_us::float8)::bigint END, t.updated_at_us, t.blocked_until_us) AS empty_at_us,
           EXISTS (SELECT 1 FROM pglimit_hold AS h WHERE h.policy = t.policy AND h.key = t.key AND h.state = 'held' AND h.algorithm = 'leaky_bucket') AS held
    FROM pglimit_leaky_bucket AS t
    WHERE t.expires_at_us <= sqlc.arg(cutoff_us)::bigint
    ORDER BY t.expires_at_us
    LIMIT sqlc.arg(max_rows)::bigint
    FOR UPDATE OF t SKIP LOCKED
), deleted AS (
    DELETE FROM pglimit_leaky_bucket AS t USING due AS d
    WHERE t.policy = d.policy AND t.key = d.key AND d.empty_at_us <= sqlc.arg(cutoff_us)::bigint AND NOT d.held
    RETURNING 1
), kept AS (
    UPDATE pglimit_leaky_bucket AS t SET expires_at_us = GREATEST(d.empty_at_us, sqlc.arg(cutoff_us)::bigint + 3600000000)
    FROM due AS d
    WHERE t.policy = d.policy AND t.key = d.key AND (d.empty_at_us > sqlc.arg(cutoff_us)::bigint OR d.held)
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted)::bigint AS deleted, (SELECT count(*) FROM kept)::bigint AS kept;

-- name: LeakyBucketStatement :one
-- LeakyBucketStatement is LeakyBucketGet, and adds up the key's open holds at that same
-- moment: how many there are, and what is counted for them.
--
-- Index: the primary key, pglimit_hold_open. Locks nothing.
SELECT s.*, o.holds, o.held
FROM (
SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_leaky_bucket AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
) AS s,
LATERAL (SELECT count(*) AS holds, coalesce(sum(h.units), 0)::float8 AS held FROM pglimit_hold AS h
         WHERE h.policy = sqlc.arg(policy)::text AND h.key = sqlc.arg(key)::text AND h.state = 'held' AND h.algorithm = 'leaky_bucket') AS o;

-- Made from queries/template/bucket.tmpl by make generate: edit that.
