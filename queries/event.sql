-- The marks that keys have reached. Decisions record them: see FixedWindowTakeMarked.

-- name: EventsDue :many
-- EventsDue lists up to max_rows events that are due for delivery at now_us, the database's
-- clock if that is NULL, the longest due first. An event of which max_attempts deliveries were
-- begun is not due again.
--
-- Index: pglimit_event_due. Locks nothing.
SELECT e.policy, e.key, e.algorithm, e.mark, e.window_ends_at_us, e.at_us, e.level, e.limit_units, e.attempts
FROM pglimit_event AS e
WHERE e.delivered_at_us = 0 AND e.attempts < sqlc.arg(max_attempts)::bigint
  AND e.due_at_us <= coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)
ORDER BY e.due_at_us
LIMIT sqlc.arg(max_rows)::bigint;

-- name: EventClaim :execrows
-- EventClaim begins a delivery: no other process begins one until for_us have passed. attempts
-- is what EventsDue returned. It changes nothing if another process has begun one meanwhile.
--
-- Index: the primary key; pglimit_event_due changes. Locks the event for the statement.
UPDATE pglimit_event AS e SET
    attempts = e.attempts + 1,
    due_at_us = coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) + sqlc.arg(for_us)::bigint
WHERE e.policy = sqlc.arg(policy) AND e.key = sqlc.arg(key) AND e.algorithm = sqlc.arg(algorithm) AND e.mark = sqlc.arg(mark) AND e.window_ends_at_us = sqlc.arg(window_ends_at_us)
  AND e.delivered_at_us = 0 AND e.attempts = sqlc.arg(attempts)::bigint;

-- name: EventEnd :execrows
-- EventEnd ends the delivery with the number attempts: the event is delivered, or due again after
-- wait_us. A delivery that another process began meanwhile goes on unless this one succeeded.
--
-- Index: the primary key; pglimit_event_due changes. Locks the event for the statement.
UPDATE pglimit_event AS e SET
    delivered_at_us = CASE WHEN sqlc.arg(delivered)::bool THEN coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, statement_timestamp()) * 1000000::float8)::bigint) ELSE 0 END,
    due_at_us = CASE WHEN sqlc.arg(delivered)::bool THEN e.due_at_us
                     ELSE coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, statement_timestamp()) * 1000000::float8)::bigint) + sqlc.arg(wait_us)::bigint END
WHERE e.policy = sqlc.arg(policy) AND e.key = sqlc.arg(key) AND e.algorithm = sqlc.arg(algorithm) AND e.mark = sqlc.arg(mark) AND e.window_ends_at_us = sqlc.arg(window_ends_at_us)
  AND e.delivered_at_us = 0 AND (sqlc.arg(delivered)::bool OR e.attempts = sqlc.arg(attempts)::bigint);

-- name: EventList :many
-- EventList lists the last max_rows events of a policy, or of all if that is empty, that were
-- recorded at since_us or later, newest first.
--
-- Index: pglimit_event_window, or all entries of the policy in the primary key. Locks nothing.
SELECT e.policy, e.key, e.algorithm, e.mark, e.window_ends_at_us, e.at_us, e.level, e.limit_units, e.attempts, e.delivered_at_us
FROM pglimit_event AS e
WHERE (sqlc.arg(policy)::text = ''::text OR e.policy = sqlc.arg(policy)::text) AND e.at_us >= sqlc.arg(since_us)::bigint
  AND e.window_ends_at_us > sqlc.arg(since_us)::bigint
ORDER BY e.at_us DESC, e.mark DESC, e.policy, e.key
LIMIT sqlc.arg(max_rows)::bigint;

-- name: EventsForget :execrows
-- EventsForget deletes up to max_rows events whose window had ended at cutoff_us, delivered or
-- not. It skips those that another transaction has locked.
--
-- Index: pglimit_event_window; the primary key. Locks the events that it deletes.
WITH old AS MATERIALIZED (
    SELECT e.policy, e.key, e.algorithm, e.mark, e.window_ends_at_us FROM pglimit_event AS e
    WHERE e.window_ends_at_us <= sqlc.arg(cutoff_us)::bigint
    ORDER BY e.window_ends_at_us
    LIMIT sqlc.arg(max_rows)::bigint
    FOR UPDATE OF e SKIP LOCKED
)
DELETE FROM pglimit_event AS e USING old AS o
WHERE e.policy = o.policy AND e.key = o.key AND e.algorithm = o.algorithm AND e.mark = o.mark AND e.window_ends_at_us = o.window_ends_at_us;
