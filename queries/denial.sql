-- name: DenialsAdd :exec
-- DenialsAdd adds counts of denials to the present slot of ten minutes, by the clock. Each
-- array has an element for each policy, key and algorithm, which are listed once.
--
-- Index: the primary key. Locks the rows in the order of policy, key and algorithm, those
-- under the key "" last: see DenialsTrim.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) / 600000000::bigint * 600000000::bigint AS slot_us
)
INSERT INTO pglimit_denial AS t
       (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
SELECT a.denials, a.shadowed, a.units, c.slot_us, a.last_denied_at_us, a.policy, a.key, a.algorithm
FROM c, (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy,
                pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key,
                pg_catalog.unnest(sqlc.arg(algorithms)::text[]) AS algorithm,
                pg_catalog.unnest(sqlc.arg(denials)::bigint[]) AS denials,
                pg_catalog.unnest(sqlc.arg(shadowed)::bigint[]) AS shadowed,
                pg_catalog.unnest(sqlc.arg(units)::float8[]) AS units,
                pg_catalog.unnest(sqlc.arg(last_denied_at_us)::bigint[]) AS last_denied_at_us) AS a
ORDER BY a.key = ''::text, a.policy COLLATE "C", a.key COLLATE "C", a.algorithm COLLATE "C"
ON CONFLICT (policy, key, algorithm, slot_us) DO UPDATE SET
    denials = t.denials + EXCLUDED.denials,
    shadowed = t.shadowed + EXCLUDED.shadowed,
    units = t.units + EXCLUDED.units,
    last_denied_at_us = GREATEST(t.last_denied_at_us, EXCLUDED.last_denied_at_us);

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

-- name: DenialsTrim :one
-- DenialsTrim deletes up to max_rows counts of keys, the oldest slots first, and returns
-- their number. It adds them to the counts under the key "". It skips rows that another
-- transaction has locked, but waits for those under the key "".
--
-- Index: pglimit_denial_slot, then the primary key. Locks the rows that it deletes, then
-- those under the key "" in the order of policy and algorithm.
WITH trimmed AS (
    DELETE FROM pglimit_denial AS t
    USING (SELECT b.policy, b.key, b.algorithm, b.slot_us FROM pglimit_denial AS b
           WHERE b.key <> ''::text
           ORDER BY b.slot_us
           LIMIT sqlc.arg(max_rows)::bigint
           FOR UPDATE SKIP LOCKED) AS oldest
    WHERE t.policy = oldest.policy AND t.key = oldest.key AND t.algorithm = oldest.algorithm
      AND t.slot_us = oldest.slot_us
    RETURNING t.denials, t.shadowed, t.units, t.slot_us, t.last_denied_at_us, t.policy, t.algorithm
), summed AS (
    INSERT INTO pglimit_denial AS s
           (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
    SELECT sum(d.denials)::bigint, sum(d.shadowed)::bigint, sum(d.units), d.slot_us, max(d.last_denied_at_us), d.policy, ''::text, d.algorithm
    FROM trimmed AS d
    GROUP BY d.policy, d.algorithm, d.slot_us
    ORDER BY d.policy COLLATE "C", d.algorithm COLLATE "C"
    ON CONFLICT (policy, key, algorithm, slot_us) DO UPDATE SET
        denials = s.denials + EXCLUDED.denials,
        shadowed = s.shadowed + EXCLUDED.shadowed,
        units = s.units + EXCLUDED.units,
        last_denied_at_us = GREATEST(s.last_denied_at_us, EXCLUDED.last_denied_at_us)
)
SELECT count(*) FROM trimmed AS d;
