















-- name: LeakyBucketQueueTake :one
-- LeakyBucketQueueTake decides count asks of cost units each and grants as many as fit.
-- The bucket is a queue (shaping): units leave it at the leak's even pace, and
-- what is in it already tells how long new ones wait.
--
-- With E = GREATEST(t.updated_at_us, clock), the clock that never moves back:
--   used    = the level less what leaked until E, never below 0
--   granted = LEAST(count, floor((capacity - used) / cost)), never below 0
--   level   = used + cost * granted
-- A level above the capacity, of a policy that had a larger one, leaks like any other.
--
-- room is how full the queue may be after this ask: the capacity, or less when
-- the caller can wait only so long for its turn. ticket names the place given,
-- so that LeakyBucketQueueLeave can tell whether anyone came after.
--
-- expires_at_us is indexed, and set for a new row only, to when the janitor is to look
-- at it first: all updates stay HOT. The row to be inserted carries block_for_us,
-- negated, as its block.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
-- Denied: granted is 0, and block_for_us > 0 starts a block; -1 while blocked.
INSERT INTO pglimit_leaky_bucket_queue AS t
       (policy, key, cost, granted, level, capacity, leak, ticket, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(leak)::float8 AS leak,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(room)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    ticket = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) >= EXCLUDED.cost
                  THEN GREATEST(t.ticket + 1, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.ticket END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us;

-- name: LeakyBucketQueueTakeMany :many
-- LeakyBucketQueueTakeMany is LeakyBucketQueueTake for many keys at once, each at most once: the
-- clock is read once for all, and the rows are locked in the order of policy and
-- key. The count of a row is that of equal asks, granted one after the other: if
-- some are granted and some not, block_for_us starts a block as well. Rows come
-- back in no order that can be relied on.
--
-- Index: the primary key. Locks the keys' rows until the transaction ends.
-- Denied: as in LeakyBucketQueueTake. A row that stays locked for longer than
-- lock_timeout fails the statement: LeakyBucketQueueHeld tells which.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
)
INSERT INTO pglimit_leaky_bucket_queue AS t
       (policy, key, cost, granted, level, capacity, leak, ticket, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT c.now_us, r.*, LEAST(r.count, floor(r.capacity / r.cost)) AS granted
      FROM c, (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key,
                      pg_catalog.unnest(sqlc.arg(costs)::float8[]) AS cost, pg_catalog.unnest(sqlc.arg(counts)::float8[]) AS count,
                      pg_catalog.unnest(sqlc.arg(capacities)::float8[]) AS capacity,
                      pg_catalog.unnest(sqlc.arg(leaks)::float8[]) AS leak,
                      pg_catalog.unnest(sqlc.arg(holds_us)::bigint[]) AS hold_us, pg_catalog.unnest(sqlc.arg(blocks_for_us)::bigint[]) AS block_for_us) AS r) AS a
ORDER BY a.policy COLLATE "C", a.key COLLATE "C"
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    ticket = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) >= EXCLUDED.cost
                  THEN GREATEST(t.ticket + 1, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.ticket END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND floor((EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost) < EXCLUDED.granted
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.policy, t.key, t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us;

-- name: LeakyBucketQueueReserve :one
-- LeakyBucketQueueReserve is LeakyBucketQueueTake for one ask that, if it is granted, is noted in
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
-- Denied: as in LeakyBucketQueueTake; no hold is made.
WITH taken AS (
INSERT INTO pglimit_leaky_bucket_queue AS t
       (policy, key, cost, granted, level, capacity, leak, ticket, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(leak)::float8 AS leak,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(room)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = sqlc.narg(idempotency_key)::text
                    AND h.algorithm = 'leaky_bucket_queue' AND h.forget_at_us > a.now_us)
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
    ticket = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) >= EXCLUDED.cost
                  THEN GREATEST(t.ticket + 1, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.ticket END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND sqlc.arg(room)::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us
), held AS (
INSERT INTO pglimit_hold
       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
SELECT sqlc.arg(id)::text, sqlc.arg(state)::text, 'leaky_bucket_queue', sqlc.arg(policy)::text, sqlc.arg(key)::text, sqlc.narg(idempotency_key)::text,
       sqlc.arg(cost)::float8, sqlc.arg(cost)::float8, sqlc.arg(limit_units)::float8, sqlc.arg(burst)::float8, sqlc.arg(capacity)::float8,
       t.updated_at_us, t.updated_at_us + sqlc.arg(ttl_us)::bigint, t.updated_at_us + sqlc.arg(ttl_us)::bigint + sqlc.arg(remember_us)::bigint,
       t.level, sqlc.arg(leak)::float8, 1, 0, 0, t.updated_at_us
FROM taken AS t
WHERE t.granted > 0::float8
)
SELECT t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us FROM taken AS t;

-- name: LeakyBucketQueueFill :one
-- LeakyBucketQueueFill records units that were spent whatever the limit says. What is
-- there is drained and clamped at zero first, then filled up to the capacity at
-- most; granted is what went in. Blocks neither stop it nor start.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_leaky_bucket_queue AS t
       (policy, key, cost, granted, level, capacity, leak, ticket, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 1, a.granted, a.granted, a.capacity, a.leak, a.now_us, a.now_us, 0, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(leak)::float8 AS leak,
             sqlc.arg(hold_us)::bigint AS hold_us,
             LEAST(sqlc.arg(units)::float8, sqlc.arg(capacity)::float8) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
    granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))),
    level = GREATEST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak), LEAST(EXCLUDED.capacity, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) + EXCLUDED.granted)),
    ticket = GREATEST(t.ticket + 1, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)),
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
RETURNING t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us;

-- name: LeakyBucketQueueLeave :execrows
-- LeakyBucketQueueLeave gives a place back if it is still the last one given: once
-- somebody has queued behind it their turn is told, and the place stays taken.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
UPDATE pglimit_leaky_bucket_queue AS t SET
    level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.updated_at_us))::float8 * t.leak) - sqlc.arg(units)::float8),
    updated_at_us = GREATEST(t.updated_at_us, c.us)
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us, CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits) AS c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text AND t.ticket = sqlc.arg(ticket)::bigint;

-- name: LeakyBucketQueueGet :one
-- LeakyBucketQueueGet reads the key's row and the clock: one row comes back even when
-- the key has none, with a level of 0 and the clock's reading as its times.
--
-- Index: the primary key. Locks nothing.
SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_leaky_bucket_queue AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: LeakyBucketQueueHeld :many
-- LeakyBucketQueueHeld tells which of the keys have a row that another transaction
-- holds at this moment.
--
-- Index: the primary key. Locks the rows that nobody holds, and waits for none,
-- nor for the disk: the locks are gone with the statement.
WITH asked AS MATERIALIZED (
    SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key
    FROM (SELECT set_config('synchronous_commit'::text, 'off'::text, true) AS commits) AS c
), free AS MATERIALIZED (
    SELECT t.policy, t.key FROM asked AS a JOIN pglimit_leaky_bucket_queue AS t ON t.policy = a.policy AND t.key = a.key
    FOR UPDATE OF t SKIP LOCKED
)
SELECT t.policy, t.key FROM asked AS a JOIN pglimit_leaky_bucket_queue AS t ON t.policy = a.policy AND t.key = a.key
WHERE NOT EXISTS (SELECT 1 FROM free AS f WHERE f.policy = t.policy AND f.key = t.key);

-- name: LeakyBucketQueueBlock :exec
-- LeakyBucketQueueBlock denies the key until the clock plus for_us, or until the end
-- of an earlier block if that is later. What the key holds stays as it is.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_leaky_bucket_queue AS t
       (policy, key, level, capacity, leak, ticket, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 0, 0, 1, c.us, 1, 0, c.us,
       c.us + sqlc.arg(for_us)::bigint, c.us + sqlc.arg(for_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us, CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits) AS c
ON CONFLICT (policy, key) DO UPDATE SET
    blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(for_us)::bigint);

-- name: LeakyBucketQueueUnblock :exec
-- LeakyBucketQueueUnblock lifts the key's block and nothing else: any, or the one that
-- ends at until_us if that is not 0. No row, no effect.
--
-- Index: the primary key. Locks the key's row, if there is one, until the
-- transaction ends.
UPDATE pglimit_leaky_bucket_queue AS t SET blocked_until_us = 0
FROM (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits) AS c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text AND t.blocked_until_us > 0
  AND (sqlc.arg(until_us)::bigint = 0 OR t.blocked_until_us = sqlc.arg(until_us)::bigint);

-- name: LeakyBucketQueueReset :execrows
-- LeakyBucketQueueReset forgets the key: what it holds and its block. Open holds stay,
-- but nothing of them is counted any more that they could give back. Those that it
-- cannot see, because they were made while it waited for the key's row, are for
-- HoldsFree.
--
-- Index: the primary key, of holds pglimit_hold_open. Locks the key's open holds
-- and then its row, if there is one, until the transaction ends.
WITH freed AS (
    UPDATE pglimit_hold AS h SET units = 0
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = sqlc.arg(key)::text AND h.algorithm = 'leaky_bucket_queue' AND h.state = 'held'
    RETURNING h.id
)
DELETE FROM pglimit_leaky_bucket_queue AS t
USING (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
WHERE c.holds >= 0 AND t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: LeakyBucketQueueSweep :one
-- LeakyBucketQueueSweep looks at up to max_rows rows that are due at cutoff_us, the
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
                     ELSE t.updated_at_us + LEAST(3155760000000000::float8, (ceil(t.level / t.leak) + CASE WHEN t.level > ceil(t.level / t.leak) * t.leak THEN 1 ELSE 0 END::float8))::bigint END, t.updated_at_us, t.blocked_until_us) AS empty_at_us,
           EXISTS (SELECT 1 FROM pglimit_hold AS h WHERE h.policy = t.policy AND h.key = t.key AND h.state = 'held' AND h.algorithm = 'leaky_bucket_queue') AS held
    FROM pglimit_leaky_bucket_queue AS t
    WHERE t.expires_at_us <= sqlc.arg(cutoff_us)::bigint
    ORDER BY t.expires_at_us
    LIMIT sqlc.arg(max_rows)::bigint
    FOR UPDATE OF t SKIP LOCKED
), deleted AS (
    DELETE FROM pglimit_leaky_bucket_queue AS t USING due AS d
    WHERE t.policy = d.policy AND t.key = d.key AND d.empty_at_us <= sqlc.arg(cutoff_us)::bigint AND NOT d.held
    RETURNING 1
), kept AS (
    UPDATE pglimit_leaky_bucket_queue AS t SET expires_at_us = GREATEST(d.empty_at_us, sqlc.arg(cutoff_us)::bigint + 3600000000)
    FROM due AS d
    WHERE t.policy = d.policy AND t.key = d.key AND (d.empty_at_us > sqlc.arg(cutoff_us)::bigint OR d.held)
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted)::bigint AS deleted, (SELECT count(*) FROM kept)::bigint AS kept;

-- name: LeakyBucketQueueStatement :one
-- LeakyBucketQueueStatement is LeakyBucketQueueGet, and adds up the key's open holds at that same
-- moment: how many there are, and what is counted for them.
--
-- Index: the primary key, pglimit_hold_open. Locks nothing.
SELECT s.*, o.holds, o.held
FROM (
SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_leaky_bucket_queue AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
) AS s,
LATERAL (SELECT count(*) AS holds, coalesce(sum(h.units), 0)::float8 AS held FROM pglimit_hold AS h
         WHERE h.policy = sqlc.arg(policy)::text AND h.key = sqlc.arg(key)::text AND h.state = 'held' AND h.algorithm = 'leaky_bucket_queue') AS o;

-- Made from queries/template/bucket.tmpl by make generate: edit that.
