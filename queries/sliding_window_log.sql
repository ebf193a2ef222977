
























-- name: SlidingWindowLogTake :one
-- SlidingWindowLogTake decides count asks of cost units each and grants as many as fit.
-- The row keeps its entries in two arrays: when each decision was, and the
-- running total before it; one entry per statement, whatever its count. An entry
-- that is exactly one period old has left the window; the next new entry drops it
-- from the arrays.
--
-- With E = GREATEST(t.updated_at_us, clock), the clock that never moves back:
--   gone    = width_bucket(E - period, entries), a binary search
--   base    = the running total before the first that is not; raised, when the
--             capacity was lowered, until no more than the capacity is left
--   used    = total, the running total after the last entry, - base
--   granted = LEAST(count, floor((capacity - used) / cost)), never below 0
-- Beyond 16 times the capacity the running totals start again from zero, so that
-- they keep their last digits.
--
-- frees_at_us is the entry that has to leave before unit more units fit (or the
-- rest of the ask, if that is less); 0 if they fit.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
-- Denied: granted is 0, and block_for_us > 0 starts a block; -1 while blocked.
INSERT INTO pglimit_sliding_window_log AS t
       (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted,
       CASE WHEN a.granted > 0 THEN ARRAY[a.now_us] ELSE '{}' END,
       CASE WHEN a.granted > 0 THEN ARRAY[0] ELSE '{}' END,
       0, a.cost * a.granted, a.capacity, a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout', sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(period_us)::bigint AS period_us,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(capacity)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, period_us = EXCLUDED.period_us,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END,
entries = CASE WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.entries[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)] ELSE t.entries END,
    totals = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN pglimit_rebase(CASE WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total] ELSE t.totals END, GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))
                  WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total]
                  ELSE t.totals END,
    base = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN 0 ELSE GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END) END,
    total = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost) < 1
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END,
    expires_at_us = CASE WHEN t.expires_at_us >= GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us)
                         THEN t.expires_at_us
                         ELSE GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us) + GREATEST(259200000000, 72 * (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us)) END
RETURNING t.granted, (t.total - t.base)::float8 AS level, coalesce(t.entries[cardinality(t.entries)], 0)::bigint AS newest_at_us,
       coalesce(CASE WHEN t.capacity - (t.total - t.base) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN 0
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 1], t.total)) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals)]
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 2], t.total)) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 1]
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 3], t.total)) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 2]
                     ELSE t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) + 1e-15 * (t.total + t.capacity), t.totals)] END, 0)::bigint AS frees_at_us,
       t.updated_at_us, t.blocked_until_us;

-- name: SlidingWindowLogTakeMany :many
-- SlidingWindowLogTakeMany is SlidingWindowLogTake for many keys at once, each at most once: the
-- clock is read once for all, and the rows are locked in the order of policy and
-- key. The count of a row is that of equal asks, granted one after the other: if
-- some are granted and some not, block_for_us starts a block as well. Rows come
-- back in no order that can be relied on.
--
-- Index: the primary key. Locks the keys' rows until the transaction ends.
-- Denied: as in SlidingWindowLogTake. A row that stays locked for longer than
-- lock_timeout fails the statement: SlidingWindowLogHeld tells which.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout', sqlc.arg(lock_timeout)::text, true) END AS waits
)
INSERT INTO pglimit_sliding_window_log AS t
       (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted,
       CASE WHEN a.granted > 0 THEN ARRAY[a.now_us] ELSE '{}' END,
       CASE WHEN a.granted > 0 THEN ARRAY[0] ELSE '{}' END,
       0, a.cost * a.granted, a.capacity, a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT c.now_us, r.*, LEAST(r.count, floor(r.capacity / r.cost)) AS granted
      FROM c, (SELECT unnest(sqlc.arg(policies)::text[]) AS policy, unnest(sqlc.arg(keys)::text[]) AS key,
                      unnest(sqlc.arg(costs)::float8[]) AS cost, unnest(sqlc.arg(counts)::float8[]) AS count,
                      unnest(sqlc.arg(capacities)::float8[]) AS capacity,
                      unnest(sqlc.arg(periods_us)::bigint[]) AS period_us,
                      unnest(sqlc.arg(holds_us)::bigint[]) AS hold_us, unnest(sqlc.arg(blocks_for_us)::bigint[]) AS block_for_us) AS r) AS a
ORDER BY a.policy COLLATE "C", a.key COLLATE "C"
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, period_us = EXCLUDED.period_us,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END,
entries = CASE WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.entries[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)] ELSE t.entries END,
    totals = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN pglimit_rebase(CASE WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total] ELSE t.totals END, GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))
                  WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total]
                  ELSE t.totals END,
    base = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN 0 ELSE GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END) END,
    total = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost) < EXCLUDED.granted
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END,
    expires_at_us = CASE WHEN t.expires_at_us >= GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us)
                         THEN t.expires_at_us
                         ELSE GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us) + GREATEST(259200000000, 72 * (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us)) END
RETURNING t.policy, t.key, t.granted, (t.total - t.base)::float8 AS level, coalesce(t.entries[cardinality(t.entries)], 0)::bigint AS newest_at_us,
       coalesce(CASE WHEN t.capacity - (t.total - t.base) >= t.cost THEN 0
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - t.cost) - 1e-15 * (t.total + t.capacity), t.totals) + 1], t.total)) >= t.cost THEN t.entries[width_bucket(t.total - (t.capacity - t.cost) - 1e-15 * (t.total + t.capacity), t.totals)]
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - t.cost) - 1e-15 * (t.total + t.capacity), t.totals) + 2], t.total)) >= t.cost THEN t.entries[width_bucket(t.total - (t.capacity - t.cost) - 1e-15 * (t.total + t.capacity), t.totals) + 1]
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - t.cost) - 1e-15 * (t.total + t.capacity), t.totals) + 3], t.total)) >= t.cost THEN t.entries[width_bucket(t.total - (t.capacity - t.cost) - 1e-15 * (t.total + t.capacity), t.totals) + 2]
                     ELSE t.entries[width_bucket(t.total - (t.capacity - t.cost) + 1e-15 * (t.total + t.capacity), t.totals)] END, 0)::bigint AS frees_at_us,
       t.updated_at_us, t.blocked_until_us;

-- name: SlidingWindowLogReserve :one
-- SlidingWindowLogReserve is SlidingWindowLogTake for one ask that, if it is granted, is noted in
-- pglimit_hold as well: as a hold, to be settled by its id (state 'held'), or only
-- to be remembered under its idempotency key (state 'spent').
--
-- No row comes back where that key has been admitted before: nothing is decided
-- then. Two at once under one idempotency key: the second waits for the first's
-- commit and fails with unique_violation, all of it undone; asked again, it finds
-- the first's.
--
-- Index: the primary key; pglimit_hold_idempotency. Locks the key's row until the
-- transaction ends.
-- Denied: as in SlidingWindowLogTake; no hold is made.
WITH taken AS (
INSERT INTO pglimit_sliding_window_log AS t
       (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted,
       CASE WHEN a.granted > 0 THEN ARRAY[a.now_us] ELSE '{}' END,
       CASE WHEN a.granted > 0 THEN ARRAY[0] ELSE '{}' END,
       0, a.cost * a.granted, a.capacity, a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout', sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(period_us)::bigint AS period_us,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(capacity)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = sqlc.narg(idempotency_key)::text
                    AND h.algorithm = 'sliding_window_log' AND h.forget_at_us > a.now_us)
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, period_us = EXCLUDED.period_us,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END,
entries = CASE WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.entries[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)] ELSE t.entries END,
    totals = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN pglimit_rebase(CASE WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total] ELSE t.totals END, GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))
                  WHEN CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END > 0 THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total]
                  ELSE t.totals END,
    base = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN 0 ELSE GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END) END,
    total = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost))) END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND floor((EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))) / EXCLUDED.cost) < 1
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END,
    expires_at_us = CASE WHEN t.expires_at_us >= GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us)
                         THEN t.expires_at_us
                         ELSE GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us) + GREATEST(259200000000, 72 * (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us)) END
RETURNING t.granted, (t.total - t.base)::float8 AS level, coalesce(t.entries[cardinality(t.entries)], 0)::bigint AS newest_at_us,
       coalesce(CASE WHEN t.capacity - (t.total - t.base) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN 0
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 1], t.total)) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals)]
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 2], t.total)) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 1]
                     WHEN t.capacity - (t.total - coalesce(t.totals[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 3], t.total)) >= LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted) THEN t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) - 1e-15 * (t.total + t.capacity), t.totals) + 2]
                     ELSE t.entries[width_bucket(t.total - (t.capacity - LEAST(sqlc.arg(unit)::float8, sqlc.arg(cost)::float8 * sqlc.arg(count)::float8 - t.cost * t.granted)) + 1e-15 * (t.total + t.capacity), t.totals)] END, 0)::bigint AS frees_at_us,
       t.updated_at_us, t.blocked_until_us
), held AS (
INSERT INTO pglimit_hold
       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity, hold_us,
        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
SELECT sqlc.arg(id)::text, sqlc.arg(state)::text, 'sliding_window_log', sqlc.arg(policy)::text, sqlc.arg(key)::text, sqlc.narg(idempotency_key)::text,
       sqlc.arg(cost)::float8, sqlc.arg(cost)::float8, sqlc.arg(limit_units)::float8, sqlc.arg(burst)::float8, sqlc.arg(capacity)::float8, sqlc.arg(hold_us)::bigint,
       t.updated_at_us, t.updated_at_us + sqlc.arg(ttl_us)::bigint, t.updated_at_us + sqlc.arg(ttl_us)::bigint + sqlc.arg(remember_us)::bigint,
       t.level, 0, 1, sqlc.arg(period_us)::bigint, 0, t.updated_at_us
FROM taken AS t
WHERE t.granted > 0
)
SELECT t.granted, t.level, t.newest_at_us, t.frees_at_us, t.updated_at_us, t.blocked_until_us FROM taken AS t;

-- name: SlidingWindowLogSettle :one
-- SlidingWindowLogSettle ends a hold: units is what is to stay counted of it (0 to cancel
-- it, or when it expired), state what it becomes. The hold comes first and then the
-- key's row, so no two of these wait for each other. It changes something only
-- where the hold is open (for 'expired' only once it has), or has expired and is
-- settled late; changes tells. units_before is what was counted until now.
--
-- What goes back is taken from the entry that the hold made, if that has not left
-- the window. What was spent beyond the hold is an entry as of now, even where
-- there is no room.
--
-- Index: the primary keys. Locks the hold and the key's row until the transaction
-- ends. No row comes back for a hold that is not known; known is false where the
-- key's row was left alone.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout', sqlc.arg(lock_timeout)::text, true) END AS waits
), hold AS MATERIALIZED (
    SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
           h.hold_us, h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, sqlc.arg(units)::float8 AS actual,
           (h.state = 'held' AND (sqlc.arg(state)::text <> 'expired' OR h.expires_at_us <= c.now_us)
            OR h.state = 'expired' AND sqlc.arg(state)::text = 'settled') AS changes
    FROM c JOIN pglimit_hold AS h ON h.id = sqlc.arg(id)::text AND h.state <> 'spent'
                AND (h.forget_at_us > c.now_us OR sqlc.arg(state)::text = 'expired')
    FOR UPDATE OF h
), counted AS (
INSERT INTO pglimit_sliding_window_log AS t
       (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT h.policy, h.key, h.units, h.actual,
       CASE WHEN h.actual > h.units THEN ARRAY[h.now_us] ELSE '{}' END,
       CASE WHEN h.actual > h.units THEN ARRAY[0] ELSE '{}' END,
       0, GREATEST(0, h.actual - h.units), h.capacity, h.period_us, h.now_us, -h.counted_at_us, h.now_us + h.hold_us
FROM hold AS h
WHERE h.changes AND h.actual <> h.units
ON CONFLICT (policy, key) DO UPDATE SET
    cost = 1, capacity = CASE WHEN t.capacity = 0 THEN EXCLUDED.capacity ELSE t.capacity END, period_us = CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END,
    granted = GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))),
    entries = CASE WHEN t.total + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost) > t.total THEN t.entries || ARRAY[GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)]
                   WHEN (GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0 AND coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) <= GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))) THEN t.entries[: width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries)] || t.entries[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1 :]
                   ELSE t.entries END,
    totals = CASE WHEN t.total + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost) > t.total THEN t.totals || ARRAY[t.total]
                  WHEN (GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0 AND coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) <= GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))) THEN t.totals[: width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries)] || pglimit_rebase(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1 :], coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))
                  WHEN GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0 THEN pglimit_lower(t.totals, width_bucket(-EXCLUDED.blocked_until_us, t.entries), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))), GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))))
                  ELSE t.totals END,
    base = GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)),
    total = CASE WHEN NOT (GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0 AND coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) <= GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))) THEN t.total - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))))
                 WHEN width_bucket(-EXCLUDED.blocked_until_us, t.entries) = cardinality(t.entries) THEN GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))
                 ELSE t.total - (coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total) - GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END, t.entries) + 1], t.total)), coalesce(t.totals[width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))) END + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    expires_at_us = CASE WHEN t.expires_at_us >= GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + GREATEST((EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END), t.blocked_until_us)
                         THEN t.expires_at_us
                         ELSE GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + GREATEST((EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), CASE WHEN t.capacity = 0 THEN EXCLUDED.period_us ELSE t.period_us END), t.blocked_until_us) + GREATEST(259200000000, 72 * (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us)) END
RETURNING t.granted, (t.total - t.base)::float8 AS level, coalesce(t.entries[cardinality(t.entries)], 0)::bigint AS newest_at_us, t.updated_at_us, t.blocked_until_us
), ended AS (
UPDATE pglimit_hold AS h SET
    state = sqlc.arg(state)::text,
    units = CASE WHEN sqlc.arg(state)::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
FROM hold AS b LEFT JOIN counted AS t ON true
WHERE h.id = b.id AND b.changes
)
SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
       h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.hold_us, h.now_us::bigint AS now_us, h.expires_at_us,
       (t.updated_at_us IS NOT NULL)::bool AS known,
       (coalesce(t.granted, 0) > 0)::bool AS freed,
       coalesce(t.updated_at_us, 0)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us,
       coalesce(t.level, 0)::float8 AS level, 0::float8 AS previous, coalesce(t.newest_at_us, 0)::bigint AS at_us
FROM hold AS h LEFT JOIN counted AS t ON true;

-- name: SlidingWindowLogFill :one
-- SlidingWindowLogFill records units that were spent whatever the limit says. What is
-- there is drained and clamped at zero first, then filled up to the capacity at
-- most; granted is what went in. Blocks neither stop it nor start.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_sliding_window_log AS t
       (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 1, a.granted, ARRAY[a.now_us], ARRAY[0],
       0, a.granted, a.capacity, a.period_us, a.now_us, 0, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits,
             sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(period_us)::bigint AS period_us,
             sqlc.arg(hold_us)::bigint AS hold_us,
             LEAST(sqlc.arg(units)::float8, sqlc.arg(capacity)::float8) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, period_us = EXCLUDED.period_us,
    granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)))),
entries = CASE WHEN CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)))) > CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END THEN t.entries[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)] ELSE t.entries END,
    totals = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN pglimit_rebase(CASE WHEN CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)))) > CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total] ELSE t.totals END, GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END))
                  WHEN CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)))) > CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END THEN t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :] || ARRAY[t.total]
                  ELSE t.totals END,
    base = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN 0 ELSE GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END) END,
    total = CASE WHEN t.total > LEAST(16 * EXCLUDED.capacity, 9007199254740992 - EXCLUDED.capacity) THEN (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - EXCLUDED.capacity END)))),
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    expires_at_us = CASE WHEN t.expires_at_us >= GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us)
                         THEN t.expires_at_us
                         ELSE GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us), t.blocked_until_us) + GREATEST(259200000000, 72 * (EXCLUDED.expires_at_us - EXCLUDED.updated_at_us)) END
RETURNING t.granted, (t.total - t.base)::float8 AS level, coalesce(t.entries[cardinality(t.entries)], 0)::bigint AS newest_at_us, t.updated_at_us, t.blocked_until_us;

-- name: SlidingWindowLogRefund :one
-- SlidingWindowLogRefund gives units back, the newest entries first, at most what the
-- window holds; granted is what went back. The running total goes back by the
-- refund: entries that begin beyond it leave, and the one that it cuts keeps its
-- time and its first part. Without a row nothing is there, and no
-- row is returned.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
UPDATE pglimit_sliding_window_log AS t SET
    cost = 1, capacity = sqlc.arg(capacity)::float8, period_us = sqlc.arg(period_us)::bigint,
    granted = LEAST(sqlc.arg(units)::float8, (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END))),
    entries = CASE WHEN GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), t.total - sqlc.arg(units)::float8) > GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END)
                   THEN t.entries[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1 : coalesce(array_position(t.totals, GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), t.total - sqlc.arg(units)::float8)) - 1, width_bucket(GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), t.total - sqlc.arg(units)::float8), t.totals))] ELSE '{}' END,
    totals = CASE WHEN GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), t.total - sqlc.arg(units)::float8) > GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END)
                  THEN t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1 : coalesce(array_position(t.totals, GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), t.total - sqlc.arg(units)::float8)) - 1, width_bucket(GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), t.total - sqlc.arg(units)::float8), t.totals))] ELSE '{}' END,
    base = GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), total = GREATEST(GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END), t.total - sqlc.arg(units)::float8),
    updated_at_us = GREATEST(t.updated_at_us, c.us)
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS us, CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits) AS c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
RETURNING t.granted, (t.total - t.base)::float8 AS level, coalesce(t.entries[cardinality(t.entries)], 0)::bigint AS newest_at_us, t.updated_at_us, t.blocked_until_us;

-- name: SlidingWindowLogGet :one
-- SlidingWindowLogGet reads what the key's window holds and the clock: one row comes
-- back even when the key has none, with a level and times of 0. frees_at_us is
-- the entry that has to leave before unit more units fit.
--
-- Index: the primary key. Locks nothing.
SELECT c.us AS now_us,
       coalesce((t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END)), 0)::float8 AS level,
       coalesce(t.entries[cardinality(t.entries)], 0)::bigint AS newest_at_us,
       coalesce(CASE WHEN sqlc.arg(capacity)::float8 - (t.total - GREATEST(t.base, coalesce(t.totals[width_bucket(GREATEST(t.updated_at_us, c.us) - sqlc.arg(period_us)::bigint, t.entries) + 1], t.total), CASE WHEN t.total - t.base > 1.00000000000001 * t.capacity THEN t.base ELSE t.total - sqlc.arg(capacity)::float8 END)) >= sqlc.arg(unit)::float8 THEN 0
                     WHEN sqlc.arg(capacity)::float8 - (t.total - coalesce(t.totals[width_bucket(t.total - (sqlc.arg(capacity)::float8 - sqlc.arg(unit)::float8) - 1e-15 * (t.total + sqlc.arg(capacity)::float8), t.totals) + 1], t.total)) >= sqlc.arg(unit)::float8 THEN t.entries[width_bucket(t.total - (sqlc.arg(capacity)::float8 - sqlc.arg(unit)::float8) - 1e-15 * (t.total + sqlc.arg(capacity)::float8), t.totals)]
                     WHEN sqlc.arg(capacity)::float8 - (t.total - coalesce(t.totals[width_bucket(t.total - (sqlc.arg(capacity)::float8 - sqlc.arg(unit)::float8) - 1e-15 * (t.total + sqlc.arg(capacity)::float8), t.totals) + 2], t.total)) >= sqlc.arg(unit)::float8 THEN t.entries[width_bucket(t.total - (sqlc.arg(capacity)::float8 - sqlc.arg(unit)::float8) - 1e-15 * (t.total + sqlc.arg(capacity)::float8), t.totals) + 1]
                     WHEN sqlc.arg(capacity)::float8 - (t.total - coalesce(t.totals[width_bucket(t.total - (sqlc.arg(capacity)::float8 - sqlc.arg(unit)::float8) - 1e-15 * (t.total + sqlc.arg(capacity)::float8), t.totals) + 3], t.total)) >= sqlc.arg(unit)::float8 THEN t.entries[width_bucket(t.total - (sqlc.arg(capacity)::float8 - sqlc.arg(unit)::float8) - 1e-15 * (t.total + sqlc.arg(capacity)::float8), t.totals) + 2]
                     ELSE t.entries[width_bucket(t.total - (sqlc.arg(capacity)::float8 - sqlc.arg(unit)::float8) + 1e-15 * (t.total + sqlc.arg(capacity)::float8), t.totals)] END, 0)::bigint AS frees_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_sliding_window_log AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: SlidingWindowLogHeld :many
-- SlidingWindowLogHeld tells which of the keys have a row that another transaction
-- holds at this moment.
--
-- Index: the primary key. Locks the rows that nobody holds, and waits for none,
-- nor for the disk: the locks are gone with the statement.
WITH asked AS MATERIALIZED (
    SELECT unnest(sqlc.arg(policies)::text[]) AS policy, unnest(sqlc.arg(keys)::text[]) AS key
    FROM (SELECT set_config('synchronous_commit', 'off', true) AS commits) AS c
), free AS MATERIALIZED (
    SELECT t.policy, t.key FROM asked AS a JOIN pglimit_sliding_window_log AS t ON t.policy = a.policy AND t.key = a.key
    FOR UPDATE OF t SKIP LOCKED
)
SELECT t.policy, t.key FROM asked AS a JOIN pglimit_sliding_window_log AS t ON t.policy = a.policy AND t.key = a.key
WHERE NOT EXISTS (SELECT 1 FROM free AS f WHERE f.policy = t.policy AND f.key = t.key);

-- name: SlidingWindowLogBlock :exec
-- SlidingWindowLogBlock denies the key until the clock plus for_us, or until the end
-- of an earlier block if that is later. What the key holds stays as it is.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_sliding_window_log AS t
       (policy, key, entries, totals, base, total, capacity, period_us, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, '{}', '{}', 0, 0, 0, 1, 1, 0, c.us,
       c.us + sqlc.arg(for_us)::bigint, c.us + sqlc.arg(for_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS us, CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits) AS c
ON CONFLICT (policy, key) DO UPDATE SET
    blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(for_us)::bigint),
    expires_at_us = GREATEST(t.expires_at_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(for_us)::bigint);

-- name: SlidingWindowLogUnblock :exec
-- SlidingWindowLogUnblock lifts the key's block and nothing else: any, or the one that
-- ends at until_us if that is not 0. No row, no effect.
--
-- Index: the primary key. Locks the key's row, if there is one, until the
-- transaction ends.
UPDATE pglimit_sliding_window_log AS t SET blocked_until_us = 0
FROM (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits) AS c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text AND t.blocked_until_us > 0
  AND (sqlc.arg(until_us)::bigint = 0 OR t.blocked_until_us = sqlc.arg(until_us)::bigint);

-- name: SlidingWindowLogReset :execrows
-- SlidingWindowLogReset forgets the key: what it holds and its block. Open holds stay,
-- but nothing of them is counted any more that they could give back. Those that it
-- cannot see, because they were made while it waited for the key's row, are for
-- HoldsFree.
--
-- Index: the primary key, of holds pglimit_hold_open. Locks the key's open holds
-- and then its row, if there is one, until the transaction ends.
WITH freed AS (
    UPDATE pglimit_hold AS h SET units = 0
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = sqlc.arg(key)::text AND h.algorithm = 'sliding_window_log' AND h.state = 'held'
    RETURNING h.id
)
DELETE FROM pglimit_sliding_window_log AS t
USING (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit') = 'off'
                  THEN set_config('synchronous_commit', sqlc.arg(commit)::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
WHERE c.holds >= 0 AND t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: SlidingWindowLogExpire :execrows
-- SlidingWindowLogExpire deletes up to max_rows rows that had expired at cutoff_us, the
-- oldest first. A row that another transaction holds is passed over, and a row
-- that was renewed since it was found stays: the outer condition reads it again.
--
-- Index: expires_at_us, then the primary key. Locks the rows that it deletes.
DELETE FROM pglimit_sliding_window_log AS t
USING (SELECT b.policy, b.key FROM pglimit_sliding_window_log AS b
       WHERE b.expires_at_us <= sqlc.arg(cutoff_us)::bigint
       ORDER BY b.expires_at_us
       LIMIT sqlc.arg(max_rows)::bigint
       FOR UPDATE SKIP LOCKED) AS expired
WHERE t.policy = expired.policy AND t.key = expired.key AND t.expires_at_us <= sqlc.arg(cutoff_us)::bigint;

-- Made from queries/template/sliding_window_log.tmpl by make generate: edit that.
