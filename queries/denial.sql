-- name: DenialsAdd :exec
-- DenialsAdd adds counts of denials to the present minute, by the clock. Each array has an
-- element for each policy, key and algorithm, which are listed once.
--
-- Index: the primary key. Locks the rows in the order of policy, key and algorithm, those
-- under the key "" last: see DenialsTrim.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) / 60000000::bigint * 60000000::bigint AS slot_us
)
INSERT INTO pglimit_denial AS t
       (denials, shadowed, blocked, above_burst, overloaded, units, slot_us, last_denied_at_us, retry_at_us, policy, key, algorithm)
SELECT a.denials, a.shadowed, a.blocked, a.above_burst, a.overloaded, a.units, c.slot_us, a.last_denied_at_us, a.retry_at_us, a.policy, a.key, a.algorithm
FROM c, (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy,
                pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key,
                pg_catalog.unnest(sqlc.arg(algorithms)::text[]) AS algorithm,
                pg_catalog.unnest(sqlc.arg(denials)::bigint[]) AS denials,
                pg_catalog.unnest(sqlc.arg(shadowed)::bigint[]) AS shadowed,
                pg_catalog.unnest(sqlc.arg(blocked)::bigint[]) AS blocked,
                pg_catalog.unnest(sqlc.arg(above_burst)::bigint[]) AS above_burst,
                pg_catalog.unnest(sqlc.arg(overloaded)::bigint[]) AS overloaded,
                pg_catalog.unnest(sqlc.arg(units)::float8[]) AS units,
                pg_catalog.unnest(sqlc.arg(last_denied_at_us)::bigint[]) AS last_denied_at_us,
                pg_catalog.unnest(sqlc.arg(retry_at_us)::bigint[]) AS retry_at_us) AS a
ORDER BY a.key = ''::text, a.policy COLLATE "C", a.key COLLATE "C", a.algorithm COLLATE "C"
ON CONFLICT (policy, key, algorithm, slot_us) DO UPDATE SET
    denials = t.denials + EXCLUDED.denials,
    shadowed = t.shadowed + EXCLUDED.shadowed,
    blocked = t.blocked + EXCLUDED.blocked,
    above_burst = t.above_burst + EXCLUDED.above_burst,
    overloaded = t.overloaded + EXCLUDED.overloaded,
    units = t.units + EXCLUDED.units,
    last_denied_at_us = GREATEST(t.last_denied_at_us, EXCLUDED.last_denied_at_us),
    retry_at_us = GREATEST(t.retry_at_us, EXCLUDED.retry_at_us);

-- name: DenialsMerge :one
-- DenialsMerge merges up to max_rows rows of minutes before before_us, the oldest first: of
-- each policy, key, algorithm and ten minutes one row is left. It returns how many rows it
-- merged and how many of these it deleted. It skips rows that another transaction has
-- locked, and waits for none: it changes only rows that it has locked.
--
-- Index: pglimit_denial_slot, then the primary key.
WITH minutes AS MATERIALIZED (
    SELECT b.* FROM pglimit_denial AS b
    WHERE b.slot_us < sqlc.arg(before_us)::bigint AND NOT b.merged
    ORDER BY b.slot_us
    LIMIT sqlc.arg(max_rows)::bigint
    FOR UPDATE SKIP LOCKED
), sums AS MATERIALIZED (
    SELECT sum(m.denials)::bigint AS denials, sum(m.shadowed)::bigint AS shadowed, sum(m.blocked)::bigint AS blocked, sum(m.above_burst)::bigint AS above_burst,
           sum(m.overloaded)::bigint AS overloaded, sum(m.units) AS units, max(m.last_denied_at_us) AS last_denied_at_us, max(m.retry_at_us) AS retry_at_us,
           min(m.slot_us) AS slot_us, m.policy, m.key, m.algorithm
    FROM minutes AS m
    GROUP BY m.policy, m.key, m.algorithm, m.slot_us / 600000000::bigint
), kept AS (
    UPDATE pglimit_denial AS t SET
        denials = s.denials, shadowed = s.shadowed, blocked = s.blocked, above_burst = s.above_burst, overloaded = s.overloaded, units = s.units,
        last_denied_at_us = s.last_denied_at_us, retry_at_us = s.retry_at_us, merged = true
    FROM sums AS s
    WHERE t.policy = s.policy AND t.key = s.key AND t.algorithm = s.algorithm AND t.slot_us = s.slot_us
), deleted AS (
    DELETE FROM pglimit_denial AS t USING minutes AS m
    WHERE t.policy = m.policy AND t.key = m.key AND t.algorithm = m.algorithm AND t.slot_us = m.slot_us
      AND NOT EXISTS (SELECT FROM sums AS s WHERE s.policy = m.policy AND s.key = m.key AND s.algorithm = m.algorithm AND s.slot_us = m.slot_us)
    RETURNING t.slot_us
)
SELECT (SELECT count(*) FROM minutes AS m) AS merged, (SELECT count(*) FROM deleted AS d) AS deleted;

-- name: DenialsForget :execrows
-- DenialsForget deletes up to max_rows counts of denials whose slot began at cutoff_us or
-- before, the oldest first. It skips rows that another transaction has locked.
--
-- Index: pglimit_denial_slot, then the primary key. Locks the rows that it deletes.
DELETE FROM pglimit_denial AS t
USING (SELECT b.policy, b.key, b.algorithm, b.slot_us FROM pglimit_denial AS b
       WHERE b.slot_us <= sqlc.arg(cutoff_us)::bigint
       ORDER BY b.slot_us
       LIMIT sqlc.arg(max_rows)::bigint
       FOR UPDATE SKIP LOCKED) AS forgotten
WHERE t.policy = forgotten.policy AND t.key = forgotten.key AND t.algorithm = forgotten.algorithm
  AND t.slot_us = forgotten.slot_us;

-- name: DenialsCount :one
-- DenialsCount returns the number of counts of keys.
--
-- Index: none; it reads the table. Locks nothing.
SELECT count(*) FROM pglimit_denial AS t WHERE t.key <> ''::text;

-- name: DenialsTrim :many
-- DenialsTrim deletes up to max_rows counts of keys, the oldest slots first. It returns
-- their sums, in order of policy and algorithm, and their number as deleted. DenialsAdd
-- adds these under the key "" in the same transaction. DenialsTrim skips rows that another
-- transaction has locked.
--
-- Index: pglimit_denial_slot, then the primary key. Locks the rows that it deletes.
WITH trimmed AS (
    DELETE FROM pglimit_denial AS t
    USING (SELECT b.policy, b.key, b.algorithm, b.slot_us FROM pglimit_denial AS b
           WHERE b.key <> ''::text
           ORDER BY b.slot_us
           LIMIT sqlc.arg(max_rows)::bigint
           FOR UPDATE SKIP LOCKED) AS oldest
    WHERE t.policy = oldest.policy AND t.key = oldest.key AND t.algorithm = oldest.algorithm
      AND t.slot_us = oldest.slot_us
    RETURNING t.denials, t.shadowed, t.blocked, t.above_burst, t.overloaded, t.units, t.slot_us, t.last_denied_at_us, t.policy, t.algorithm
)
SELECT count(*) AS deleted, sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.blocked)::bigint AS blocked,
       sum(d.above_burst)::bigint AS above_burst, sum(d.overloaded)::bigint AS overloaded, sum(d.units)::float8 AS units,
       d.slot_us, max(d.last_denied_at_us)::bigint AS last_denied_at_us, d.policy, d.algorithm
FROM trimmed AS d
GROUP BY d.policy, d.algorithm, d.slot_us
ORDER BY d.policy, d.algorithm, d.slot_us;
