-- The units that keys have spent in each hour or day. Decisions record them: see FixedWindowTakeMarked.

-- name: UsageSince :many
-- UsageSince lists up to max_rows sums of a key that begin at since_us or later, the newest first.
-- by_us adds those of each span of that length, such as the hours of a day in UTC; 1: none.
--
-- Index: the primary key. Locks nothing.
SELECT (u.at_us / sqlc.arg(by_us)::bigint * sqlc.arg(by_us)::bigint)::bigint AS at_us, sum(u.units)::float8 AS units
FROM pglimit_usage AS u
WHERE u.policy = sqlc.arg(policy) AND u.key = sqlc.arg(key) AND u.at_us >= sqlc.arg(since_us)::bigint
GROUP BY u.at_us / sqlc.arg(by_us)::bigint
ORDER BY 1 DESC
LIMIT sqlc.arg(max_rows)::bigint;

-- name: UsageForget :execrows
-- UsageForget deletes up to max_rows sums that are kept until cutoff_us or less. It skips those
-- that another transaction has locked.
--
-- Index: pglimit_usage_until; the primary key. Locks the sums that it deletes.
WITH old AS MATERIALIZED (
    SELECT u.policy, u.key, u.algorithm, u.at_us FROM pglimit_usage AS u
    WHERE u.until_us <= sqlc.arg(cutoff_us)::bigint
    ORDER BY u.until_us
    LIMIT sqlc.arg(max_rows)::bigint
    FOR UPDATE OF u SKIP LOCKED
)
DELETE FROM pglimit_usage AS u USING old AS o
WHERE u.policy = o.policy AND u.key = o.key AND u.algorithm = o.algorithm AND u.at_us = o.at_us;
