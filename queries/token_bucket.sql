








-- name: TokenBucketTake :one
-- TokenBucketTake decides count asks of cost units each and grants as many as fit.
-- The level is burst less the tokens left; leak is the rate at which tokens
-- come back.
--
-- With E = GREATEST(t.updated_at_us, clock), the clock that never moves back:
--   used    = the level less what leaked until E, never below 0 nor above capacity
--   granted = LEAST(count, floor((capacity - used) / cost)), never below 0
--   level   = used + cost * granted
--
-- expires_at_us is indexed, so it moves only once overrun, and then by linger_us
-- more than needed: all other updates stay HOT.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
-- Denied: granted is 0, and block_for_us > 0 starts a block; -1 while blocked.
INSERT INTO pglimit_token_bucket AS t
       (policy, key, cost, granted, level, leak, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, a.cost, a.granted, a.cost * a.granted, sqlc.arg(leak)::float8, a.now_us, 0, a.now_us + sqlc.arg(hold_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now_us,
             sqlc.arg(cost)::float8 AS cost,
             LEAST(sqlc.arg(count)::float8, floor(sqlc.arg(capacity)::float8 / sqlc.arg(cost)::float8)) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, leak = EXCLUDED.leak,
    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((sqlc.arg(capacity)::float8 - LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us) * EXCLUDED.leak))) / EXCLUDED.cost))) END,
    level = LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us) * EXCLUDED.leak))
            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0 ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((sqlc.arg(capacity)::float8 - LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us) * EXCLUDED.leak))) / EXCLUDED.cost))) END,
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    blocked_until_us = CASE WHEN sqlc.arg(block_for_us)::bigint > 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND floor((sqlc.arg(capacity)::float8 - LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us) * EXCLUDED.leak))) / EXCLUDED.cost) < 1
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(block_for_us)::bigint
                            ELSE t.blocked_until_us END,
    expires_at_us = CASE WHEN t.expires_at_us >= GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(hold_us)::bigint, t.blocked_until_us)
                         THEN t.expires_at_us
                         ELSE GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(hold_us)::bigint, t.blocked_until_us) + sqlc.arg(linger_us)::bigint END
RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us;

-- name: TokenBucketFill :one
-- TokenBucketFill records units that were spent whatever the limit says. What is
-- there is drained and clamped at zero first, then filled up to the capacity at
-- most; granted is what went in. Blocks neither stop it nor start.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_token_bucket AS t
       (policy, key, cost, granted, level, leak, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 1, a.granted, a.granted, sqlc.arg(leak)::float8, a.now_us, 0, a.now_us + sqlc.arg(hold_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now_us,
             LEAST(sqlc.arg(units)::float8, sqlc.arg(capacity)::float8) AS granted) AS a
ON CONFLICT (policy, key) DO UPDATE SET
    cost = EXCLUDED.cost, leak = EXCLUDED.leak,
    granted = LEAST(EXCLUDED.granted, sqlc.arg(capacity)::float8 - LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us) * EXCLUDED.leak))),
    level = LEAST(sqlc.arg(capacity)::float8, LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us) * EXCLUDED.leak)) + EXCLUDED.granted),
    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
    expires_at_us = CASE WHEN t.expires_at_us >= GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(hold_us)::bigint, t.blocked_until_us)
                         THEN t.expires_at_us
                         ELSE GREATEST(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(hold_us)::bigint, t.blocked_until_us) + sqlc.arg(linger_us)::bigint END
RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us;

-- name: TokenBucketRefund :one
-- TokenBucketRefund gives units back, at most what is there; granted is what went
-- back. Without a row nothing is there, and no row is returned.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
UPDATE pglimit_token_bucket AS t SET
    cost = 1,
    granted = LEAST(sqlc.arg(units)::float8, LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, c.us) - t.updated_at_us) * sqlc.arg(leak)::float8))),
    level = GREATEST(0, LEAST(sqlc.arg(capacity)::float8, GREATEST(0, t.level - (GREATEST(t.updated_at_us, c.us) - t.updated_at_us) * sqlc.arg(leak)::float8)) - sqlc.arg(units)::float8),
    updated_at_us = GREATEST(t.updated_at_us, c.us)
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS us) AS c
WHERE t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text
RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us;

-- name: TokenBucketGet :one
-- TokenBucketGet reads the key's row and the clock: one row comes back even when
-- the key has none, with a level of 0 and the clock's reading as its times.
--
-- Index: the primary key. Locks nothing.
SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
       coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)::bigint AS us) AS c
LEFT JOIN pglimit_token_bucket AS t ON t.policy = sqlc.arg(policy)::text AND t.key = sqlc.arg(key)::text;

-- name: TokenBucketBlock :exec
-- TokenBucketBlock denies the key until the clock plus for_us, or until the end
-- of an earlier block if that is later. What the key holds stays as it is.
--
-- Index: the primary key. Locks the key's row until the transaction ends.
INSERT INTO pglimit_token_bucket AS t
       (policy, key, level, leak, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
SELECT sqlc.arg(policy)::text, sqlc.arg(key)::text, 0, 1, 1, 0, c.us,
       c.us + sqlc.arg(for_us)::bigint, c.us + sqlc.arg(for_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS us) AS c
ON CONFLICT (policy, key) DO UPDATE SET
    blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(for_us)::bigint),
    expires_at_us = GREATEST(t.expires_at_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + sqlc.arg(for_us)::bigint);

-- name: TokenBucketUnblock :exec
-- TokenBucketUnblock lifts the key's block and nothing else; no row, no effect.
--
-- Index: the primary key. Locks the key's row, if there is one, until the
-- transaction ends.
UPDATE pglimit_token_bucket SET blocked_until_us = 0
WHERE policy = sqlc.arg(policy)::text AND key = sqlc.arg(key)::text AND blocked_until_us > 0;

-- name: TokenBucketReset :exec
-- TokenBucketReset forgets the key: what it holds and its block.
--
-- Index: the primary key. Locks the key's row, if there is one, until the
-- transaction ends.
DELETE FROM pglimit_token_bucket
WHERE policy = sqlc.arg(policy)::text AND key = sqlc.arg(key)::text;

-- name: TokenBucketExpire :execrows
-- TokenBucketExpire deletes up to max_rows rows that had expired at cutoff_us, the
-- oldest first. A row that another transaction holds is passed over, and a row
-- that was renewed since it was found stays: the outer condition reads it again.
--
-- Index: expires_at_us, then the primary key. Locks the rows that it deletes.
DELETE FROM pglimit_token_bucket AS t
USING (SELECT b.policy, b.key FROM pglimit_token_bucket AS b
       WHERE b.expires_at_us <= sqlc.arg(cutoff_us)::bigint
       ORDER BY b.expires_at_us
       LIMIT sqlc.arg(max_rows)::bigint
       FOR UPDATE SKIP LOCKED) AS expired
WHERE t.policy = expired.policy AND t.key = expired.key AND t.expires_at_us <= sqlc.arg(cutoff_us)::bigint;

-- Made from queries/template/bucket.tmpl by make generate: edit that.
