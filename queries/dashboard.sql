-- name: DashboardDenials :many
-- DashboardDenials adds up the denials after from_us by ten minutes and policy, for a chart.
-- It returns no row for ten minutes without denials.
--
-- Index: pglimit_denial_slot. Locks nothing.
SELECT (d.slot_us / 600000000::bigint * 600000000::bigint)::bigint AS slot_us, d.policy, sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.units)::float8 AS units
FROM pglimit_denial AS d
WHERE d.slot_us > sqlc.arg(from_us)::bigint
GROUP BY d.slot_us / 600000000::bigint, d.policy
ORDER BY 1, d.policy;

-- name: DashboardKeyDenials :many
-- DashboardKeyDenials adds up the denials of a key after from_us by ten minutes and policy, the
-- newest first, under the policies given.
--
-- Index: the primary key, a range for each policy. Locks nothing.
SELECT (d.slot_us / 600000000::bigint * 600000000::bigint)::bigint AS slot_us, d.policy, sum(d.denials)::bigint AS denials, sum(d.shadowed)::bigint AS shadowed, sum(d.units)::float8 AS units
FROM pglimit_denial AS d
WHERE d.policy = ANY(sqlc.arg(policies)::text[]) AND d.key = sqlc.arg(key)::text AND d.slot_us > sqlc.arg(from_us)::bigint
GROUP BY d.slot_us / 600000000::bigint, d.policy
ORDER BY 1 DESC, d.policy;
