-- name: KeysPermit :one
-- KeysPermit takes permits to insert rows of a policy: as many of wanted as there is room for
-- below max_keys. It counts them as rows. granted is their number, or -1 if the policy
-- has no count yet: run KeysBegin. wanted 0 only notes that a key is about to be reset. wanted -1
-- takes nothing: granted is 1 if there is room, and else 0.
--
-- Index: the primary key. Locks the policy's count until the transaction ends, unless
-- max_keys is reached or wanted is -1.
WITH c AS MATERIALIZED (
    SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
           CASE WHEN sqlc.arg(lock_timeout)::text <> '' THEN set_config('lock_timeout'::text, sqlc.arg(lock_timeout)::text, true) END AS waits
), taken AS (
    UPDATE pglimit_key_count AS t SET
        granted = GREATEST(0::bigint, LEAST(sqlc.arg(wanted)::bigint, sqlc.arg(max_keys)::bigint - t.keys)),
        keys = t.keys + GREATEST(0::bigint, LEAST(sqlc.arg(wanted)::bigint, sqlc.arg(max_keys)::bigint - t.keys)),
        max_keys = sqlc.arg(max_keys)::bigint,
        taken_at_us = CASE WHEN sqlc.arg(wanted)::bigint = 0::bigint OR t.keys < sqlc.arg(max_keys)::bigint THEN GREATEST(t.taken_at_us, c.us) ELSE t.taken_at_us END
    FROM c
    WHERE t.policy = sqlc.arg(policy)::text AND t.key = '' AND t.algorithm = sqlc.arg(algorithm)::text
      AND (sqlc.arg(wanted)::bigint = 0::bigint
        OR sqlc.arg(wanted)::bigint > 0::bigint AND (t.keys < sqlc.arg(max_keys)::bigint OR t.max_keys <> sqlc.arg(max_keys)::bigint))
    RETURNING t.granted
)
SELECT coalesce((SELECT t.granted FROM taken AS t),
                (SELECT CASE WHEN sqlc.arg(wanted)::bigint < 0::bigint AND t.keys < sqlc.arg(max_keys)::bigint THEN 1::bigint ELSE 0::bigint END
                 FROM pglimit_key_count AS t WHERE t.policy = sqlc.arg(policy)::text AND t.key = '' AND t.algorithm = sqlc.arg(algorithm)::text),
                -1::bigint)::bigint AS granted
FROM c;

-- name: KeysBegin :exec
-- KeysBegin makes the count of a policy that has none: keys rows. It changes no count
-- that another process has made meanwhile.
--
-- Index: the primary key. Locks the new row until the transaction ends.
INSERT INTO pglimit_key_count AS t (keys, max_keys, granted, taken_at_us, counted_at_us, policy, key, algorithm)
SELECT sqlc.arg(keys)::bigint, sqlc.arg(max_keys)::bigint, 0, c.us, c.us, sqlc.arg(policy)::text, '', sqlc.arg(algorithm)::text
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us) AS c
ON CONFLICT (policy, key, algorithm) DO NOTHING;

-- name: KeysUncounted :many
-- KeysUncounted lists the counts of policies whose rows the janitor counts now: those that
-- nobody has used for quiet_us and that were not counted since, and those not counted
-- for every_us. quiet reports the first.
--
-- Index: none, since there is one row for each bounded policy. Locks nothing.
SELECT t.policy, t.algorithm, t.taken_at_us, (t.taken_at_us <= sqlc.arg(cutoff_us)::bigint - sqlc.arg(quiet_us)::bigint)::bool AS quiet
FROM pglimit_key_count AS t
WHERE t.counted_at_us <= sqlc.arg(cutoff_us)::bigint - sqlc.arg(every_us)::bigint
   OR t.taken_at_us <= sqlc.arg(cutoff_us)::bigint - sqlc.arg(quiet_us)::bigint AND t.counted_at_us < t.taken_at_us + sqlc.arg(quiet_us)::bigint
ORDER BY t.policy, t.algorithm;

-- name: KeysRecount :execrows
-- KeysRecount sets the count of a policy to the rows that were counted. If permits were
-- taken, or a key was reset, since KeysUncounted listed it, or it was not quiet then, the
-- count only grows: rows may be about to be inserted. It changes nothing if the count is
-- locked.
--
-- Index: the primary key. Locks the policy's count until the transaction ends.
WITH free AS MATERIALIZED (
    SELECT t.policy FROM pglimit_key_count AS t
    WHERE t.policy = sqlc.arg(policy)::text AND t.key = '' AND t.algorithm = sqlc.arg(algorithm)::text
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE pglimit_key_count AS t SET
    keys = CASE WHEN sqlc.arg(quiet)::bool AND t.taken_at_us = sqlc.arg(taken_at_us)::bigint THEN sqlc.arg(keys)::bigint ELSE GREATEST(t.keys, sqlc.arg(keys)::bigint) END,
    counted_at_us = sqlc.arg(cutoff_us)::bigint
FROM free AS f
WHERE t.policy = f.policy AND t.key = '' AND t.algorithm = sqlc.arg(algorithm)::text;

-- name: KeysState :many
-- KeysState lists the counts of all bounded policies.
--
-- Index: none. Locks nothing.
SELECT t.policy, t.algorithm, t.keys, t.max_keys FROM pglimit_key_count AS t ORDER BY t.policy, t.algorithm;
