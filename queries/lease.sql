-- name: LeaseTake :one
-- LeaseTake takes the lease of that name, or renews it for the same holder, until
-- the clock plus ttl_us. It returns the new end, or no row while another holder has
-- the lease. A lease that ends more than longest_us after the clock was taken by no
-- janitor, or by one whose clock was far ahead: it is free.
--
-- Index: the primary key. Locks the lease's row for the statement.
INSERT INTO pglimit_lease AS t (name, holder, expires_at_us)
SELECT sqlc.arg(name)::text, sqlc.arg(holder)::text, c.us + sqlc.arg(ttl_us)::bigint
FROM (SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us) AS c
ON CONFLICT (name) DO UPDATE SET
    holder = EXCLUDED.holder, expires_at_us = EXCLUDED.expires_at_us
WHERE t.holder = EXCLUDED.holder OR t.expires_at_us <= EXCLUDED.expires_at_us - sqlc.arg(ttl_us)::bigint
    OR t.expires_at_us > EXCLUDED.expires_at_us - sqlc.arg(ttl_us)::bigint + sqlc.arg(longest_us)::bigint
RETURNING t.expires_at_us;

-- name: LeaseRelease :exec
-- LeaseRelease gives up the lease, if holder still has it, so that the next holder
-- need not wait for its end.
--
-- Index: the primary key. Locks the lease's row.
DELETE FROM pglimit_lease
WHERE name = sqlc.arg(name)::text AND holder = sqlc.arg(holder)::text;

-- name: Clock :one
-- Clock reads the clock that decisions use. Locks nothing.
SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS now_us;
