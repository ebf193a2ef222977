-- Views for people: each table with its present level and with times as timestamps,
-- without internal columns. empty_at is the time at which the key will be empty if it
-- is not used until then; the janitor deletes the row at most an hour and one sweep
-- later. The library does not read these views.

-- +goose Up
CREATE VIEW pglimit_leaky_bucket_now AS
SELECT t.policy, t.key,
       GREATEST(0, t.level - (GREATEST(0, c.us - t.leaked_at_us) / t.tick_us)::float8 * t.leak) AS level,
       to_timestamp(t.updated_at_us::float8 / 1000000::float8) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END AS blocked_until,
       to_timestamp((GREATEST(CASE WHEN t.level = 0::float8 THEN t.updated_at_us
                                  ELSE t.leaked_at_us + LEAST(3155760000000000::float8, ceil(t.level / t.leak) * t.tick_us::float8)::bigint END,
                              t.updated_at_us, t.blocked_until_us))::float8 / 1000000::float8) AS empty_at
FROM pglimit_leaky_bucket AS t,
     (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c;

CREATE VIEW pglimit_leaky_bucket_queue_now AS
SELECT t.policy, t.key,
       GREATEST(0, t.level - GREATEST(0, c.us - t.updated_at_us)::float8 * t.leak) AS level,
       to_timestamp((t.updated_at_us::float8 + t.level / t.leak) / 1000000::float8) AS last_leaves_at,
       to_timestamp(t.updated_at_us::float8 / 1000000::float8) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END AS blocked_until,
       to_timestamp((GREATEST(CASE WHEN t.level = 0::float8 THEN t.updated_at_us
                                  ELSE t.updated_at_us + LEAST(3155760000000000::float8, ceil(t.level / t.leak))::bigint END,
                              t.updated_at_us, t.blocked_until_us))::float8 / 1000000::float8) AS empty_at
FROM pglimit_leaky_bucket_queue AS t,
     (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c;

CREATE VIEW pglimit_token_bucket_now AS
SELECT t.policy, t.key,
       GREATEST(0, t.level - GREATEST(0, c.us - t.updated_at_us)::float8 * t.leak) AS level,
       to_timestamp(t.updated_at_us::float8 / 1000000::float8) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END AS blocked_until,
       to_timestamp((GREATEST(CASE WHEN t.level = 0::float8 THEN t.updated_at_us
                                  ELSE t.updated_at_us + LEAST(3155760000000000::float8, ceil(t.level / t.leak))::bigint END,
                              t.updated_at_us, t.blocked_until_us))::float8 / 1000000::float8) AS empty_at
FROM pglimit_token_bucket AS t,
     (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c;

CREATE VIEW pglimit_fixed_window_now AS
SELECT t.policy, t.key,
       CASE WHEN c.us >= t.ends_at_us THEN 0 ELSE t.level END AS level,
       to_timestamp(t.ends_at_us::float8 / 1000000::float8) AS ends_at,
       to_timestamp(t.updated_at_us::float8 / 1000000::float8) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END AS blocked_until,
       to_timestamp((GREATEST(t.ends_at_us, t.updated_at_us, t.blocked_until_us))::float8 / 1000000::float8) AS empty_at
FROM pglimit_fixed_window AS t,
     (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c;

CREATE VIEW pglimit_sliding_window_counter_now AS
SELECT t.policy, t.key,
       CASE WHEN c.us < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - c.us)::float8 / t.period_us::float8 + t.current
            WHEN c.us < t.ends_at_us + t.period_us THEN t.current * (t.ends_at_us + t.period_us - c.us)::float8 / t.period_us::float8
            ELSE 0 END AS level,
       to_timestamp(t.ends_at_us::float8 / 1000000::float8) AS ends_at,
       to_timestamp(t.updated_at_us::float8 / 1000000::float8) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END AS blocked_until,
       to_timestamp((GREATEST(CASE WHEN t.current > 0::float8 THEN t.ends_at_us + t.period_us WHEN t.previous > 0::float8 THEN t.ends_at_us ELSE 0 END,
                              t.updated_at_us, t.blocked_until_us))::float8 / 1000000::float8) AS empty_at
FROM pglimit_sliding_window_counter AS t,
     (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c;

CREATE VIEW pglimit_sliding_window_log_now AS
SELECT t.policy, t.key,
       t.total - GREATEST(t.base, coalesce(w.totals[1 + pg_catalog.width_bucket(c.us - t.period_us, w.entries)], t.total)) AS level,
       pg_catalog.cardinality(w.entries) - pg_catalog.width_bucket(c.us - t.period_us, w.entries) AS entries,
       to_timestamp((w.entries[1 + pg_catalog.width_bucket(c.us - t.period_us, w.entries)])::float8 / 1000000::float8) AS oldest_at,
       to_timestamp(t.updated_at_us::float8 / 1000000::float8) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END AS blocked_until,
       to_timestamp((GREATEST(coalesce(t.entries[pg_catalog.cardinality(t.entries)] + t.keep_us, 0), t.updated_at_us, t.blocked_until_us))::float8 / 1000000::float8) AS empty_at
FROM pglimit_sliding_window_log AS t,
     LATERAL (SELECT pglimit_log_whole(t.entries, t.gap, t.taken, t.older_entries, t.middle_entries, t.recent_entries) AS entries,
                     pglimit_log_whole(t.totals, t.gap, t.taken, t.older_totals, t.middle_totals, t.recent_totals) AS totals OFFSET 0) AS w,
     (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c;

-- +goose Down
-- Dropping all views needs the locks of all at the same time. After a quarter of
-- deadlock_timeout they are released, so that no other statement fails with a
-- deadlock; then others get three times as long.
-- +goose StatementBegin
DO $pglimit$
DECLARE
    statements text[] := ARRAY[
        'DROP VIEW pglimit_leaky_bucket_now',
        'DROP VIEW pglimit_leaky_bucket_queue_now',
        'DROP VIEW pglimit_token_bucket_now',
        'DROP VIEW pglimit_fixed_window_now',
        'DROP VIEW pglimit_sliding_window_counter_now',
        'DROP VIEW pglimit_sliding_window_log_now'];
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
    RAISE lock_not_available USING MESSAGE = 'pglimit: a transaction has had locks on the views for too long: end it, or stop the traffic, and run this again';
END $pglimit$;
-- +goose StatementEnd
