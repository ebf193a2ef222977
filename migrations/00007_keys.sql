-- One view of all keys under all algorithms, for people who ask who is limited, by what
-- and since when. The library does not read it.
--
-- A query that names policy and key uses the primary keys: it reads at most one row of
-- each table. The columns reservations, denials and last_denied_at cost an index lookup
-- for each row that is returned, and nothing if they are not selected.
--
-- Columns:
--   policy, algorithm, key   the key as stored: its HMAC if the limiters have a KeySecret
--   level           units in use now
--   burst           the largest level, as of the last decision, rounded to 5 decimals, or to
--                   8 digits below 1000; NULL in a row that a block made and no decision
--                   has used
--   share           level / burst; above 1 if an earlier, larger limit let more pass
--   remaining       burst less level, at least 0; 0 while the key is blocked
--   blocked_until   end of the block; NULL if the key is not blocked
--   updated_at      the last decision
--   empty_at        when the key will be empty if it is not used until then
--   reservations    open ones
--   denials         in the last 24 hours, in slots of ten minutes: of programs with a DenialLog
--                   and of policies with count_denials
--   last_denied_at  the last of these denials; NULL if there was none

-- +goose Up
CREATE VIEW pglimit_keys AS
SELECT k.policy, k.algorithm, k.key, k.level, k.burst,
       k.level / k.burst AS share,
       CASE WHEN k.blocked_until IS NOT NULL THEN 0::float8 ELSE GREATEST(0::float8, k.burst - k.level) END AS remaining,
       k.blocked_until, k.updated_at, k.empty_at,
       (SELECT count(*) FROM pglimit_reservation AS h
        WHERE h.policy = k.policy AND h.key = k.key AND h.state = 'open' AND h.algorithm = k.algorithm) AS reservations,
       (SELECT coalesce(sum(d.denials), 0::numeric)::bigint FROM pglimit_denial AS d
        WHERE d.policy = k.policy AND d.key = k.key AND d.algorithm = k.algorithm
          AND d.slot_us > (date_part('epoch'::text, statement_timestamp()) * 1000000::float8)::bigint - 86400000000) AS denials,
       (SELECT to_timestamp(max(d.last_denied_at_us)::float8 / 1000000::float8) FROM pglimit_denial AS d
        WHERE d.policy = k.policy AND d.key = k.key AND d.algorithm = k.algorithm
          AND d.slot_us > (date_part('epoch'::text, statement_timestamp()) * 1000000::float8)::bigint - 86400000000) AS last_denied_at
FROM (
    -- A level within the slack above the burst is the burst.
    SELECT b.policy, b.algorithm, b.key, b.burst, b.blocked_until, b.updated_at, b.empty_at,
           CASE WHEN b.level <= b.burst + LEAST(2e-6::float8, 2e-9::float8 * b.burst) THEN LEAST(b.level, b.burst) ELSE b.level END AS level
    FROM (
        -- capacity is the burst, to which a decision adds LEAST(1e-6, 1e-9 * burst). Rounding
        -- removes that. From 2^34 on float8 does not hold it.
        SELECT u.policy, u.algorithm, u.key, u.level, u.blocked_until, u.updated_at, u.empty_at,
               CASE WHEN u.capacity >= 17179869184::float8 THEN u.capacity
                    WHEN u.capacity >= 1000::float8 THEN round(u.capacity::numeric, 5)::float8
                    WHEN u.capacity > 0::float8 THEN round(u.capacity::numeric, 7 - floor(log(u.capacity))::integer)::float8 END AS burst
        FROM (
            SELECT n.policy, 'leaky_bucket'::text COLLATE "C" AS algorithm, n.key, n.level, t.capacity, n.blocked_until, n.updated_at, n.empty_at
            FROM pglimit_leaky_bucket_now AS n JOIN pglimit_leaky_bucket AS t ON t.policy = n.policy AND t.key = n.key
            UNION ALL
            SELECT n.policy, 'leaky_bucket_queue'::text COLLATE "C" AS algorithm, n.key, n.level, t.capacity, n.blocked_until, n.updated_at, n.empty_at
            FROM pglimit_leaky_bucket_queue_now AS n JOIN pglimit_leaky_bucket_queue AS t ON t.policy = n.policy AND t.key = n.key
            UNION ALL
            SELECT n.policy, 'token_bucket'::text COLLATE "C" AS algorithm, n.key, n.level, t.capacity, n.blocked_until, n.updated_at, n.empty_at
            FROM pglimit_token_bucket_now AS n JOIN pglimit_token_bucket AS t ON t.policy = n.policy AND t.key = n.key
            UNION ALL
            SELECT n.policy, 'fixed_window'::text COLLATE "C" AS algorithm, n.key, n.level, t.capacity, n.blocked_until, n.updated_at, n.empty_at
            FROM pglimit_fixed_window_now AS n JOIN pglimit_fixed_window AS t ON t.policy = n.policy AND t.key = n.key
            UNION ALL
            SELECT n.policy, 'sliding_window_counter'::text COLLATE "C" AS algorithm, n.key, n.level, t.capacity, n.blocked_until, n.updated_at, n.empty_at
            FROM pglimit_sliding_window_counter_now AS n JOIN pglimit_sliding_window_counter AS t ON t.policy = n.policy AND t.key = n.key
            UNION ALL
            SELECT n.policy, 'sliding_window_log'::text COLLATE "C" AS algorithm, n.key, n.level, t.capacity, n.blocked_until, n.updated_at, n.empty_at
            FROM pglimit_sliding_window_log_now AS n JOIN pglimit_sliding_window_log AS t ON t.policy = n.policy AND t.key = n.key
        ) AS u
    ) AS b
) AS k;

-- +goose Down
-- As for the other views: a lock that is waited for in short steps, so that no other
-- statement waits for longer than a quarter of deadlock_timeout.
-- +goose StatementBegin
DO $pglimit$
DECLARE
    statements text[] := ARRAY['DROP VIEW pglimit_keys'];
    deadlock_ms float8 := (SELECT s.setting::float8 FROM pg_catalog.pg_settings AS s WHERE s.name = 'deadlock_timeout');
    before text := current_setting('lock_timeout'::text);
    statement text;
    began timestamptz;
    left_ms float8;
BEGIN
    FOR try IN 0 .. 44 LOOP
        began := clock_timestamp();
        BEGIN
            FOREACH statement IN ARRAY statements LOOP
                -- Short waits find a gap in traffic, long ones wait for its end: 1, 2, 4 .. 256 ms.
                left_ms := LEAST(power(2::float8, (try % 9)::float8), deadlock_ms / 4::float8) - extract(epoch FROM clock_timestamp() - began)::float8 * 1000::float8;
                PERFORM set_config('lock_timeout'::text, GREATEST(1::float8, trunc(left_ms))::text, true);
                EXECUTE statement;
            END LOOP;
            PERFORM set_config('lock_timeout'::text, before, true);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            NULL; -- all locks are released
        END;
        PERFORM pg_sleep(0.01::float8 + 3::float8 * extract(epoch FROM clock_timestamp() - began)::float8);
    END LOOP;
    RAISE lock_not_available USING MESSAGE = 'pglimit: a transaction has had locks on view pglimit_keys for too long: end it, or stop the traffic, and run this again';
END $pglimit$;
-- +goose StatementEnd
