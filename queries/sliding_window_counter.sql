






















-- name: SlidingWindowCounterTake :one
-- SlidingWindowCounterTake decides count asks of cost units each and grants as many as fit.
-- Windows are whole multiples of the period since 1970-01-01 UTC; the one before
-- the current one weighs as much as the sliding window still covers of it.
--
-- With E = GREATEST(t.updated_at_us, clock), the clock that never moves back:
--   current, previous = as they stand while E is before ends_at_us; moved on by
--                       one window after it; nothing one period later
--   used    = previous * (ends_at_us - E) / period + current
--   granted = LEAST(count, floor((capacity - used) / cost)), never below 0
-- The period is the row's while its window lasts, whatever the asker's. After it the
-- windows are the asker's; if that is another period, current begins with what still
-- weighed of the window that is over.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
-- Denied: granted is 0, and block_for_us > 0 starts a block; -1 while blocked. The
-- windows stay as they were.
INSERT INTO pglimit_sliding_window_counter AS t
       (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, 0, a.capacity, a.period_us,
       (a.now_us / a.period_us + 1) * a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(period_us)::bigint AS period_us,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(capacity)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END) / EXCLUDED.cost))) END,
    current = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                   THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END + EXCLUDED.cost * GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END) / EXCLUDED.cost))) ELSE t.current END,
    previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                    THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                    ELSE t.previous END,
    period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                     THEN EXCLUDED.period_us ELSE t.period_us END,
    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                      THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us;

-- name: SlidingWindowCounterTakeMany :many
-- SlidingWindowCounterTakeMany is SlidingWindowCounterTake for many keys at once, each at most once: the
-- clock is read once for all, and the rows are locked in the order of policy and
-- key. The count of a row is that of equal asks, granted one after the other: if
-- some are granted and some not, block_for_us starts a block as well. Rows come
-- back in no order that can be relied on.
--
-- Index: the primary key. Locks the keys' rows until the transaction ends.
-- Denied: as in SlidingWindowCounterTake. A row that stays locked for longer than
-- lock_timeout fails the statement: SlidingWindowCounterHeld tells which.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
)
INSERT INTO pglimit_sliding_window_counter AS t
       (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, 0, a.capacity, a.period_us,
       (a.now_us / a.period_us + 1) * a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT c.now_us, r.*, LEAST(r.count, floor(r.capacity / r.cost)) AS granted
      FROM c, (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key,
                      pg_catalog.unnest(sqlc.arg(costs)::float8[]) AS cost, pg_catalog.unnest(sqlc.arg(counts)::float8[]) AS count,
                      pg_catalog.unnest(sqlc.arg(capacities)::float8[]) AS capacity,
                      pg_catalog.unnest(sqlc.arg(periods_us)::bigint[]) AS period_us,
                      pg_catalog.unnest(sqlc.arg(holds_us)::bigint[]) AS hold_us, pg_catalog.unnest(sqlc.arg(blocks_for_us)::bigint[]) AS block_for_us) AS r) AS a
ORDER BY a.policy COLLATE "C", a.key COLLATE "C"
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END) / EXCLUDED.cost))) END,
    current = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                   THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END + EXCLUDED.cost * GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END) / EXCLUDED.cost))) ELSE t.current END,
    previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                    THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                    ELSE t.previous END,
    period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                     THEN EXCLUDED.period_us ELSE t.period_us END,
    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                      THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND floor((EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END) / EXCLUDED.cost) < EXCLUDED.granted
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.policy, t.key, t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us;

-- name: SlidingWindowCounterReserve :one
-- SlidingWindowCounterReserve is SlidingWindowCounterTake for one ask that, if it is granted, is noted in
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
-- Denied: as in SlidingWindowCounterTake; no hold is made.
WITH taken AS (
INSERT INTO pglimit_sliding_window_counter AS t
       (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, 0, a.capacity, a.period_us,
       (a.now_us / a.period_us + 1) * a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits,
             sqlc.arg(policy)::text AS policy, sqlc.arg(key)::text AS key,
             sqlc.arg(cost)::float8 AS cost, sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(period_us)::bigint AS period_us,
             sqlc.arg(hold_us)::bigint AS hold_us, sqlc.arg(block_for_us)::bigint AS block_for_us,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(capacity)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = sqlc.narg(idempotency_key)::text
                    AND h.algorithm = 'sliding_window_counter' AND h.forget_at_us > a.now_us)
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END) / EXCLUDED.cost))) END,
    current = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                   THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END + EXCLUDED.cost * GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END) / EXCLUDED.cost))) ELSE t.current END,
    previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                    THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                    ELSE t.previous END,
    period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                     THEN EXCLUDED.period_us ELSE t.period_us END,
    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                      THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
), held AS (
INSERT INTO pglimit_hold
       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
SELECT sqlc.arg(id)::text, sqlc.arg(state)::text, 'sliding_window_counter', sqlc.arg(policy)::text, sqlc.arg(key)::text, sqlc.narg(idempotency_key)::text,
       sqlc.arg(cost)::float8, sqlc.arg(cost)::float8, sqlc.arg(limit_units)::float8, sqlc.arg(burst)::float8, sqlc.arg(capacity)::float8,
       t.updated_at_us, t.updated_at_us + sqlc.arg(ttl_us)::bigint, t.updated_at_us + sqlc.arg(ttl_us)::bigint + sqlc.arg(remember_us)::bigint,
       t.previous * LEAST(t.period_us, t.ends_at_us - t.updated_at_us)::float8 / t.period_us::float8 + t.current, 0, 1, sqlc.arg(period_us)::bigint, t.ends_at_us, t.updated_at_us
FROM taken AS t
WHERE t.granted > 0::float8
)
SELECT t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us FROM taken AS t;

-- name: SlidingWindowCounterSettle :one
-- SlidingWindowCounterSettle ends a hold: units is what is to stay counted of it (0 to cancel
-- it, or when it expired), state what it becomes. The hold comes first and then the
-- key's row, so no two of these wait for each other. It changes something only
-- where the hold is open (for 'expired' only once it has), or has expired and is
-- settled late; changes tells. units_before is what was counted until now. A hold
-- that is cancelled or expires gives its idempotency key up.
--
-- How the key stands comes from its row after the change, or, where that was left
-- alone, as the statement finds it: updated_at_us tells as of when.
--
-- What goes back is taken from the window that the hold was counted in, if that is
-- the current one or, of the same period, the one before. What was spent beyond the hold counts as of
-- now, even where there is no room.
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
INSERT INTO pglimit_sliding_window_counter AS t
       (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT h.policy, h.key, h.units, h.actual, GREATEST(0, h.actual - h.units), 0, h.capacity, h.period_us,
       (h.now_us / h.period_us + 1) * h.period_us, h.now_us, -h.ends_at_us, h.now_us
FROM hold AS h
WHERE h.changes AND h.actual <> h.units
ON CONFLICT (policy, key) DO UPDATE SET
    cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END,
    granted = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1) * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us THEN LEAST(CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current ELSE 0 END, GREATEST(0, EXCLUDED.cost - EXCLUDED.granted))
                   WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1) * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us + t.period_us THEN LEAST(CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END, GREATEST(0, EXCLUDED.cost - EXCLUDED.granted)) ELSE 0 END,
    current = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1) * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us THEN GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current ELSE 0 END - GREATEST(0, EXCLUDED.cost - EXCLUDED.granted)) ELSE CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current ELSE 0 END END
              + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
    previous = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1) * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us + t.period_us THEN GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END - GREATEST(0, EXCLUDED.cost - EXCLUDED.granted)) ELSE CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END END,
    period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.period_us ELSE CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END,
    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1) * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
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
       coalesce(t.current, r.current, 0)::float8 AS level, coalesce(t.previous, r.previous, 0)::float8 AS previous, coalesce(t.ends_at_us, r.ends_at_us, 0)::bigint AS at_us, coalesce(t.period_us, r.period_us, 1)::bigint AS window_us
FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_sliding_window_counter AS r ON r.policy = h.policy AND r.key = h.key;

-- name: SlidingWindowCounterFill :one
-- SlidingWindowCounterFill records units that were spent whatever the limit says. What is
-- there is drained and clamped at zero first, then filled up to the capacity at
-- most; granted is what went in. Blocks neither stop it nor start.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_sliding_window_counter AS t
       (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 1, a.granted, a.granted, 0, a.capacity, a.period_us,
       (a.now_us / a.period_us + 1) * a.period_us, a.now_us, 0, a.now_us + a.hold_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             sqlc.arg(capacity)::float8 AS capacity,
             sqlc.arg(period_us)::bigint AS period_us,
             sqlc.arg(hold_us)::bigint AS hold_us,
             LEAST(sqlc.arg(units)::float8, sqlc.arg(capacity)::float8) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
    granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)),
    current = CASE WHEN EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                   THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END + GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)) ELSE t.current END,
    previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                    THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                    ELSE t.previous END,
    period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                     THEN EXCLUDED.period_us ELSE t.period_us END,
    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                     ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                      THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us;

-- name: SlidingWindowCounterRefund :one
-- SlidingWindowCounterRefund gives units back, those of the current window first and then
-- those of the one before, at most what was counted in the two; granted is what
-- went back. Without a row nothing is there.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
), back AS (
UPDATE pglimit_sliding_window_counter AS t SET
    cost = 1,
    granted = LEAST(sqlc.arg(units)::float8, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END + CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END),
    current = GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END - sqlc.arg(units)::float8),
    previous = GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END - GREATEST(0, sqlc.arg(units)::float8 - CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END)),
    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, c.us) / t.period_us + 1) * t.period_us END,
updated_at_us = GREATEST(t.updated_at_us, c.us)
FROM c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
)
SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous, coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM c LEFT JOIN back AS t ON true;

-- name: SlidingWindowCounterUndo :one
-- SlidingWindowCounterUndo gives back units that one decision granted, as far as they are still
-- there: what has leaked since, or has left the window, is not. granted is what
-- went back. Without a row nothing is there.
-- Only the window that ends at ends_at_us gives anything back, while it is the
-- current one or, of the same period, the one before.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
             CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits,
             CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
), back AS (
UPDATE pglimit_sliding_window_counter AS t SET
    cost = 1,
    granted = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, c.us) / t.period_us + 1) * t.period_us END = sqlc.arg(ends_at_us)::bigint THEN LEAST(CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END, sqlc.arg(units)::float8)
                   WHEN CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, c.us) / t.period_us + 1) * t.period_us END = sqlc.arg(ends_at_us)::bigint + t.period_us THEN LEAST(CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END, sqlc.arg(units)::float8) ELSE 0 END,
    current = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, c.us) / t.period_us + 1) * t.period_us END = sqlc.arg(ends_at_us)::bigint THEN GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END - sqlc.arg(units)::float8) ELSE CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END END,
    previous = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, c.us) / t.period_us + 1) * t.period_us END = sqlc.arg(ends_at_us)::bigint + t.period_us THEN GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END - sqlc.arg(units)::float8) ELSE CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.previous
                    WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END END,
    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.ends_at_us
                      ELSE (GREATEST(t.updated_at_us, c.us) / t.period_us + 1) * t.period_us END,
updated_at_us = GREATEST(t.updated_at_us, c.us)
FROM c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
)
SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous, coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM c LEFT JOIN back AS t ON true;

-- name: SlidingWindowCounterGet :one
-- SlidingWindowCounterGet reads the key's row and the clock: one row comes back even when
-- the key has none, with counts of 0 and a window that has ended.
--
-- Index: the primary key. Locks nothing.
SELECT c.us AS now_us, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous,
       coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_sliding_window_counter AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: SlidingWindowCounterHeld :many
-- SlidingWindowCounterHeld tells which of the keys have a row that another transaction
-- holds at this moment.
--
-- Index: the primary key. Locks the rows that nobody holds, and waits for none,
-- nor for the disk: the locks are gone with the statement.
WITH asked AS MATERIALIZED (
    SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key
    FROM (SELECT set_config('synchronous_commit'::text, 'off'::text, true) AS commits) AS c
), free AS MATERIALIZED (
    SELECT t.policy, t.key FROM asked AS a JOIN pglimit_sliding_window_counter AS t ON t.policy = a.policy AND t.key = a.key
    FOR UPDATE OF t SKIP LOCKED
)
SELECT t.policy, t.key FROM asked AS a JOIN pglimit_sliding_window_counter AS t ON t.policy = a.policy AND t.key = a.key
WHERE NOT EXISTS (SELECT 1 FROM free AS f WHERE f.policy = t.policy AND f.key = t.key);

-- name: SlidingWindowCounterBlock :exec
-- SlidingWindowCounterBlock denies the key until the clock plus for_us, or until the end
-- of an earlier block if that is later. What the key holds stays as it is.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_sliding_window_counter AS t
       (policy, key, current, previous, capacity, period_us, ends_at_us, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 0, 0, 0, 1, 0, 1, 0, c.us,
       c.us + sqlc.arg(for_us)::bigint, c.us + sqlc.arg(for_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us, CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits) AS c
ON CONFLICT (policy, key) DO UPDATE SET
    blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(for_us)::bigint);

-- name: SlidingWindowCounterUnblock :exec
-- SlidingWindowCounterUnblock lifts the key's block and nothing else: any, or the one that
-- ends at until_us if that is not 0. No row, no effect.
--
-- Index: the primary key. Locks the key's row, if there is one, until the
-- transaction ends.
UPDATE pglimit_sliding_window_counter AS t SET blocked_until_us = 0
FROM (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits) AS c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text AND t.blocked_until_us > 0
  AND (sqlc.arg(until_us)::bigint = 0 OR t.blocked_until_us = sqlc.arg(until_us)::bigint);

-- name: SlidingWindowCounterReset :execrows
-- SlidingWindowCounterReset forgets the key: what it holds and its block. Open holds stay,
-- but nothing of them is counted any more that they could give back. Those that it
-- cannot see, because they were made while it waited for the key's row, are for
-- HoldsFree.
--
-- Index: the primary key, of holds pglimit_hold_open. Locks the key's open holds
-- and then its row, if there is one, until the transaction ends.
WITH freed AS (
    UPDATE pglimit_hold AS h SET units = 0
    WHERE h.policy = sqlc.arg(policy)::text AND h.key = sqlc.arg(key)::text AND h.algorithm = 'sliding_window_counter' AND h.state = 'held'
    RETURNING h.id
)
DELETE FROM pglimit_sliding_window_counter AS t
USING (SELECT CASE WHEN sqlc.arg(commit)::text = 'off' OR sqlc.arg(commit)::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                  THEN set_config('synchronous_commit'::text, sqlc.arg(commit)::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
WHERE c.holds >= 0 AND t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: SlidingWindowCounterSweep :one
-- SlidingWindowCounterSweep looks at up to max_rows rows that are due at cutoff_us, the
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
    SELECT t.policy, t.key, GREATEST(CASE WHEN t.current > 0::float8 THEN t.ends_at_us + t.period_us WHEN t.previous > 0::float8 THEN t.ends_at_us ELSE 0 END, t.updated_at_us, t.blocked_until_us) AS empty_at_us,
           EXISTS (SELECT 1 FROM pglimit_hold AS h WHERE h.policy = t.policy AND h.key = t.key AND h.state = 'held' AND h.algorithm = 'sliding_window_counter') AS held
    FROM pglimit_sliding_window_counter AS t
    WHERE t.expires_at_us <= sqlc.arg(cutoff_us)::bigint
    ORDER BY t.expires_at_us
    LIMIT sqlc.arg(max_rows)::bigint
    FOR UPDATE OF t SKIP LOCKED
), deleted AS (
    DELETE FROM pglimit_sliding_window_counter AS t USING due AS d
    WHERE t.policy = d.policy AND t.key = d.key AND d.empty_at_us <= sqlc.arg(cutoff_us)::bigint AND NOT d.held
    RETURNING 1
), kept AS (
    UPDATE pglimit_sliding_window_counter AS t SET expires_at_us = GREATEST(d.empty_at_us, sqlc.arg(cutoff_us)::bigint + 3600000000)
    FROM due AS d
    WHERE t.policy = d.policy AND t.key = d.key AND (d.empty_at_us > sqlc.arg(cutoff_us)::bigint OR d.held)
    RETURNING 1
)
SELECT (SELECT count(*) FROM deleted)::bigint AS deleted, (SELECT count(*) FROM kept)::bigint AS kept;

-- name: SlidingWindowCounterStatement :one
-- SlidingWindowCounterStatement is SlidingWindowCounterGet, and adds up the key's open holds at that same
-- moment: how many there are, and what is counted for them.
--
-- Index: the primary key, pglimit_hold_open. Locks nothing.
SELECT s.*, o.holds, o.held
FROM (
SELECT c.us AS now_us, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous,
       coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_sliding_window_counter AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
) AS s,
LATERAL (SELECT count(*) AS holds, coalesce(sum(h.units), 0)::float8 AS held FROM pglimit_hold AS h
         WHERE h.policy = sqlc.arg(policy)::text AND h.key = sqlc.arg(key)::text AND h.state = 'held' AND h.algorithm = 'sliding_window_counter') AS o;

-- Made from queries/template/sliding_window_counter.tmpl by make generate: edit that.
