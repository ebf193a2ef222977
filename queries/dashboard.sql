-- name: DashboardDenials :many
-- DashboardDenials adds up the denials after from_us by slot and policy, for a chart. It
-- returns no row for a slot without denials.
--
-- Index: pglimit_denial_slot. Locks nothing.
SELECT d.slot_us, d.policy, sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.units)::float8 AS units
FROM pglimit_denial AS d
WHERE d.slot_us > sqlc.arg(from_us)::bigint
GROUP BY d.slot_us, d.policy
ORDER BY d.slot_us, d.policy;

-- name: DashboardKeyDenials :many
-- DashboardKeyDenials adds up the denials of a key after from_us by slot and policy, the
-- newest first, under the policies given.
--
-- Index: the primary key, a range for each policy. Locks nothing.
SELECT d.slot_us, d.policy, sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.units)::float8 AS units
FROM pglimit_denial AS d
WHERE d.policy = ANY(sqlc.arg(policies)::text[]) AND d.key = sqlc.arg(key)::text AND d.slot_us > sqlc.arg(from_us)::bigint
GROUP BY d.slot_us, d.policy
ORDER BY d.slot_us DESC, d.policy;
