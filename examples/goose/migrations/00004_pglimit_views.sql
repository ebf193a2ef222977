-- What people look at: each table with its level as of now, the times as
-- timestamps, and no row's bookkeeping. Nothing in the library reads these.

-- +goose Up
CREATE VIEW pglimit_leaky_bucket_now AS
SELECT t.policy, t.key,
       GREATEST(0, t.level - GREATEST(0, c.us - t.leaked_at_us) / t.tick_us * t.leak) AS level,
       to_timestamp(t.updated_at_us / 1e6) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us / 1e6) END AS blocked_until,
       to_timestamp(t.expires_at_us / 1e6) AS expires_at
FROM pglimit_leaky_bucket AS t,
     (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c;

CREATE VIEW pglimit_leaky_bucket_queue_now AS
SELECT t.policy, t.key,
       GREATEST(0, t.level - GREATEST(0, c.us - t.updated_at_us) * t.leak) AS level,
       to_timestamp((t.updated_at_us + t.level / t.leak) / 1e6) AS last_leaves_at,
       to_timestamp(t.updated_at_us / 1e6) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us / 1e6) END AS blocked_until,
       to_timestamp(t.expires_at_us / 1e6) AS expires_at
FROM pglimit_leaky_bucket_queue AS t,
     (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c;

CREATE VIEW pglimit_token_bucket_now AS
SELECT t.policy, t.key,
       GREATEST(0, t.level - GREATEST(0, c.us - t.updated_at_us) * t.leak) AS level,
       to_timestamp(t.updated_at_us / 1e6) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us / 1e6) END AS blocked_until,
       to_timestamp(t.expires_at_us / 1e6) AS expires_at
FROM pglimit_token_bucket AS t,
     (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c;

CREATE VIEW pglimit_gcra_now AS
SELECT t.policy, t.key,
       GREATEST(0, t.level - GREATEST(0, c.us - t.updated_at_us) * t.leak) AS level,
       to_timestamp((t.updated_at_us + t.level / t.leak) / 1e6) AS theoretical_arrival_at,
       to_timestamp(t.updated_at_us / 1e6) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us / 1e6) END AS blocked_until,
       to_timestamp(t.expires_at_us / 1e6) AS expires_at
FROM pglimit_gcra AS t,
     (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c;

CREATE VIEW pglimit_fixed_window_now AS
SELECT t.policy, t.key,
       CASE WHEN c.us >= t.ends_at_us THEN 0 ELSE t.level END AS level,
       to_timestamp(t.ends_at_us / 1e6) AS ends_at,
       to_timestamp(t.updated_at_us / 1e6) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us / 1e6) END AS blocked_until,
       to_timestamp(t.expires_at_us / 1e6) AS expires_at
FROM pglimit_fixed_window AS t,
     (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c;

CREATE VIEW pglimit_sliding_window_counter_now AS
SELECT t.policy, t.key,
       CASE WHEN c.us < t.ends_at_us THEN t.previous * LEAST(t.period_us, t.ends_at_us - c.us) / t.period_us + t.current
            WHEN c.us < t.ends_at_us + t.period_us THEN t.current * (t.ends_at_us + t.period_us - c.us) / t.period_us
            ELSE 0 END AS level,
       to_timestamp(t.ends_at_us / 1e6) AS ends_at,
       to_timestamp(t.updated_at_us / 1e6) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us / 1e6) END AS blocked_until,
       to_timestamp(t.expires_at_us / 1e6) AS expires_at
FROM pglimit_sliding_window_counter AS t,
     (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c;

CREATE VIEW pglimit_sliding_window_log_now AS
SELECT t.policy, t.key,
       t.total - GREATEST(t.base, coalesce(t.totals[1 + width_bucket(c.us - t.period_us, t.entries)], t.total)) AS level,
       cardinality(t.entries) - width_bucket(c.us - t.period_us, t.entries) AS entries,
       to_timestamp(t.entries[1 + width_bucket(c.us - t.period_us, t.entries)] / 1e6) AS oldest_at,
       to_timestamp(t.updated_at_us / 1e6) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us / 1e6) END AS blocked_until,
       to_timestamp(t.expires_at_us / 1e6) AS expires_at
FROM pglimit_sliding_window_log AS t,
     (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c;

-- +goose Down
DROP VIEW pglimit_sliding_window_log_now;
DROP VIEW pglimit_sliding_window_counter_now;
DROP VIEW pglimit_fixed_window_now;
DROP VIEW pglimit_gcra_now;
DROP VIEW pglimit_token_bucket_now;
DROP VIEW pglimit_leaky_bucket_queue_now;
DROP VIEW pglimit_leaky_bucket_now;
