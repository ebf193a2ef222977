-- Policies and overrides. Triggers stamp what these statements change and write the
-- history. Durations are seconds, and times microseconds since 1970. NULLs are returned
-- as numbers: drivers of database/sql read those alike.

-- name: PolicyVersion :one
-- PolicyVersion returns the version of all policies and overrides; no row if someone
-- deleted it.
--
-- Index: none; the table has one row. Locks nothing.
SELECT v.version FROM pglimit_policy_version AS v;

-- name: PolicyVersionLock :one
-- PolicyVersionLock returns the version and keeps others from changing policies and
-- overrides until the transaction ends.
--
-- Index: none; the table has one row. Locks that row.
SELECT v.version FROM pglimit_policy_version AS v FOR UPDATE;

-- name: PolicyNote :exec
-- PolicyNote sets the note that the history gets for all changes of this transaction.
-- Locks nothing.
SELECT set_config('pglimit.note'::text, sqlc.arg(note)::text, true);

-- name: Policies :many
-- Policies returns all policies, by name. burst is 0 if it is NULL, and period_s too.
--
-- Index: the primary key, or none. Locks nothing.
SELECT p.name, p.algorithm, p.limit_units, coalesce(p.period_s, 0::float8)::float8 AS period_s, coalesce(p.burst, 0::float8)::float8 AS burst, p.tick_s, p.block_for_s, p.block_growth, p.block_max_s, p.lease,
       p.max_keys, p.rest_limit, p.overdraft, p.max_ttl_s, p.aligned, p.shadow, p.askers, p.count_denials, p.ledger, p.marks, p.usage_by, p.usage_for_s, p.calendar, p.time_zone, p.anchor, p.durability, p.on_error, p.local_share, p.note, p.version, p.changed_by,
       (date_part('epoch'::text, p.changed_at) * 1000000::float8)::bigint AS changed_at_us
FROM pglimit_policy AS p
ORDER BY p.name;

-- name: Overrides :many
-- Overrides returns the first max_rows overrides after a policy, key and match, in that
-- order; of all policies if name is empty. limit_units, factor, burst and until_us are 0 if
-- they are NULL. shadow is -1 if it is NULL, else 0 or 1.
--
-- Index: the primary key, or none. Locks nothing.
SELECT o.policy, o.key, o.match, coalesce(o.limit_units, 0::float8)::float8 AS limit_units, coalesce(o.factor, 0::float8)::float8 AS factor,
       coalesce(o.burst, 0::float8)::float8 AS burst, o.anchor, o.unlimited, o.blocked,
       (CASE WHEN o.shadow IS NULL THEN -1 WHEN o.shadow THEN 1 ELSE 0 END)::bigint AS shadow,
       (CASE WHEN o.until IS NULL THEN 0::float8 ELSE date_part('epoch'::text, o.until) * 1000000::float8 END)::bigint AS until_us,
       o.note, o.version, o.changed_by, (date_part('epoch'::text, o.changed_at) * 1000000::float8)::bigint AS changed_at_us
FROM pglimit_override AS o
WHERE (o.policy, o.key, o.match) > (sqlc.arg(after_policy)::text, sqlc.arg(after_key)::text, sqlc.arg(after_match)::text) AND (sqlc.arg(name)::text = ''::text OR o.policy = sqlc.arg(name)::text)
ORDER BY o.policy, o.key, o.match
LIMIT sqlc.arg(max_rows)::bigint;

-- name: OverridesChanged :many
-- OverridesChanged returns the first max_rows changes from that id on, in their order, each
-- with the override as it is now. An override that is gone limits nothing. key is empty for
-- the change of a policy. The columns are those of Overrides.
--
-- Index: the primary keys. Locks nothing.
SELECT h.id, h.version AS changed_version, (date_part('epoch'::text, h.changed_at) * 1000000::float8)::bigint AS changed_at_us,
       h.name, coalesce(h.key, ''::text)::text AS key, coalesce(coalesce(h.after, h.before) ->> 'match'::text, ''::text)::text AS match,
       coalesce(o.limit_units, 0::float8)::float8 AS limit_units, coalesce(o.factor, 0::float8)::float8 AS factor,
       coalesce(o.burst, 0::float8)::float8 AS burst, coalesce(o.anchor, ''::text)::text AS anchor, coalesce(o.unlimited, false)::bool AS unlimited, coalesce(o.blocked, false)::bool AS blocked,
       (CASE WHEN o.shadow IS NULL THEN -1 WHEN o.shadow THEN 1 ELSE 0 END)::bigint AS shadow,
       (CASE WHEN o.until IS NULL THEN 0::float8 ELSE date_part('epoch'::text, o.until) * 1000000::float8 END)::bigint AS until_us,
       coalesce(o.version, 0::bigint)::bigint AS version
FROM pglimit_policy_history AS h LEFT JOIN pglimit_override AS o ON o.policy = h.name AND o.key = h.key AND o.match = coalesce(h.after, h.before) ->> 'match'::text
WHERE h.id >= sqlc.arg(first_id)::bigint
ORDER BY h.id
LIMIT sqlc.arg(max_rows)::bigint;

-- name: PolicyUpdate :execrows
-- PolicyUpdate changes a policy. It changes no row if there is none of that name: then
-- PolicyInsert. An upsert would raise the version even if it changed nothing.
--
-- Index: the primary key. Locks the version's row and the policy.
UPDATE pglimit_policy AS p
SET algorithm = sqlc.arg(algorithm)::text, limit_units = sqlc.arg(limit_units)::float8, period_s = nullif(sqlc.arg(period_s)::float8, 0::float8),
    burst = nullif(sqlc.arg(burst)::float8, 0::float8), tick_s = sqlc.arg(tick_s)::float8, block_for_s = sqlc.arg(block_for_s)::float8,
    block_growth = sqlc.arg(block_growth)::float8, block_max_s = sqlc.arg(block_max_s)::float8, lease = sqlc.arg(lease)::float8,
    max_keys = sqlc.arg(max_keys)::bigint, rest_limit = sqlc.arg(rest_limit)::float8, overdraft = sqlc.arg(overdraft)::float8,
    max_ttl_s = sqlc.arg(max_ttl_s)::float8, aligned = sqlc.arg(aligned)::bool, shadow = sqlc.arg(shadow)::bool, askers = sqlc.arg(askers)::bool,
    count_denials = sqlc.arg(count_denials)::bool, ledger = sqlc.arg(ledger)::bool,
    marks = sqlc.arg(marks)::text, usage_by = sqlc.arg(usage_by)::text, usage_for_s = sqlc.arg(usage_for_s)::float8, calendar = sqlc.arg(calendar)::text, time_zone = sqlc.arg(time_zone)::text, anchor = sqlc.arg(anchor)::text, durability = sqlc.arg(durability)::text,
    on_error = sqlc.arg(on_error)::text, local_share = sqlc.arg(local_share)::float8, note = sqlc.arg(note)::text
WHERE p.name = sqlc.arg(name)::text;

-- name: PolicyInsert :exec
-- PolicyInsert writes a new policy. The parameters are those of PolicyUpdate.
--
-- Index: none. Locks the version's row and the policy.
INSERT INTO pglimit_policy (algorithm, limit_units, period_s, burst, tick_s, block_for_s, block_growth, block_max_s, lease, max_keys, rest_limit, overdraft, max_ttl_s, aligned, shadow, askers, count_denials, ledger, marks, usage_by, usage_for_s, calendar, time_zone, anchor, durability, on_error, local_share, note, name)
VALUES (sqlc.arg(algorithm)::text, sqlc.arg(limit_units)::float8, nullif(sqlc.arg(period_s)::float8, 0::float8),
        nullif(sqlc.arg(burst)::float8, 0::float8), sqlc.arg(tick_s)::float8, sqlc.arg(block_for_s)::float8,
        sqlc.arg(block_growth)::float8, sqlc.arg(block_max_s)::float8, sqlc.arg(lease)::float8, sqlc.arg(max_keys)::bigint, sqlc.arg(rest_limit)::float8, sqlc.arg(overdraft)::float8, sqlc.arg(max_ttl_s)::float8,
        sqlc.arg(aligned)::bool, sqlc.arg(shadow)::bool, sqlc.arg(askers)::bool, sqlc.arg(count_denials)::bool, sqlc.arg(ledger)::bool, sqlc.arg(marks)::text, sqlc.arg(usage_by)::text, sqlc.arg(usage_for_s)::float8, sqlc.arg(calendar)::text, sqlc.arg(time_zone)::text, sqlc.arg(anchor)::text,
        sqlc.arg(durability)::text, sqlc.arg(on_error)::text, sqlc.arg(local_share)::float8, sqlc.arg(note)::text, sqlc.arg(name)::text);

-- name: PolicyDelete :execrows
-- PolicyDelete deletes a policy. Its overrides stay: programs may have a policy of that
-- name too.
--
-- Index: the primary key. Locks the version's row and the policy.
DELETE FROM pglimit_policy AS p WHERE p.name = sqlc.arg(name)::text;

-- name: OverridesUpdate :exec
-- OverridesUpdate changes those of the overrides that exist. shadow is -1 for NULL;
-- limit_units, factor, burst and until_us are 0 for NULL.
--
-- Index: the primary key. Locks the version's row and the overrides.
UPDATE pglimit_override AS o
SET limit_units = nullif(u.limit_units, 0::float8), factor = nullif(u.factor, 0::float8), burst = nullif(u.burst, 0::float8), anchor = u.anchor, unlimited = u.unlimited, blocked = u.blocked,
    shadow = CASE WHEN u.shadow >= 0::bigint THEN u.shadow = 1::bigint END,
    until = CASE WHEN u.until_us <> 0::bigint THEN '1970-01-01 00:00:00+00'::timestamptz + u.until_us::float8 * '00:00:00.000001'::interval END,
    note = u.note
FROM (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key,
             pg_catalog.unnest(sqlc.arg(limits)::float8[]) AS limit_units, pg_catalog.unnest(sqlc.arg(factors)::float8[]) AS factor,
             pg_catalog.unnest(sqlc.arg(bursts)::float8[]) AS burst, pg_catalog.unnest(sqlc.arg(anchors)::text[]) AS anchor,
             pg_catalog.unnest(sqlc.arg(unlimited)::bool[]) AS unlimited, pg_catalog.unnest(sqlc.arg(blocked)::bool[]) AS blocked, pg_catalog.unnest(sqlc.arg(matches)::text[]) AS match,
             pg_catalog.unnest(sqlc.arg(shadows)::bigint[]) AS shadow,
             pg_catalog.unnest(sqlc.arg(untils_us)::bigint[]) AS until_us, pg_catalog.unnest(sqlc.arg(notes)::text[]) AS note) AS u
WHERE o.policy = u.policy AND o.key = u.key AND o.match = u.match;

-- name: OverridesInsert :exec
-- OverridesInsert writes those of the overrides that do not exist. The parameters are
-- those of OverridesUpdate.
--
-- Index: the primary key. Locks the version's row and the overrides.
INSERT INTO pglimit_override (policy, key, match, limit_units, factor, burst, anchor, unlimited, blocked, shadow, until, note)
SELECT u.policy, u.key, u.match, nullif(u.limit_units, 0::float8), nullif(u.factor, 0::float8), nullif(u.burst, 0::float8), u.anchor, u.unlimited, u.blocked,
       CASE WHEN u.shadow >= 0::bigint THEN u.shadow = 1::bigint END,
       CASE WHEN u.until_us <> 0::bigint THEN '1970-01-01 00:00:00+00'::timestamptz + u.until_us::float8 * '00:00:00.000001'::interval END,
       u.note
FROM (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key,
             pg_catalog.unnest(sqlc.arg(limits)::float8[]) AS limit_units, pg_catalog.unnest(sqlc.arg(factors)::float8[]) AS factor,
             pg_catalog.unnest(sqlc.arg(bursts)::float8[]) AS burst, pg_catalog.unnest(sqlc.arg(anchors)::text[]) AS anchor,
             pg_catalog.unnest(sqlc.arg(unlimited)::bool[]) AS unlimited, pg_catalog.unnest(sqlc.arg(blocked)::bool[]) AS blocked, pg_catalog.unnest(sqlc.arg(matches)::text[]) AS match,
             pg_catalog.unnest(sqlc.arg(shadows)::bigint[]) AS shadow,
             pg_catalog.unnest(sqlc.arg(untils_us)::bigint[]) AS until_us, pg_catalog.unnest(sqlc.arg(notes)::text[]) AS note) AS u
WHERE NOT EXISTS (SELECT 1 FROM pglimit_override AS o WHERE o.policy = u.policy AND o.key = u.key AND o.match = u.match);

-- name: OverridesDelete :many
-- OverridesDelete deletes overrides and returns those that it deleted.
--
-- Index: the primary key. Locks the version's row and the overrides.
DELETE FROM pglimit_override AS o
USING (SELECT pg_catalog.unnest(sqlc.arg(policies)::text[]) AS policy, pg_catalog.unnest(sqlc.arg(keys)::text[]) AS key, pg_catalog.unnest(sqlc.arg(matches)::text[]) AS match) AS u
WHERE o.policy = u.policy AND o.key = u.key AND o.match = u.match
RETURNING o.policy, o.key, o.match;

-- name: PolicyHistory :many
-- PolicyHistory returns the last max_rows changes of a policy and its overrides, newest
-- first; of all if name is empty. The rows are JSON, and empty if there was none. key is
-- empty for the policy itself.
--
-- Index: pglimit_policy_history_name, or the primary key. Locks nothing.
SELECT h.id, h.version, (date_part('epoch'::text, h.changed_at) * 1000000::float8)::bigint AS changed_at_us, h.name, coalesce(h.key, ''::text)::text AS key,
       h.changed_by, h.note, coalesce(h.before::text, ''::text)::text AS before, coalesce(h.after::text, ''::text)::text AS after
FROM pglimit_policy_history AS h
WHERE sqlc.arg(name)::text = ''::text OR h.name = sqlc.arg(name)::text
ORDER BY h.id DESC
LIMIT sqlc.arg(max_rows)::bigint;

-- name: PolicyAt :one
-- PolicyAt returns a policy as of at_us or of a version, whichever is later, as JSON, and empty
-- if there was none: as it was before its first change since, or as it is.
--
-- Index: pglimit_policy_history_name and the primary key. Locks nothing.
SELECT coalesce((CASE WHEN c.id IS NULL THEN pg_catalog.to_jsonb(p) ELSE c.before END)::text, ''::text)::text AS policy
FROM (SELECT sqlc.arg(name)::text AS name) AS n
LEFT JOIN LATERAL (SELECT h.id, h.before FROM pglimit_policy_history AS h
                   WHERE h.name = n.name AND h.key IS NULL AND h.version > sqlc.arg(version)::bigint
                     AND h.changed_at > '1970-01-01 00:00:00+00'::timestamptz + sqlc.arg(at_us)::bigint::float8 * '00:00:00.000001'::interval
                   ORDER BY h.id LIMIT 1) AS c ON true
LEFT JOIN pglimit_policy AS p ON p.name = n.name;

-- name: OverridesAt :many
-- OverridesAt returns the overrides of a key and those with a match that a policy had as of
-- at_us, as JSON: as they were before their first change since, or as they are.
--
-- Index: pglimit_policy_history_name and the primary key. Locks nothing.
SELECT (CASE WHEN c.id IS NULL THEN pg_catalog.to_jsonb(o) ELSE c.before END)::text AS override
FROM (SELECT DISTINCT ON (h.key, h.match) h.id, h.key, h.match, h.before
      FROM (SELECT t.id, t.key, coalesce(t.after, t.before) ->> 'match'::text AS match, t.before FROM pglimit_policy_history AS t
            WHERE t.name = sqlc.arg(name)::text
              AND t.changed_at > '1970-01-01 00:00:00+00'::timestamptz + sqlc.arg(at_us)::bigint::float8 * '00:00:00.000001'::interval) AS h
      WHERE h.match <> ''::text OR h.key = sqlc.arg(key)::text
      ORDER BY h.key, h.match, h.id) AS c
FULL JOIN (SELECT * FROM pglimit_override AS t
           WHERE t.policy = sqlc.arg(name)::text AND (t.match <> ''::text OR t.key = sqlc.arg(key)::text)) AS o ON o.key = c.key AND o.match = c.match
WHERE c.id IS NULL OR c.before IS NOT NULL;

-- name: PolicyProbe :exec
-- PolicyProbe notifies the sessions that listen. Locks nothing.
SELECT pg_notify('pglimit_policies'::text, sqlc.arg(payload)::text);
