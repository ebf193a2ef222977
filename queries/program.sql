-- Programs that follow the policies. Times are microseconds since 1970.

-- name: ProgramPublish :exec
-- ProgramPublish writes a program's row, and deletes those that were not written for a day. A
-- new row was started running_us ago.
--
-- Index: the primary key; it reads the table. Locks the program's row, and passes over rows
-- that another transaction has locked.
WITH c AS MATERIALIZED (SELECT clock_timestamp() AS at),
gone AS (
    DELETE FROM pglimit_program AS t
    USING (SELECT o.instance FROM pglimit_program AS o, c
           WHERE o.seen_at < c.at - '1 day'::interval AND o.instance <> sqlc.arg(instance)::text
           FOR UPDATE OF o SKIP LOCKED) AS old
    WHERE t.instance = old.instance
)
INSERT INTO pglimit_program AS t (policies_version, pid, heartbeat_s, started_at, seen_at, instance, name, host, library, defaults)
SELECT sqlc.arg(policies_version)::bigint, sqlc.arg(pid)::bigint, sqlc.arg(heartbeat_s)::float8,
       c.at - sqlc.arg(running_us)::bigint::float8 * '00:00:00.000001'::interval, c.at, sqlc.arg(instance)::text, sqlc.arg(name)::text,
       sqlc.arg(host)::text, sqlc.arg(library)::text, sqlc.arg(defaults)::text::jsonb
FROM c
ON CONFLICT (instance) DO UPDATE SET
    policies_version = EXCLUDED.policies_version, seen_at = EXCLUDED.seen_at, defaults = EXCLUDED.defaults;

-- name: ProgramLeave :exec
-- ProgramLeave deletes a program's row.
--
-- Index: the primary key. Locks the program's row.
DELETE FROM pglimit_program AS t WHERE t.instance = sqlc.arg(instance)::text;

-- name: Programs :many
-- Programs returns the programs that were seen in the last day, at most 10,000, by name, those
-- seen last first. seen_us is how long ago that was. It returns at most 16 MB of defaults, the
-- shortest first. All other defaults are empty. more reports whether there may be more programs.
--
-- Index: none; it reads the table. Locks nothing.
WITH c AS MATERIALIZED (SELECT clock_timestamp() AS at, 10000::bigint AS most),
latest AS (
    SELECT o.policies_version, o.pid, o.heartbeat_s, o.started_at, o.seen_at, o.instance, o.name, o.host, o.library, o.defaults::text AS defaults
    FROM pglimit_program AS o, c
    WHERE o.seen_at > c.at - '1 day'::interval
    ORDER BY o.seen_at DESC, o.instance
    LIMIT (SELECT c.most FROM c)
)
SELECT p.instance, p.name, p.host, p.pid, p.library, p.policies_version, p.heartbeat_s,
       (CASE WHEN sum(octet_length(p.defaults)) OVER (ORDER BY octet_length(p.defaults), p.instance) <= 16000000::bigint THEN p.defaults ELSE ''::text END)::text AS defaults,
       (date_part('epoch'::text, p.started_at) * 1000000::float8)::bigint AS started_at_us,
       (date_part('epoch'::text, p.seen_at) * 1000000::float8)::bigint AS seen_at_us,
       (date_part('epoch'::text, c.at - p.seen_at) * 1000000::float8)::bigint AS seen_us,
       (count(*) OVER () = c.most)::bool AS more
FROM latest AS p, c
ORDER BY p.name, p.seen_at DESC, p.instance;
