-- name: DashboardDenials :many
-- DashboardDenials adds up the denials from from_us on by policy and by slot of size_us, for
-- a chart. It returns no row for a slot without denials.
--
-- Index: pglimit_denial_slot. Locks nothing.
SELECT (d.slot_us / sqlc.arg(size_us)::bigint * sqlc.arg(size_us)::bigint)::bigint AS start_us, d.policy,
       sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.blocked)::bigint AS blocked,
       sum(d.above_burst)::bigint AS above_burst, sum(d.overloaded)::bigint AS overloaded, sum(d.units)::float8 AS units
FROM pglimit_denial AS d
WHERE d.slot_us >= sqlc.arg(from_us)::bigint
GROUP BY start_us, d.policy
ORDER BY start_us, d.policy;

-- name: DashboardKeyDenials :many
-- DashboardKeyDenials is DashboardDenials for one key.
--
-- Index: the primary key, which it reads once for each policy. Locks nothing.
WITH RECURSIVE p AS (
    (SELECT f.policy FROM pglimit_denial AS f ORDER BY f.policy LIMIT 1)
    UNION ALL
    SELECT (SELECT n.policy FROM pglimit_denial AS n WHERE n.policy > p.policy ORDER BY n.policy LIMIT 1) FROM p WHERE p.policy IS NOT NULL
)
SELECT (d.slot_us / sqlc.arg(size_us)::bigint * sqlc.arg(size_us)::bigint)::bigint AS start_us, d.policy,
       sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.blocked)::bigint AS blocked,
       sum(d.above_burst)::bigint AS above_burst, sum(d.overloaded)::bigint AS overloaded, sum(d.units)::float8 AS units
FROM p, pglimit_denial AS d
WHERE d.policy = p.policy AND d.key = sqlc.arg(key)::text AND d.slot_us >= sqlc.arg(from_us)::bigint
GROUP BY start_us, d.policy
ORDER BY start_us, d.policy;

-- name: DashboardDenied :one
-- DashboardDenied adds up the denials from from_us on under a policy and algorithm, of all keys
-- if key is ''.
--
-- Index: the primary key, a range of the policy. Locks nothing.
SELECT coalesce(sum(d.denials), 0::numeric)::bigint AS denials, coalesce(sum(d.shadowed), 0::numeric)::bigint AS shadowed,
       coalesce(sum(d.blocked), 0::numeric)::bigint AS blocked, coalesce(sum(d.above_burst), 0::numeric)::bigint AS above_burst,
       coalesce(sum(d.overloaded), 0::numeric)::bigint AS overloaded
FROM pglimit_denial AS d
WHERE d.policy = sqlc.arg(policy)::text AND d.algorithm = sqlc.arg(algorithm)::text AND d.slot_us >= sqlc.arg(from_us)::bigint
  AND (sqlc.arg(key)::text = ''::text OR d.key = sqlc.arg(key)::text);
