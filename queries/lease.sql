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

-- name: TableOwners :one
-- TableOwners names the owners of pglimit's tables, and of what else has their names, in
-- all schemas of the search_path, if there are several: then another role may have put a
-- table in front of the migrated one. For one owner several is ''. citus reports whether the
-- database has Citus. client_encoding and server_encoding are the session's and the database's.
--
-- Index: pg_class_relname_nsp_index. Locks nothing.
SELECT (CASE WHEN pg_catalog.count(DISTINCT o.owner) > 1::bigint
             THEN pg_catalog.string_agg('role '::text || o.owner || ' in schema '::text || o.schema, ', '::text ORDER BY o.schema) ELSE ''::text END)::text AS several,
       (pg_catalog.to_regclass('pg_catalog.pg_dist_partition'::text) IS NOT NULL)::bool AS citus,
       pg_catalog.current_setting('client_encoding'::text)::text AS client_encoding,
       pg_catalog.current_setting('server_encoding'::text)::text AS server_encoding
FROM (SELECT DISTINCT pg_catalog.quote_ident(n.nspname::text) AS schema, pg_catalog.quote_ident(r.rolname::text) AS owner
      FROM pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      JOIN pg_catalog.pg_roles AS r ON r.oid = c.relowner
      WHERE n.nspname = ANY (pg_catalog.current_schemas(true))
        AND c.relname IN ('pglimit_leaky_bucket'::name, 'pglimit_leaky_bucket_queue'::name, 'pglimit_token_bucket'::name, 'pglimit_fixed_window'::name,
                          'pglimit_sliding_window_counter'::name, 'pglimit_sliding_window_log'::name, 'pglimit_attempt'::name, 'pglimit_slot'::name,
                          'pglimit_reservation'::name, 'pglimit_lease'::name, 'pglimit_sweep'::name, 'pglimit_denial'::name, 'pglimit_policy'::name,
                          'pglimit_override'::name, 'pglimit_policy_version'::name, 'pglimit_policy_history'::name, 'pglimit_program'::name, 'pglimit_key_count'::name, 'pglimit_event'::name, 'pglimit_usage'::name)) AS o;
