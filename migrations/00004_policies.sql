-- Policies that live in the database, and overrides for single keys. Programs read them
-- all at once and keep them in memory; the SQL functions read the row of one name.
-- Columns are named as the parameters of the SQL functions: seconds are float8, so that
-- people can write them by hand. The library validates a policy before it writes it; the
-- constraints hold whatever wrote the row.

-- +goose Up
CREATE TABLE pglimit_policy (
    limit_units float8 NOT NULL DEFAULT 0,               -- units per period; 0 of a balance
    period_s    float8,                                  -- NULL with a calendar, and of a balance
    burst       float8,                                  -- NULL: limit_units
    tick_s      float8 NOT NULL DEFAULT 0,
    block_for_s float8 NOT NULL DEFAULT 0,
    block_growth float8 NOT NULL DEFAULT 0,              -- of attempts: each further wait is so many times longer; 0: 2
    block_max_s float8 NOT NULL DEFAULT 0,               -- of attempts: the longest wait; 0: period_s
    overdraft   float8 NOT NULL DEFAULT 0,               -- of a balance: the largest debt
    local_share float8 NOT NULL DEFAULT 0,               -- of fail_local; 0: 0.1
    lease       float8 NOT NULL DEFAULT 0,               -- share of the burst that processes may hold; 0: none
    rest_limit  float8 NOT NULL DEFAULT 0,               -- of the row that the keys above max_keys share; 0: they are denied
    max_ttl_s   float8 NOT NULL DEFAULT 86400,           -- the longest reservation of an asker
    usage_for_s float8 NOT NULL DEFAULT 0,               -- how long sums are kept; 0: 31 days, or 400 if usage_by is day
    max_keys    bigint NOT NULL DEFAULT 0,               -- keys that have a row, at most; 0: no bound
    version     bigint NOT NULL DEFAULT 0,               -- of all policies and overrides, after this row's last change
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    aligned     bool NOT NULL DEFAULT false,
    shadow      bool NOT NULL DEFAULT false,             -- decides and reports, but never denies
    askers      bool NOT NULL DEFAULT false,             -- roles that may only request may request under it
    ruled       bool NOT NULL DEFAULT false,             -- it has overrides with a match; triggers keep this
    count_denials bool NOT NULL DEFAULT false,           -- the SQL functions add denials to pglimit_denial
    ledger      bool NOT NULL DEFAULT false,             -- of a balance: pglimit_ledger has what is granted and spent
    name        text COLLATE "C" NOT NULL,
    algorithm   text COLLATE "C" NOT NULL,
    marks       text COLLATE "C" NOT NULL DEFAULT '',    -- percentages of the burst that are recorded once reached: 80%,100%
    usage_by    text COLLATE "C" NOT NULL DEFAULT '',    -- hour, day: pglimit_usage has the units of each; '': none
    calendar    text COLLATE "C" NOT NULL DEFAULT '',    -- hour, day, week, month, quarter, year; '': none
    time_zone   text COLLATE "C" NOT NULL DEFAULT '',    -- of the calendar; '': UTC
    anchor      text COLLATE "C" NOT NULL DEFAULT '',    -- where a period of the calendar begins, there; '': 2024-01-01
    durability  text COLLATE "C" NOT NULL DEFAULT 'durable',
    on_error    text COLLATE "C" NOT NULL DEFAULT 'fail_closed',
    note        text COLLATE "C" NOT NULL DEFAULT '',    -- why it is so
    changed_by  text COLLATE "C" NOT NULL DEFAULT '',    -- the role that changed it last
    CONSTRAINT pglimit_policy_pkey PRIMARY KEY (name),
    CONSTRAINT "name must match ^[a-z0-9][a-z0-9_.-]{0,63}$" CHECK (name ~ '^[a-z0-9][a-z0-9_.-]{0,63}$'),
    CONSTRAINT "algorithm must be one that docs/algorithms.md lists" CHECK (
        algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log', 'attempts', 'concurrency', 'balance')),
    CONSTRAINT "limit_units must be from 1e-9 to 2^53" CHECK (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8 OR algorithm = 'balance'),
    CONSTRAINT "period_s must be whole microseconds up to a hundred years" CHECK (period_s >= 1e-6::float8 AND period_s <= 3155760000::float8
        AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8),
    CONSTRAINT "a calendar replaces period_s" CHECK ((calendar = '') = (period_s IS NOT NULL) OR algorithm = 'balance'),
    CONSTRAINT "a balance has no limit_units, period_s and calendar" CHECK (algorithm <> 'balance' OR limit_units = 0::float8 AND period_s IS NULL AND calendar = '' AND burst IS NULL),
    CONSTRAINT "overdraft must be from 1e-9 to 2^53 or 0, and is for balance" CHECK (overdraft = 0::float8
        OR algorithm = 'balance' AND overdraft BETWEEN 1e-9::float8 AND 9007199254740992::float8),
    CONSTRAINT "a balance has no fail_local" CHECK (algorithm <> 'balance' OR on_error <> 'fail_local'),
    CONSTRAINT "burst must be from 1e-9 to 2^53, for buckets and attempts" CHECK (burst IS NULL
        OR burst >= 1e-9::float8 AND burst <= 9007199254740992::float8 AND (burst = limit_units OR algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'attempts'))),
    CONSTRAINT "tick_s must be whole microseconds or 0, and is for leaky_bucket" CHECK (tick_s = 0::float8
        OR algorithm = 'leaky_bucket' AND tick_s BETWEEN 1e-6::float8 AND 3155760000::float8
        AND abs(tick_s * 1e6::float8 - round(tick_s * 1e6::float8)) <= tick_s * 1e-9::float8),
    CONSTRAINT "block_for_s must be whole microseconds or 0" CHECK (block_for_s = 0::float8
        OR block_for_s >= 1e-6::float8 AND block_for_s <= 3155760000::float8
        AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8),
    CONSTRAINT "block_growth must be from 1 to 1000 or 0, and is for attempts" CHECK (block_growth = 0::float8
        OR algorithm = 'attempts' AND block_growth BETWEEN 1::float8 AND 1000::float8),
    CONSTRAINT "block_max_s must be at least block_for_s or 0, for attempts" CHECK (block_max_s = 0::float8
        OR algorithm = 'attempts' AND block_max_s >= block_for_s AND block_max_s <= 3155760000::float8
        AND abs(block_max_s * 1e6::float8 - round(block_max_s * 1e6::float8)) <= block_max_s * 1e-9::float8),
    CONSTRAINT "attempts need whole limit_units, burst to 100 and block_for_s" CHECK (algorithm <> 'attempts'
        OR limit_units >= 1::float8 AND limit_units = trunc(limit_units) AND (burst IS NULL OR burst >= 1::float8 AND burst <= 100::float8 AND burst = trunc(burst))
        AND block_for_s > 0::float8 AND (block_max_s > 0::float8 OR period_s >= block_for_s)),
    CONSTRAINT "concurrency needs whole limit_units, period_s >= 1, no block" CHECK (algorithm <> 'concurrency'
        OR limit_units >= 1::float8 AND limit_units = trunc(limit_units) AND period_s >= 1::float8 AND block_for_s = 0::float8),
    CONSTRAINT "attempts and concurrency need on_error fail_closed" CHECK (algorithm NOT IN ('attempts', 'concurrency') OR on_error = 'fail_closed'),
    CONSTRAINT "lease must be from 0 to 0.5, not for queues, logs, balances" CHECK (lease = 0::float8
        OR lease > 0::float8 AND lease <= 0.5::float8 AND algorithm NOT IN ('leaky_bucket_queue', 'sliding_window_log', 'attempts', 'concurrency', 'balance')),
    CONSTRAINT "max_keys must be from 1 to 1e9 or 0, and is not for attempts" CHECK (max_keys = 0::bigint
        OR max_keys >= 1::bigint AND max_keys <= 1000000000::bigint AND algorithm NOT IN ('attempts', 'concurrency', 'balance')),
    CONSTRAINT "rest_limit must be from 1e-9 to 2^53 or 0, and needs max_keys" CHECK (rest_limit = 0::float8
        OR max_keys > 0::bigint AND rest_limit BETWEEN 1e-9::float8 AND 9007199254740992::float8),
    CONSTRAINT "burst * rest_limit / limit_units must be from 1e-9 to 2^53" CHECK (
        CASE WHEN rest_limit > 0::float8 AND rest_limit <= 9007199254740992::float8 AND limit_units >= 1e-9::float8 AND burst > 0::float8 AND burst <= 9007199254740992::float8
        THEN burst * (rest_limit / limit_units) BETWEEN 1e-9::float8 AND 9007199254740992::float8 ELSE true END),
    CONSTRAINT "marks must be such as 80%,100%; not with queue, attempts, lease" CHECK (marks = ''
        OR marks ~ '^(100|[1-9]?[0-9](\.[0-9]{1,4})?)%(,(100|[1-9]?[0-9](\.[0-9]{1,4})?)%){0,7}$'
        AND lease = 0::float8 AND algorithm NOT IN ('leaky_bucket_queue', 'attempts', 'concurrency', 'balance')),
    CONSTRAINT "usage_by must be hour or day; not with queue, attempts, lease" CHECK (usage_by = ''
        OR usage_by IN ('hour', 'day') AND lease = 0::float8 AND algorithm NOT IN ('leaky_bucket_queue', 'attempts', 'concurrency', 'balance')),
    CONSTRAINT "usage_for_s must be whole seconds to ten years, with usage_by" CHECK (usage_for_s = 0::float8
        OR usage_by <> '' AND usage_for_s BETWEEN CASE usage_by WHEN 'day' THEN 86400::float8 ELSE 3600::float8 END AND 315360000::float8 AND usage_for_s = trunc(usage_for_s)),
    CONSTRAINT "ledger is for balance" CHECK (NOT ledger OR algorithm = 'balance'),
    CONSTRAINT "max_ttl_s must be from 1 to 3155760000" CHECK (max_ttl_s BETWEEN 1::float8 AND 3155760000::float8),
    CONSTRAINT "aligned is for fixed_window without a calendar" CHECK (NOT aligned OR algorithm = 'fixed_window' AND calendar = ''),
    CONSTRAINT "calendar must be hour, day, week, month, quarter or year" CHECK (calendar IN ('', 'hour', 'day', 'week', 'month', 'quarter', 'year')),
    CONSTRAINT "a calendar is for fixed_window" CHECK (calendar = '' OR algorithm = 'fixed_window'),
    CONSTRAINT "time_zone requires a calendar" CHECK (time_zone = '' OR calendar <> ''),
    CONSTRAINT "anchor requires a calendar" CHECK (anchor = '' OR calendar <> ''),
    CONSTRAINT "anchor must be such as 2024-01-31 or 2024-01-31T09:30" CHECK (anchor = ''
        OR anchor ~ '^([1-9][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)(T([01][0-9]|2[0-3]):[0-5][0-9])?$'),
    CONSTRAINT "durability must be durable or relaxed" CHECK (durability IN ('durable', 'relaxed')),
    CONSTRAINT "on_error must be fail_closed, fail_open or fail_local" CHECK (on_error IN ('fail_closed', 'fail_open', 'fail_local')),
    CONSTRAINT "local_share must be from 1e-6 to 1 or 0, and is for fail_local" CHECK (local_share = 0::float8
        OR on_error = 'fail_local' AND local_share BETWEEN 1e-6::float8 AND 1::float8),
    CONSTRAINT "note must have at most 1000 characters" CHECK (length(note) <= 1000)
);

-- What differs for one key of a policy, or for several: those that begin with a prefix, match
-- a pattern, or are an address of a network. NULL keeps what the policy has. A burst that is
-- NULL keeps the policy's proportion to its limit.
CREATE TABLE pglimit_override (
    limit_units float8,
    factor      float8,                                  -- instead of limit_units: so many times the policy's
    burst       float8,
    version     bigint NOT NULL DEFAULT 0,
    until       timestamptz,                             -- NULL: no end
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    unlimited   bool NOT NULL DEFAULT false,             -- requests pass without a decision and count nothing
    blocked     bool NOT NULL DEFAULT false,             -- requests are denied without a decision
    shadow      bool,
    anchor      text COLLATE "C" NOT NULL DEFAULT '',    -- for policies with a calendar; '': the policy's
    policy      text COLLATE "C" NOT NULL,               -- a policy's name, in pglimit_policy or compiled into a program
    key         text COLLATE "C" NOT NULL,               -- the key, or its HMAC, as in the tables of the algorithms; or what match says
    match       text COLLATE "C" NOT NULL DEFAULT '',    -- '': that key; or key is a prefix, a pattern or a cidr
    note        text COLLATE "C" NOT NULL DEFAULT '',
    changed_by  text COLLATE "C" NOT NULL DEFAULT '',
    CONSTRAINT pglimit_override_pkey PRIMARY KEY (policy, key, match),
    CONSTRAINT "policy must match ^[a-z0-9][a-z0-9_.-]{0,63}$" CHECK (policy ~ '^[a-z0-9][a-z0-9_.-]{0,63}$'),
    CONSTRAINT "key must have 1 to 1024 bytes" CHECK (octet_length(key) BETWEEN 1 AND 1024),
    CONSTRAINT "limit_units must be from 1e-9 to 2^53" CHECK (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8),
    CONSTRAINT "factor must be from 1e-9 to 2^53" CHECK (factor BETWEEN 1e-9::float8 AND 9007199254740992::float8),
    CONSTRAINT "factor excludes limit_units" CHECK (factor IS NULL OR limit_units IS NULL),
    CONSTRAINT "burst must be from 1e-9 to 2^53" CHECK (burst BETWEEN 1e-9::float8 AND 9007199254740992::float8),
    CONSTRAINT "until must be after 1970-01-01 and before 10000-01-01, or NULL" CHECK (until > '1970-01-01 00:00:00+00' AND until < '10000-01-01 00:00:00+00'),
    CONSTRAINT "an override must change something" CHECK (unlimited OR blocked OR limit_units IS NOT NULL OR factor IS NOT NULL OR burst IS NOT NULL OR anchor <> '' OR shadow IS NOT NULL),
    CONSTRAINT "unlimited excludes limit_units, factor, burst, anchor, shadow" CHECK (NOT unlimited
        OR limit_units IS NULL AND factor IS NULL AND burst IS NULL AND anchor = '' AND shadow IS NULL),
    CONSTRAINT "blocked excludes all other changes" CHECK (NOT blocked
        OR NOT unlimited AND limit_units IS NULL AND factor IS NULL AND burst IS NULL AND anchor = '' AND shadow IS NULL),
    CONSTRAINT "anchor must be such as 2024-01-31 or 2024-01-31T09:30" CHECK (anchor = ''
        OR anchor ~ '^([1-9][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)(T([01][0-9]|2[0-3]):[0-5][0-9])?$'),
    CONSTRAINT "match must be empty, prefix, pattern or cidr" CHECK (match IN ('', 'prefix', 'pattern', 'cidr')),
    CONSTRAINT "match needs blocked or unlimited" CHECK (match = '' OR blocked OR unlimited),
    CONSTRAINT "a pattern must have at most 128 bytes and 8 ?" CHECK (match <> 'pattern' OR octet_length(key) <= 128 AND length(key) - length(replace(key, '?', '')) <= 8),
    CONSTRAINT "a cidr must be a network such as 203.0.113.0/24" CHECK (match <> 'cidr'
        OR CASE WHEN key ~ '^((0|[1-9][0-9]{0,2})\.){3}(0|[1-9][0-9]{0,2})/(0|[1-9][0-9]?)$|^[0-9a-f.]*:[0-9a-f.:]*/(0|[1-9][0-9]{0,2})$' THEN NOT key::cidr <<= '::ffff:0.0.0.0/96'::cidr ELSE false END),
    CONSTRAINT "note must have at most 1000 characters" CHECK (length(note) <= 1000)
);

-- Those for several keys: the SQL functions read them if their policy is ruled.
CREATE INDEX pglimit_override_rules ON pglimit_override (policy) WHERE match <> '';

-- One row: the version of all policies and overrides. A transaction that changes any
-- raises it by one and locks it until its commit, so that versions become visible in
-- their order. Programs read it to see whether there is something to load.
CREATE TABLE pglimit_policy_version (
    version    bigint NOT NULL,
    id         bool NOT NULL DEFAULT true,
    changed_in text COLLATE "C" NOT NULL DEFAULT '',     -- the transaction that raised it
    CONSTRAINT pglimit_policy_version_pkey PRIMARY KEY (id),
    CONSTRAINT "there is one version" CHECK (id)
);

-- Every change of a policy or an override. The changes of one transaction have one
-- version; ids grow in the order of the changes.
CREATE TABLE pglimit_policy_history (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    name       text COLLATE "C" NOT NULL,                -- the policy's
    key        text COLLATE "C",                         -- of an override; NULL: the policy itself
    changed_by text COLLATE "C" NOT NULL,
    note       text COLLATE "C" NOT NULL,
    before     jsonb,                                    -- the row; NULL: there was none
    after      jsonb,                                    -- NULL: it was deleted
    CONSTRAINT pglimit_policy_history_pkey PRIMARY KEY (id)
);
CREATE INDEX pglimit_policy_history_name ON pglimit_policy_history (name, id);

-- 0, or where the history ended if the table is made again.
INSERT INTO pglimit_policy_version (version) SELECT coalesce(max(h.version), 0::bigint) FROM pglimit_policy_history AS h;

-- +goose Down
-- Dropping needs the locks of all tables at the same time. After a quarter of
-- deadlock_timeout they are released, so that no other statement fails with a deadlock;
-- then others get three times as long.
-- +goose StatementBegin
DO $pglimit$
DECLARE
    statements text[] := ARRAY[
        'LOCK TABLE pglimit_policy_version IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_policy IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_override IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_policy_history IN ACCESS EXCLUSIVE MODE'];
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
    RAISE lock_not_available USING MESSAGE = 'pglimit: a transaction has had locks on the policies for too long: end it, and run this again';
END $pglimit$;
-- +goose StatementEnd
DROP TABLE pglimit_policy_history;
DROP TABLE pglimit_policy_version;
DROP TABLE pglimit_override;
DROP TABLE pglimit_policy;
