-- The limiter as SQL functions, for programs in any language: the statements of
-- queries/ with the arguments checked before them and the answer worked out after
-- them, in schema pglimit. docs/sql.md tells how to use them.
--
-- Optional, and apart from the tables: they have to be there, and the functions find
-- them whatever the search_path of who calls. Not SECURITY DEFINER: a caller needs
-- USAGE on schema pglimit and the rights to read and write the tables.
--
-- Made by make generate from queries/*.sql and queries/functions/*.tmpl: edit those.

-- +goose Up
-- +goose StatementBegin
DO $pglimit$
DECLARE
    home name := (SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('pglimit_token_bucket'::text)::oid);
    bound text[] := (SELECT p.proconfig FROM pg_proc AS p WHERE p.oid = to_regproc('pglimit.token_bucket'::text)::oid);
BEGIN
    IF home IS NULL THEN
        RAISE undefined_table USING MESSAGE = 'pglimit: the tables that the functions work on are not in the search_path',
            HINT = 'Make the tables first: pglimit migrate up.';
    END IF;
    IF NOT pg_catalog.format('search_path=%I, pg_temp', home) = ANY (bound) THEN
        RAISE duplicate_function USING MESSAGE = pg_catalog.format('pglimit: the functions of schema pglimit work on tables in another schema than %I: %s', home, bound[1]),
            HINT = 'A database has one set of them: undo them there first, with pglimit migrate down --functions.';
    END IF;
    IF to_regnamespace('pglimit'::text) IS NULL THEN
        CREATE SCHEMA pglimit;
    END IF;
    IF to_regtype('pglimit.result'::text) IS NULL THEN
        CREATE TYPE pglimit.result AS (
            allowed bool, granted float8, remaining float8, level float8, retry_after_s float8, reset_after_s float8, delay_s float8, reason text
        );
        CREATE TYPE pglimit.hold AS (
            allowed bool, granted float8, remaining float8, level float8, retry_after_s float8, reset_after_s float8, delay_s float8, reason text,
            hold text, expires_at timestamptz
        );
        CREATE TYPE pglimit.settlement AS (
            allowed bool, granted float8, remaining float8, level float8, retry_after_s float8, reset_after_s float8, delay_s float8, reason text,
            replayed bool, expired bool
        );
        CREATE TYPE pglimit._settled AS (
            state text, policy text, key text, reserved float8, units_before float8, burst float8, capacity float8, leak float8, tick_us bigint, period_us bigint,
            now_us bigint, expires_at_us bigint, changes bool, freed bool, updated_at_us bigint, blocked_until_us bigint, level float8, previous float8, at_us bigint, window_us bigint
        );
    END IF;
END $pglimit$;
-- +goose StatementEnd

-- Refuses an argument, naming it and its value.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit._refuse(parameter text, value text, reason text, next text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $pglimit$
BEGIN
    RAISE invalid_parameter_value USING HINT = next,
        MESSAGE = 'pglimit: ' || parameter || ' is ' || coalesce(value, 'NULL') || ': ' || reason;
END $pglimit$;
-- +goose StatementEnd

-- A moment as seconds from another, at least 0; NULL is never: from 292 years on.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit._seconds(until_us bigint, from_us bigint) RETURNS float8
LANGUAGE sql IMMUTABLE AS $pglimit$
    SELECT CASE WHEN until_us - from_us < 9223372036854775 THEN GREATEST(0, until_us - from_us)::float8 / 1e6::float8 END
$pglimit$;
-- +goose StatementEnd

-- The first moment, not before at_us, when need units fit into a bucket, or when
-- it is empty if need is NULL; 9223372036854775807 is never. A search with the
-- arithmetic that decides rather than a division: it is exact. It starts where a
-- division points.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit._bucket_at(level float8, leak float8, tick_us bigint, leaked_at_us bigint, at_us bigint, capacity float8, need float8) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $pglimit$
DECLARE
    rest float8 := GREATEST(0, level - ((at_us - leaked_at_us) / tick_us)::float8 * leak);
    low bigint := 0; -- ticks after leaked_at_us
    high bigint;
    probe bigint;
    step bigint := 1;
BEGIN
    IF floor(capacity / need) < 1::float8 THEN
        RETURN 9223372036854775807;
    END IF;
    IF (CASE WHEN need IS NULL THEN rest = 0::float8 ELSE floor((capacity - rest) / need) >= 1::float8 END) THEN
        RETURN at_us;
    END IF;
    IF ceil(level / leak) + 1::float8 >= (9223372036854775807 / 2 / tick_us)::float8 THEN
        RETURN 9223372036854775807;
    END IF;
    high := ceil(level / leak) + 1::float8;
    probe := GREATEST(0, trunc((level - CASE WHEN need IS NULL THEN 0::float8 ELSE capacity - need END) / leak));
    -- Not enough has leaked before low, enough at high.
    WHILE low < high LOOP
        IF probe < low OR probe >= high THEN
            probe := low + (high - low) / 2;
        END IF;
        rest := GREATEST(0, level - probe::float8 * leak);
        IF (CASE WHEN need IS NULL THEN rest = 0::float8 ELSE floor((capacity - rest) / need) >= 1::float8 END) THEN
            high := probe;
            probe := high - step;
        ELSE
            low := probe + 1;
            probe := low + step - 1;
        END IF;
        step := LEAST(4 * step, 1152921504606846976);
    END LOOP;
    RETURN GREATEST(at_us, leaked_at_us + low * tick_us);
END $pglimit$;
-- +goose StatementEnd

-- The first moment, not before at_us, when need units fit into a sliding counter's
-- windows; 9223372036854775807 is never. Found as in _bucket_at.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit._counter_at(current float8, previous float8, ends_at_us bigint, period_us bigint, at_us bigint, capacity float8, need float8) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $pglimit$
#variable_conflict use_variable
DECLARE
    before float8 := previous;
    running float8 := current;
    ends bigint := ends_at_us; -- of the window that is searched
    low bigint := at_us;
    high bigint := ends_at_us - 1;
    probe bigint;
    step bigint := 1;
BEGIN
    IF floor(capacity / need) < 1::float8 THEN
        RETURN 9223372036854775807;
    END IF;
    -- At the running window's last microsecond, or else in the next one.
    IF floor((capacity - (before * LEAST(period_us, 1)::float8 / period_us::float8 + running)) / need) < 1::float8 THEN
        before := current;
        running := 0;
        ends := ends_at_us + period_us;
        low := ends_at_us;
        high := ends;
    END IF;
    probe := CASE WHEN before > 0::float8
        THEN LEAST(GREATEST(ends::float8 - trunc((capacity - need - running) * period_us::float8 / before), low::float8), high::float8)::bigint ELSE low END;
    WHILE low < high LOOP
        IF probe < low OR probe >= high THEN
            probe := low + (high - low) / 2;
        END IF;
        IF floor((capacity - (before * LEAST(period_us, ends - probe)::float8 / period_us::float8 + running)) / need) >= 1::float8 THEN
            high := probe;
            probe := high - step;
        ELSE
            low := probe + 1;
            probe := low + step - 1;
        END IF;
        step := LEAST(4 * step, 1152921504606846976);
    END LOOP;
    RETURN low;
END $pglimit$;
-- +goose StatementEnd


-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.leaky_bucket(name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, tick_s float8 DEFAULT 0, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $1;
    key text := $2;
    units float8 := coalesce($3, NULL);
    cost float8 := $3;
    count float8 := 1;
    unit float8 := $3;
    burst float8 := coalesce($6, $4);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60.');
    END IF;
    ask.period_us := round(period_s * 1e6::float8);
    IF tick_s <> 0::float8 THEN
        IF (tick_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(tick_s * 1e6::float8 - round(tick_s * 1e6::float8)) <= tick_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'A bucket that leaks in whole steps has one every tick_s; 0 is continuous.');
        END IF;
        ask.tick_us := round(tick_s * 1e6::float8);
    END IF;
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
    ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                        ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF floor(ask.capacity / ask.cost) < 1::float8 THEN
        -- What can never fit is not tried: reading tells how the key stands.
        SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_leaky_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSE
        LOOP
            INSERT INTO pglimit_leaky_bucket AS t
                   (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
            SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                         CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                              THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                         CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                         ask.policy::text AS policy, ask.key::text AS key,
                         ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                         ask.leak::float8 AS leak,
                         ask.tick_us::bigint AS tick_us,
                         ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                         LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
            ON CONFLICT (policy, key) DO UPDATE SET
                cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
                granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                        ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))
                                    / EXCLUDED.cost))) END,
                level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
                        + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))
                                            / EXCLUDED.cost))) END,
                leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) ELSE t.leaked_at_us
                        + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
                updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
                        < EXCLUDED.cost THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
            RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
            INTO ask.granted, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
            EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('leaky_bucket', ask.policy, ask.key, ask.now_us);
            IF ask.blocked_until_us > ask.updated_at_us THEN
                -- The block that this denial started, which expired holds caused.
                ask.until_us := ask.blocked_until_us;
                UPDATE pglimit_leaky_bucket AS t SET blocked_until_us = 0
                FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                  AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                ask.until_us := 0;
            END IF;
        END LOOP;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF ask.level > 0::float8 THEN
        ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
    END IF;
    IF ask.rest > 0::float8 THEN
        ask.fits_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, ask.capacity, ask.rest);
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.leaky_bucket IS 'Asks a leaky bucket for cost units, all or nothing; with tick_s it leaks in whole steps.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.leaky_bucket_queue(name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $1;
    key text := $2;
    units float8 := coalesce($3, NULL);
    cost float8 := $3;
    count float8 := 1;
    unit float8 := $3;
    burst float8 := coalesce($6, $4);
    capacity float8;
    room float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    ticket bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    ahead_us float8;
    answer pglimit.result;
BEGIN
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60.');
    END IF;
    ask.period_us := round(period_s * 1e6::float8);
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
    ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                        ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF floor(ask.capacity / ask.cost) < 1::float8 THEN
        -- What can never fit is not tried: reading tells how the key stands.
        SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_leaky_bucket_queue AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.leaked_at_us := ask.updated_at_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSE
        ask.room := ask.capacity;
        INSERT INTO pglimit_leaky_bucket_queue AS t
               (policy, key, cost, granted, level, capacity, leak, ticket, updated_at_us, blocked_until_us, expires_at_us)
        SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                     ask.policy::text AS policy, ask.key::text AS key,
                     ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                     ask.leak::float8 AS leak,
                     ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                     LEAST(ask.count::float8, floor(ask.room::float8 / ask.cost::float8)) AS granted) AS a
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
            granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((ask.room::float8
                                    - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
            level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                    + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((ask.room::float8
                                            - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                        / EXCLUDED.cost))) END,
            ticket = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                    AND ask.room::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) >= EXCLUDED.cost
                          THEN GREATEST(t.ticket + 1, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.ticket END,
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
            blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                    AND ask.room::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                    THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
        RETURNING t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.level, ask.ticket, ask.updated_at_us, ask.blocked_until_us;
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF ask.level > 0::float8 THEN
        ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
    END IF;
    IF ask.rest > 0::float8 THEN
        ask.fits_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, ask.capacity, ask.rest);
    END IF;
    IF ask.answer.allowed THEN
        ask.ahead_us := GREATEST(0, ask.level - ask.answer.granted) / ask.leak;
        -- Half a microsecond is rounded up, as in Go; round() goes to the even one.
        ask.answer.delay_s := CASE WHEN ask.ahead_us < 9223372036854774784::float8
            THEN pglimit._seconds((floor(ask.ahead_us) + CASE WHEN ask.ahead_us - floor(ask.ahead_us) >= 0.5::float8 THEN 1::float8 ELSE 0::float8 END)::bigint, 0) END;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.leaky_bucket_queue IS 'Asks for a place in a queue; delay_s is how long until its turn.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.token_bucket(name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $1;
    key text := $2;
    units float8 := coalesce($3, NULL);
    cost float8 := $3;
    count float8 := 1;
    unit float8 := $3;
    burst float8 := coalesce($6, $4);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60.');
    END IF;
    ask.period_us := round(period_s * 1e6::float8);
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
    ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                        ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF floor(ask.capacity / ask.cost) < 1::float8 THEN
        -- What can never fit is not tried: reading tells how the key stands.
        SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_token_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.leaked_at_us := ask.updated_at_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSE
        LOOP
            INSERT INTO pglimit_token_bucket AS t
                   (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
            SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, -a.block_for_us, a.now_us + a.hold_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                         CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                              THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                         CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                         ask.policy::text AS policy, ask.key::text AS key,
                         ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                         ask.leak::float8 AS leak,
                         ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                         LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
            ON CONFLICT (policy, key) DO UPDATE SET
                cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
                granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                        ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
                level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                        + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                            / EXCLUDED.cost))) END,
                updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
            RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
            INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
            EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('token_bucket', ask.policy, ask.key, ask.now_us);
            IF ask.blocked_until_us > ask.updated_at_us THEN
                -- The block that this denial started, which expired holds caused.
                ask.until_us := ask.blocked_until_us;
                UPDATE pglimit_token_bucket AS t SET blocked_until_us = 0
                FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                  AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                ask.until_us := 0;
            END IF;
        END LOOP;
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF ask.level > 0::float8 THEN
        ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
    END IF;
    IF ask.rest > 0::float8 THEN
        ask.fits_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, ask.capacity, ask.rest);
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.token_bucket IS 'Asks a token bucket for cost tokens, all or nothing.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.gcra(name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $1;
    key text := $2;
    units float8 := coalesce($3, NULL);
    cost float8 := $3;
    count float8 := 1;
    unit float8 := $3;
    burst float8 := coalesce($6, $4);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60.');
    END IF;
    ask.period_us := round(period_s * 1e6::float8);
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
    ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                        ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF floor(ask.capacity / ask.cost) < 1::float8 THEN
        -- What can never fit is not tried: reading tells how the key stands.
        SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_gcra AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.leaked_at_us := ask.updated_at_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSE
        LOOP
            INSERT INTO pglimit_gcra AS t
                   (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
            SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, -a.block_for_us, a.now_us + a.hold_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                         CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                              THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                         CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                         ask.policy::text AS policy, ask.key::text AS key,
                         ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                         ask.leak::float8 AS leak,
                         ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                         LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
            ON CONFLICT (policy, key) DO UPDATE SET
                cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
                granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                        ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
                level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                        + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                            / EXCLUDED.cost))) END,
                updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
            RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
            INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
            EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('gcra', ask.policy, ask.key, ask.now_us);
            IF ask.blocked_until_us > ask.updated_at_us THEN
                -- The block that this denial started, which expired holds caused.
                ask.until_us := ask.blocked_until_us;
                UPDATE pglimit_gcra AS t SET blocked_until_us = 0
                FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                  AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                ask.until_us := 0;
            END IF;
        END LOOP;
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF ask.level > 0::float8 THEN
        ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
    END IF;
    IF ask.rest > 0::float8 THEN
        ask.fits_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, ask.capacity, ask.rest);
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.gcra IS 'Asks the generic cell rate algorithm for cost units, all or nothing.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.fixed_window(name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, aligned bool DEFAULT false, ends_at timestamptz DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $1;
    key text := $2;
    units float8 := coalesce($3, NULL);
    cost float8 := $3;
    count float8 := 1;
    unit float8 := $3;
    burst float8 := coalesce(NULL, $4);
    capacity float8;
    period_us bigint;
    aligned bool := coalesce($6, false);
    from_us bigint := 0;
    turn_us bigint := 0;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    ends_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF ends_at IS NULL THEN
        IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60; a fixed_window takes ends_at instead.');
        END IF;
        ask.period_us := round(period_s * 1e6::float8);
    ELSIF period_s IS NOT NULL THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'excludes ends_at', 'Leave out one of the two.');
    ELSIF aligned THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'excludes ends_at', 'Leave out one of the two.');
    END IF;
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    IF ends_at IS NOT NULL THEN
        -- A window that ends then is one that begins now and lasts until then.
        ask.now_us := coalesce(ask.now_us, (extract(epoch FROM clock_timestamp())::float8 * 1e6::float8)::bigint);
        IF (ends_at >= '1970-01-01+00' AND ends_at < '10000-01-01+00' AND (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us BETWEEN 1 AND 3155760000000000) IS NOT TRUE THEN
            PERFORM pglimit._refuse('ends_at', quote_literal(ends_at::text), 'must be after the clock, ' || to_timestamp((ask.now_us / 1000000)::float8)::text || ', by at most a hundred years', 'It is the end of the period that clock_timestamp() is in.');
        END IF;
        ask.period_us := (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us;
    END IF;
    ask.hold_us := ask.period_us;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF floor(ask.capacity / ask.cost) < 1::float8 THEN
        -- What can never fit is not tried: reading tells how the key stands.
        SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_fixed_window AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        IF ask.now_us >= ask.ends_at_us THEN
            ask.level := 0;
        END IF;
    ELSE
        LOOP
            INSERT INTO pglimit_fixed_window AS t
                   (policy, key, cost, granted, level, capacity, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
            SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity,
                   CASE WHEN a.granted = 0::float8 THEN 0
                        WHEN a.period_us = 0 THEN CASE WHEN a.now_us < a.turn_us THEN a.turn_us ELSE a.until_us END
                        WHEN a.aligned THEN (a.now_us / a.period_us + 1) * a.period_us
                        ELSE a.now_us + a.period_us END,
                   a.now_us, -a.block_for_us, a.now_us + a.hold_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                         CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                              THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                         CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                         ask.policy::text AS policy, ask.key::text AS key,
                         ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                         ask.period_us::bigint AS period_us,
                         ask.aligned::bool AS aligned,
                         ask.from_us::bigint AS from_us,
                         ask.turn_us::bigint AS turn_us,
                         ask.until_us::bigint AS until_us,
                         ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                         LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
            WHERE (a.period_us > 0 OR a.now_us >= a.from_us AND a.now_us < a.until_us)
            ON CONFLICT (policy, key) DO UPDATE SET
                cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                        ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END) / EXCLUDED.cost))) END,
                level = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END
                        + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END)
                                            / EXCLUDED.cost))) END,
                ends_at_us = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                                  THEN EXCLUDED.ends_at_us ELSE t.ends_at_us END,
                updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END < EXCLUDED.cost
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
            RETURNING t.granted, t.level, t.ends_at_us, t.updated_at_us, t.blocked_until_us
            INTO ask.granted, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('fixed_window', ask.policy, ask.key, ask.now_us);
            IF ask.blocked_until_us > ask.updated_at_us THEN
                -- The block that this denial started, which expired holds caused.
                ask.until_us := ask.blocked_until_us;
                UPDATE pglimit_fixed_window AS t SET blocked_until_us = 0
                FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                  AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                ask.until_us := 0;
            END IF;
        END LOOP;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF ask.level > 0::float8 THEN
        ask.empty_at_us := GREATEST(ask.updated_at_us, ask.ends_at_us);
    END IF;
    IF ask.rest > 0::float8 THEN
        ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                               WHEN ask.updated_at_us >= ask.ends_at_us OR floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                               ELSE ask.ends_at_us END;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.fixed_window IS 'Asks for cost units of the running window, all or nothing: of period_s from the first hit, aligned to the clock, or until ends_at.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.sliding_window_counter(name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $1;
    key text := $2;
    units float8 := coalesce($3, NULL);
    cost float8 := $3;
    count float8 := 1;
    unit float8 := $3;
    burst float8 := coalesce(NULL, $4);
    capacity float8;
    period_us bigint;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    ends_at_us bigint;
    current float8;
    previous float8;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60.');
    END IF;
    ask.period_us := round(period_s * 1e6::float8);
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    ask.hold_us := 2 * ask.period_us;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF floor(ask.capacity / ask.cost) < 1::float8 THEN
        -- What can never fit is not tried: reading tells how the key stands.
        SELECT c.us AS now_us, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous,
               coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_sliding_window_counter AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        IF ask.updated_at_us >= ask.ends_at_us THEN
            ask.rest := ask.current;
            ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
            ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
            ask.window_us := ask.period_us;
            ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
            ask.rest := NULL;
        END IF;
        ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
    ELSE
        LOOP
            INSERT INTO pglimit_sliding_window_counter AS t
                   (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
            SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, 0, a.capacity, a.period_us,
                   (a.now_us / a.period_us + 1) * a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                         CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                              THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                         CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                         ask.policy::text AS policy, ask.key::text AS key,
                         ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                         ask.period_us::bigint AS period_us,
                         ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                         LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
            ON CONFLICT (policy, key) DO UPDATE SET
                cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                        ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                        - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)
                                    / EXCLUDED.cost))) END,
                current = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                        AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                        THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us
                            THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END
                        + EXCLUDED.cost * GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                        - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)
                                    / EXCLUDED.cost))) ELSE t.current END,
                previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                        THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                        ELSE t.previous END,
                period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                        THEN EXCLUDED.period_us ELSE t.period_us END,
                ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                        THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
                updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END < EXCLUDED.cost
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
            RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
            INTO ask.granted, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('sliding_window_counter', ask.policy, ask.key, ask.now_us);
            IF ask.blocked_until_us > ask.updated_at_us THEN
                -- The block that this denial started, which expired holds caused.
                ask.until_us := ask.blocked_until_us;
                UPDATE pglimit_sliding_window_counter AS t SET blocked_until_us = 0
                FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                  AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                ask.until_us := 0;
            END IF;
        END LOOP;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
        IF ask.updated_at_us >= ask.ends_at_us THEN
            ask.rest := ask.current;
            ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
            ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
            ask.window_us := ask.period_us;
            ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
            ask.rest := NULL;
        END IF;
        ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    ask.empty_at_us := CASE WHEN ask.current > 0::float8 THEN ask.ends_at_us + ask.window_us
                            WHEN ask.previous > 0::float8 THEN GREATEST(ask.updated_at_us, ask.ends_at_us)
                            ELSE ask.updated_at_us END;
    IF ask.rest > 0::float8 THEN
        ask.fits_at_us := pglimit._counter_at(ask.current, ask.previous, ask.ends_at_us, ask.window_us, ask.updated_at_us, ask.capacity, ask.rest);
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.sliding_window_counter IS 'Asks for cost units of the last period_s, which two counters approximate, all or nothing.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.sliding_window_log(name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $1;
    key text := $2;
    units float8 := coalesce($3, NULL);
    cost float8 := $3;
    count float8 := 1;
    unit float8 := $3;
    burst float8 := coalesce(NULL, $4);
    capacity float8;
    period_us bigint;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    newest_at_us bigint;
    frees_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60.');
    END IF;
    ask.period_us := round(period_s * 1e6::float8);
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    ask.hold_us := ask.period_us;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF floor(ask.capacity / ask.cost) < 1::float8 THEN
        -- What can never fit is not tried: reading tells how the key stands.
        SELECT c.us AS now_us,
               coalesce((t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - ask.period_us::bigint, t.entries) + 1], t.total))),
                       0)::float8 AS level,
               coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us,
               coalesce(CASE WHEN ask.capacity::float8 - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                           - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 1], t.total)) >= ask.unit::float8
                           THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                   t.totals)] WHEN ask.capacity::float8 - (t.total
                               - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                           - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 2], t.total)) >= ask.unit::float8
                           THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                   t.totals) + 1] WHEN ask.capacity::float8 - (t.total
                               - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                           - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 3], t.total)) >= ask.unit::float8
                           THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                   t.totals) + 2] ELSE t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                   + 1e-15::float8 * (t.total + ask.capacity::float8), t.totals)] END, 0)::bigint AS frees_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_sliding_window_log AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.level, ask.newest_at_us, ask.frees_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
    ELSE
        LOOP
            INSERT INTO pglimit_sliding_window_log AS t
                   (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, keep_us, updated_at_us, blocked_until_us, expires_at_us)
            SELECT a.policy, a.key, a.cost, a.granted,
                   CASE WHEN a.granted > 0::float8 THEN ARRAY[a.now_us] ELSE '{}' END,
                   CASE WHEN a.granted > 0::float8 THEN ARRAY[0::float8] ELSE '{}' END,
                   0, a.cost * a.granted, a.capacity, a.period_us, a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                         CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                              THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                         CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                         ask.policy::text AS policy, ask.key::text AS key,
                         ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                         ask.period_us::bigint AS period_us,
                         ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                         LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
            ON CONFLICT (policy, key) DO UPDATE SET
                cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                        ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                        - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                            t.entries) + 1], t.total)))) / EXCLUDED.cost))) END,
            entries = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                    AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                        t.entries) + 1], t.total))) >= EXCLUDED.cost THEN pg_catalog.array_append(t.entries[pg_catalog.width_bucket(GREATEST(t.updated_at_us,
                                    EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :], GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.entries END,
                totals = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                        AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                            WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                            THEN pglimit_rebase(pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries)
                                        + 1 :], t.total), GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) ELSE pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                        - EXCLUDED.period_us, t.entries) + 1 :], t.total) END ELSE t.totals END,
                base = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                        AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                            WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity) THEN 0
                            ELSE GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total)) END ELSE t.base END,
                total = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                        AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                            WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                            THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                        t.total))) ELSE t.total END + EXCLUDED.cost * GREATEST(0,
                            LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total
                                            - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries)
                                                        + 1], t.total)))) / EXCLUDED.cost))) ELSE t.total END,
                period_us = EXCLUDED.period_us, keep_us = GREATEST(t.keep_us, EXCLUDED.period_us),
                updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))) < EXCLUDED.cost THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                        ELSE t.blocked_until_us END
            RETURNING t.granted, (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(t.updated_at_us - t.period_us, t.entries) + 1], t.total)))::float8 AS level,
                coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us,
                   coalesce(CASE WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                               - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                               - 1e-15::float8 * (t.total + t.capacity), t.totals) + 1], t.total))
                               >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                               THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                           - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                       t.totals)] WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                               - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                               - 1e-15::float8 * (t.total + t.capacity), t.totals) + 2], t.total))
                               >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                               THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                           - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                       t.totals) + 1] WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                               - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                               - 1e-15::float8 * (t.total + t.capacity), t.totals) + 3], t.total))
                               >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                               THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                           - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                       t.totals) + 2] ELSE t.entries[pg_catalog.width_bucket(t.total
                                       - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                       + 1e-15::float8 * (t.total + t.capacity), t.totals)] END, 0)::bigint AS frees_at_us,
                   t.updated_at_us, t.blocked_until_us
            INTO ask.granted, ask.level, ask.newest_at_us, ask.frees_at_us, ask.updated_at_us, ask.blocked_until_us;
            EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('sliding_window_log', ask.policy, ask.key, ask.now_us);
            IF ask.blocked_until_us > ask.updated_at_us THEN
                -- The block that this denial started, which expired holds caused.
                ask.until_us := ask.blocked_until_us;
                UPDATE pglimit_sliding_window_log AS t SET blocked_until_us = 0
                FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                  AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                ask.until_us := 0;
            END IF;
        END LOOP;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF ask.level > 0::float8 THEN
        ask.empty_at_us := GREATEST(ask.updated_at_us, ask.newest_at_us + ask.period_us);
    END IF;
    IF ask.rest > 0::float8 THEN
        ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                               WHEN floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                               ELSE GREATEST(ask.updated_at_us, ask.frees_at_us + ask.period_us) END;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.sliding_window_log IS 'Asks for cost units of the last period_s, exactly, all or nothing.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.allow_up_to(algorithm text, name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, tick_s float8 DEFAULT 0, aligned bool DEFAULT false, ends_at timestamptz DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    units float8 := coalesce($4, NULL);
    cost float8 := $4;
    count float8 := 1;
    unit float8 := $4;
    burst float8 := coalesce($7, $5);
    capacity float8;
    room float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    aligned bool := coalesce($9, false);
    from_us bigint := 0;
    turn_us bigint := 0;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    ticket bigint;
    ends_at_us bigint;
    current float8;
    previous float8;
    newest_at_us bigint;
    frees_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    ahead_us float8;
    answer pglimit.result;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF NOT algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') AND ask.burst <> limit_units THEN
        PERFORM pglimit._refuse('burst', burst::text, algorithm || ' has no burst apart from limit_units', 'Leave it out.');
    END IF;
    IF ends_at IS NULL THEN
        IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60; a fixed_window takes ends_at instead.');
        END IF;
        ask.period_us := round(period_s * 1e6::float8);
    ELSIF algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('ends_at', ends_at::text, 'is for fixed_window only', 'Give period_s instead.');
    ELSIF period_s IS NOT NULL THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'excludes ends_at', 'Leave out one of the two.');
    ELSIF aligned THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'excludes ends_at', 'Leave out one of the two.');
    END IF;
    IF tick_s <> 0::float8 THEN
        IF (tick_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(tick_s * 1e6::float8 - round(tick_s * 1e6::float8)) <= tick_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'A bucket that leaks in whole steps has one every tick_s; 0 is continuous.');
        END IF;
        IF algorithm <> 'leaky_bucket' THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'is for leaky_bucket only', 'Leave it out.');
        END IF;
        ask.tick_us := round(tick_s * 1e6::float8);
    END IF;
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF aligned AND algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'is for fixed_window only', 'Leave it out.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    IF ends_at IS NOT NULL THEN
        -- A window that ends then is one that begins now and lasts until then.
        ask.now_us := coalesce(ask.now_us, (extract(epoch FROM clock_timestamp())::float8 * 1e6::float8)::bigint);
        IF (ends_at >= '1970-01-01+00' AND ends_at < '10000-01-01+00' AND (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us BETWEEN 1 AND 3155760000000000) IS NOT TRUE THEN
            PERFORM pglimit._refuse('ends_at', quote_literal(ends_at::text), 'must be after the clock, ' || to_timestamp((ask.now_us / 1000000)::float8)::text || ', by at most a hundred years', 'It is the end of the period that clock_timestamp() is in.');
        END IF;
        ask.period_us := (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us;
    END IF;
    IF algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') THEN
        ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
        ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                            ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ELSE
        ask.hold_us := CASE WHEN algorithm = 'sliding_window_counter' THEN 2 ELSE 1 END * ask.period_us;
    END IF;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    -- Whole units of a whole ask; a fractional one is granted whole or in steps
    -- of a millionth of the burst. A unit more may be less than a step, which is
    -- then what has to fit.
    ask.cost := CASE WHEN ask.units = trunc(ask.units) THEN 1 ELSE LEAST(1e-6::float8 * ask.burst, ask.units) END;
    ask.count := ask.units / ask.cost;
    ask.unit := LEAST(GREATEST(1, ask.cost), ask.units);
    IF algorithm = 'leaky_bucket' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_leaky_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
        ELSE
            LOOP
                INSERT INTO pglimit_leaky_bucket AS t
                       (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.leak::float8 AS leak,
                             ask.tick_us::bigint AS tick_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))
                                        / EXCLUDED.cost))) END,
                    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                    - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))
                                                / EXCLUDED.cost))) END,
                    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) ELSE t.leaked_at_us
                            + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
                            < EXCLUDED.cost THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
                INTO ask.granted, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('leaky_bucket', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_leaky_bucket AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'leaky_bucket_queue' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_leaky_bucket_queue AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
        ELSE
            ask.room := ask.capacity;
            INSERT INTO pglimit_leaky_bucket_queue AS t
                   (policy, key, cost, granted, level, capacity, leak, ticket, updated_at_us, blocked_until_us, expires_at_us)
            SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                         CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                              THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                         CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                         ask.policy::text AS policy, ask.key::text AS key,
                         ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                         ask.leak::float8 AS leak,
                         ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                         LEAST(ask.count::float8, floor(ask.room::float8 / ask.cost::float8)) AS granted) AS a
            ON CONFLICT (policy, key) DO UPDATE SET
                cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
                granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                        ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((ask.room::float8
                                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
                level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                        + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((ask.room::float8
                                                - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                            / EXCLUDED.cost))) END,
                ticket = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                        AND ask.room::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) >= EXCLUDED.cost
                              THEN GREATEST(t.ticket + 1, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.ticket END,
                updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                        AND ask.room::float8 - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                        THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
            RETURNING t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us
            INTO ask.granted, ask.level, ask.ticket, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'token_bucket' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_token_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
        ELSE
            LOOP
                INSERT INTO pglimit_token_bucket AS t
                       (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.leak::float8 AS leak,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
                    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                    - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                                / EXCLUDED.cost))) END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
                INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('token_bucket', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_token_bucket AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            ask.leaked_at_us := ask.updated_at_us;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'gcra' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_gcra AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
        ELSE
            LOOP
                INSERT INTO pglimit_gcra AS t
                       (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.leak::float8 AS leak,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
                    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                    - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                                / EXCLUDED.cost))) END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
                INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('gcra', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_gcra AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            ask.leaked_at_us := ask.updated_at_us;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'fixed_window' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_fixed_window AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            IF ask.now_us >= ask.ends_at_us THEN
                ask.level := 0;
            END IF;
        ELSE
            LOOP
                INSERT INTO pglimit_fixed_window AS t
                       (policy, key, cost, granted, level, capacity, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity,
                       CASE WHEN a.granted = 0::float8 THEN 0
                            WHEN a.period_us = 0 THEN CASE WHEN a.now_us < a.turn_us THEN a.turn_us ELSE a.until_us END
                            WHEN a.aligned THEN (a.now_us / a.period_us + 1) * a.period_us
                            ELSE a.now_us + a.period_us END,
                       a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.period_us::bigint AS period_us,
                             ask.aligned::bool AS aligned,
                             ask.from_us::bigint AS from_us,
                             ask.turn_us::bigint AS turn_us,
                             ask.until_us::bigint AS until_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                WHERE (a.period_us > 0 OR a.now_us >= a.from_us AND a.now_us < a.until_us)
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END) / EXCLUDED.cost))) END,
                    level = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END)
                                                / EXCLUDED.cost))) END,
                    ends_at_us = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                                      THEN EXCLUDED.ends_at_us ELSE t.ends_at_us END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.ends_at_us, t.updated_at_us, t.blocked_until_us
                INTO ask.granted, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('fixed_window', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_fixed_window AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'sliding_window_counter' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous,
                   coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_sliding_window_counter AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            IF ask.updated_at_us >= ask.ends_at_us THEN
                ask.rest := ask.current;
                ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
                ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
                ask.window_us := ask.period_us;
                ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
                ask.rest := NULL;
            END IF;
            ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
        ELSE
            LOOP
                INSERT INTO pglimit_sliding_window_counter AS t
                       (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, 0, a.capacity, a.period_us,
                       (a.now_us / a.period_us + 1) * a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.period_us::bigint AS period_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)
                                        / EXCLUDED.cost))) END,
                    current = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us
                                THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END
                            + EXCLUDED.cost * GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)
                                        / EXCLUDED.cost))) ELSE t.current END,
                    previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                            ELSE t.previous END,
                    period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN EXCLUDED.period_us ELSE t.period_us END,
                    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
                INTO ask.granted, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('sliding_window_counter', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_sliding_window_counter AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
            IF ask.updated_at_us >= ask.ends_at_us THEN
                ask.rest := ask.current;
                ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
                ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
                ask.window_us := ask.period_us;
                ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
                ask.rest := NULL;
            END IF;
            ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
        END IF;
    ELSIF algorithm = 'sliding_window_log' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us,
                   coalesce((t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - ask.period_us::bigint, t.entries) + 1], t.total))),
                           0)::float8 AS level,
                   coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us,
                   coalesce(CASE WHEN ask.capacity::float8 - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 1], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals)] WHEN ask.capacity::float8 - (t.total
                                   - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 2], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals) + 1] WHEN ask.capacity::float8 - (t.total
                                   - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 3], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals) + 2] ELSE t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                       + 1e-15::float8 * (t.total + ask.capacity::float8), t.totals)] END, 0)::bigint AS frees_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_sliding_window_log AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.newest_at_us, ask.frees_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        ELSE
            LOOP
                INSERT INTO pglimit_sliding_window_log AS t
                       (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, keep_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted,
                       CASE WHEN a.granted > 0::float8 THEN ARRAY[a.now_us] ELSE '{}' END,
                       CASE WHEN a.granted > 0::float8 THEN ARRAY[0::float8] ELSE '{}' END,
                       0, a.cost * a.granted, a.capacity, a.period_us, a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.period_us::bigint AS period_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                                t.entries) + 1], t.total)))) / EXCLUDED.cost))) END,
                entries = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                        AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))) >= EXCLUDED.cost THEN pg_catalog.array_append(t.entries[pg_catalog.width_bucket(GREATEST(t.updated_at_us,
                                        EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :], GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.entries END,
                    totals = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                                WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                                THEN pglimit_rebase(pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries)
                                            + 1 :], t.total), GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                    t.entries) + 1], t.total))) ELSE pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                            - EXCLUDED.period_us, t.entries) + 1 :], t.total) END ELSE t.totals END,
                    base = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                                WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity) THEN 0
                                ELSE GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                        t.total)) END ELSE t.base END,
                    total = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                                WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                                THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                            t.total))) ELSE t.total END + EXCLUDED.cost * GREATEST(0,
                                LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total
                                                - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries)
                                                            + 1], t.total)))) / EXCLUDED.cost))) ELSE t.total END,
                    period_us = EXCLUDED.period_us, keep_us = GREATEST(t.keep_us, EXCLUDED.period_us),
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) < EXCLUDED.cost THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
                RETURNING t.granted, (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(t.updated_at_us - t.period_us, t.entries) + 1], t.total)))::float8 AS level,
                    coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us,
                       coalesce(CASE WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                                   - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                                   - 1e-15::float8 * (t.total + t.capacity), t.totals) + 1], t.total))
                                   >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                                   THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                               - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                           t.totals)] WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                                   - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                                   - 1e-15::float8 * (t.total + t.capacity), t.totals) + 2], t.total))
                                   >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                                   THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                               - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                           t.totals) + 1] WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                                   - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                                   - 1e-15::float8 * (t.total + t.capacity), t.totals) + 3], t.total))
                                   >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                                   THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                               - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                           t.totals) + 2] ELSE t.entries[pg_catalog.width_bucket(t.total
                                           - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                           + 1e-15::float8 * (t.total + t.capacity), t.totals)] END, 0)::bigint AS frees_at_us,
                       t.updated_at_us, t.blocked_until_us
                INTO ask.granted, ask.level, ask.newest_at_us, ask.frees_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('sliding_window_log', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_sliding_window_log AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, ask.capacity, ask.rest);
        END IF;
        IF ask.answer.allowed AND algorithm = 'leaky_bucket_queue' THEN
            ask.ahead_us := GREATEST(0, ask.level - ask.answer.granted) / ask.leak;
            -- Half a microsecond is rounded up, as in Go; round() goes to the even one.
            ask.answer.delay_s := CASE WHEN ask.ahead_us < 9223372036854774784::float8
                THEN pglimit._seconds((floor(ask.ahead_us) + CASE WHEN ask.ahead_us - floor(ask.ahead_us) >= 0.5::float8 THEN 1::float8 ELSE 0::float8 END)::bigint, 0) END;
        END IF;
    ELSIF algorithm IN ('fixed_window') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.ends_at_us);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                                   WHEN ask.updated_at_us >= ask.ends_at_us OR floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                                   ELSE ask.ends_at_us END;
        END IF;
    ELSIF algorithm IN ('sliding_window_counter') THEN
        ask.empty_at_us := CASE WHEN ask.current > 0::float8 THEN ask.ends_at_us + ask.window_us
                                WHEN ask.previous > 0::float8 THEN GREATEST(ask.updated_at_us, ask.ends_at_us)
                                ELSE ask.updated_at_us END;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := pglimit._counter_at(ask.current, ask.previous, ask.ends_at_us, ask.window_us, ask.updated_at_us, ask.capacity, ask.rest);
        END IF;
    ELSIF algorithm IN ('sliding_window_log') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.newest_at_us + ask.period_us);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                                   WHEN floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                                   ELSE GREATEST(ask.updated_at_us, ask.frees_at_us + ask.period_us) END;
        END IF;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.allow_up_to IS 'Asks for up to cost units and is granted what fits.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.check(algorithm text, name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, tick_s float8 DEFAULT 0, aligned bool DEFAULT false, ends_at timestamptz DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    units float8 := coalesce($4, NULL);
    unit float8 := $4;
    burst float8 := coalesce($7, $5);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    level float8;
    leaked_at_us bigint;
    ends_at_us bigint;
    current float8;
    previous float8;
    newest_at_us bigint;
    frees_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    ahead_us float8;
    answer pglimit.result;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF NOT algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') AND ask.burst <> limit_units THEN
        PERFORM pglimit._refuse('burst', burst::text, algorithm || ' has no burst apart from limit_units', 'Leave it out.');
    END IF;
    IF ends_at IS NULL THEN
        IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60; a fixed_window takes ends_at instead.');
        END IF;
        ask.period_us := round(period_s * 1e6::float8);
    ELSIF algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('ends_at', ends_at::text, 'is for fixed_window only', 'Give period_s instead.');
    ELSIF period_s IS NOT NULL THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'excludes ends_at', 'Leave out one of the two.');
    ELSIF aligned THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'excludes ends_at', 'Leave out one of the two.');
    END IF;
    IF tick_s <> 0::float8 THEN
        IF (tick_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(tick_s * 1e6::float8 - round(tick_s * 1e6::float8)) <= tick_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'A bucket that leaks in whole steps has one every tick_s; 0 is continuous.');
        END IF;
        IF algorithm <> 'leaky_bucket' THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'is for leaky_bucket only', 'Leave it out.');
        END IF;
        ask.tick_us := round(tick_s * 1e6::float8);
    END IF;
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF aligned AND algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'is for fixed_window only', 'Leave it out.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost = 0::float8 OR cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be 0, or positive and at most 2^53', 'Cost 0 reads how the key stands.');
    ELSIF cost <> 0::float8 AND cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    IF ends_at IS NOT NULL THEN
        -- A window that ends then is one that begins now and lasts until then.
        ask.now_us := coalesce(ask.now_us, (extract(epoch FROM clock_timestamp())::float8 * 1e6::float8)::bigint);
        IF (ends_at >= '1970-01-01+00' AND ends_at < '10000-01-01+00' AND (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us BETWEEN 1 AND 3155760000000000) IS NOT TRUE THEN
            PERFORM pglimit._refuse('ends_at', quote_literal(ends_at::text), 'must be after the clock, ' || to_timestamp((ask.now_us / 1000000)::float8)::text || ', by at most a hundred years', 'It is the end of the period that clock_timestamp() is in.');
        END IF;
        ask.period_us := (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us;
    END IF;
    IF algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') THEN
        ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
        ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                            ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ELSE
        ask.hold_us := CASE WHEN algorithm = 'sliding_window_counter' THEN 2 ELSE 1 END * ask.period_us;
    END IF;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF algorithm = 'leaky_bucket' THEN
        LOOP
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_leaky_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
            EXIT WHEN ask.units = 0::float8 OR floor(ask.capacity / NULLIF(ask.units, 0::float8)) < 1::float8
                      OR floor((ask.capacity - ask.level) / NULLIF(ask.units, 0::float8)) >= 1::float8
                      OR NOT pglimit._reap('leaky_bucket', ask.policy, ask.key, CASE WHEN now IS NOT NULL THEN ask.now_us END);
            ask.now_us := CASE WHEN now IS NOT NULL THEN ask.now_us END;
        END LOOP;
    ELSIF algorithm = 'leaky_bucket_queue' THEN
        SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
        LEFT JOIN pglimit_leaky_bucket_queue AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
        INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.leaked_at_us := ask.updated_at_us;
        ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSIF algorithm = 'token_bucket' THEN
        LOOP
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_token_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
            EXIT WHEN ask.units = 0::float8 OR floor(ask.capacity / NULLIF(ask.units, 0::float8)) < 1::float8
                      OR floor((ask.capacity - ask.level) / NULLIF(ask.units, 0::float8)) >= 1::float8
                      OR NOT pglimit._reap('token_bucket', ask.policy, ask.key, CASE WHEN now IS NOT NULL THEN ask.now_us END);
            ask.now_us := CASE WHEN now IS NOT NULL THEN ask.now_us END;
        END LOOP;
    ELSIF algorithm = 'gcra' THEN
        LOOP
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_gcra AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
            EXIT WHEN ask.units = 0::float8 OR floor(ask.capacity / NULLIF(ask.units, 0::float8)) < 1::float8
                      OR floor((ask.capacity - ask.level) / NULLIF(ask.units, 0::float8)) >= 1::float8
                      OR NOT pglimit._reap('gcra', ask.policy, ask.key, CASE WHEN now IS NOT NULL THEN ask.now_us END);
            ask.now_us := CASE WHEN now IS NOT NULL THEN ask.now_us END;
        END LOOP;
    ELSIF algorithm = 'fixed_window' THEN
        LOOP
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_fixed_window AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            IF ask.now_us >= ask.ends_at_us THEN
                ask.level := 0;
            END IF;
            EXIT WHEN ask.units = 0::float8 OR floor(ask.capacity / NULLIF(ask.units, 0::float8)) < 1::float8
                      OR floor((ask.capacity - ask.level) / NULLIF(ask.units, 0::float8)) >= 1::float8
                      OR NOT pglimit._reap('fixed_window', ask.policy, ask.key, CASE WHEN now IS NOT NULL THEN ask.now_us END);
            ask.now_us := CASE WHEN now IS NOT NULL THEN ask.now_us END;
        END LOOP;
    ELSIF algorithm = 'sliding_window_counter' THEN
        LOOP
            SELECT c.us AS now_us, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous,
                   coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_sliding_window_counter AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            IF ask.updated_at_us >= ask.ends_at_us THEN
                ask.rest := ask.current;
                ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
                ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
                ask.window_us := ask.period_us;
                ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
                ask.rest := NULL;
            END IF;
            ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
            EXIT WHEN ask.units = 0::float8 OR floor(ask.capacity / NULLIF(ask.units, 0::float8)) < 1::float8
                      OR floor((ask.capacity - ask.level) / NULLIF(ask.units, 0::float8)) >= 1::float8
                      OR NOT pglimit._reap('sliding_window_counter', ask.policy, ask.key, CASE WHEN now IS NOT NULL THEN ask.now_us END);
            ask.now_us := CASE WHEN now IS NOT NULL THEN ask.now_us END;
        END LOOP;
    ELSIF algorithm = 'sliding_window_log' THEN
        LOOP
            SELECT c.us AS now_us,
                   coalesce((t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - ask.period_us::bigint, t.entries) + 1], t.total))),
                           0)::float8 AS level,
                   coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us,
                   coalesce(CASE WHEN ask.capacity::float8 - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 1], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals)] WHEN ask.capacity::float8 - (t.total
                                   - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 2], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals) + 1] WHEN ask.capacity::float8 - (t.total
                                   - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 3], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals) + 2] ELSE t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                       + 1e-15::float8 * (t.total + ask.capacity::float8), t.totals)] END, 0)::bigint AS frees_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_sliding_window_log AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.newest_at_us, ask.frees_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            EXIT WHEN ask.units = 0::float8 OR floor(ask.capacity / NULLIF(ask.units, 0::float8)) < 1::float8
                      OR floor((ask.capacity - ask.level) / NULLIF(ask.units, 0::float8)) >= 1::float8
                      OR NOT pglimit._reap('sliding_window_log', ask.policy, ask.key, CASE WHEN now IS NOT NULL THEN ask.now_us END);
            ask.now_us := CASE WHEN now IS NOT NULL THEN ask.now_us END;
        END LOOP;
    END IF;
    ask.answer.allowed := ask.blocked_until_us <= ask.updated_at_us
                          AND (ask.units = 0::float8 OR floor((ask.capacity - ask.level) / NULLIF(ask.units, 0::float8)) >= 1::float8);
    ask.answer.granted := CASE WHEN ask.answer.allowed THEN ask.units ELSE 0 END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, ask.capacity, ask.rest);
        END IF;
        IF ask.answer.allowed AND algorithm = 'leaky_bucket_queue' THEN
            ask.ahead_us := GREATEST(0, ask.level) / ask.leak;
            -- Half a microsecond is rounded up, as in Go; round() goes to the even one.
            ask.answer.delay_s := CASE WHEN ask.ahead_us < 9223372036854774784::float8
                THEN pglimit._seconds((floor(ask.ahead_us) + CASE WHEN ask.ahead_us - floor(ask.ahead_us) >= 0.5::float8 THEN 1::float8 ELSE 0::float8 END)::bigint, 0) END;
        END IF;
    ELSIF algorithm IN ('fixed_window') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.ends_at_us);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                                   WHEN ask.updated_at_us >= ask.ends_at_us OR floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                                   ELSE ask.ends_at_us END;
        END IF;
    ELSIF algorithm IN ('sliding_window_counter') THEN
        ask.empty_at_us := CASE WHEN ask.current > 0::float8 THEN ask.ends_at_us + ask.window_us
                                WHEN ask.previous > 0::float8 THEN GREATEST(ask.updated_at_us, ask.ends_at_us)
                                ELSE ask.updated_at_us END;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := pglimit._counter_at(ask.current, ask.previous, ask.ends_at_us, ask.window_us, ask.updated_at_us, ask.capacity, ask.rest);
        END IF;
    ELSIF algorithm IN ('sliding_window_log') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.newest_at_us + ask.period_us);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                                   WHEN floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                                   ELSE GREATEST(ask.updated_at_us, ask.frees_at_us + ask.period_us) END;
        END IF;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.check IS 'Tells what an ask for cost units would be answered, and consumes nothing; at cost 0, how the key stands.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.fill(algorithm text, name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, tick_s float8 DEFAULT 0, aligned bool DEFAULT false, ends_at timestamptz DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    units float8 := coalesce($4, NULL);
    burst float8 := coalesce($7, $5);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    aligned bool := coalesce($9, false);
    from_us bigint := 0;
    turn_us bigint := 0;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    ticket bigint;
    ends_at_us bigint;
    current float8;
    previous float8;
    newest_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF NOT algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') AND ask.burst <> limit_units THEN
        PERFORM pglimit._refuse('burst', burst::text, algorithm || ' has no burst apart from limit_units', 'Leave it out.');
    END IF;
    IF ends_at IS NULL THEN
        IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60; a fixed_window takes ends_at instead.');
        END IF;
        ask.period_us := round(period_s * 1e6::float8);
    ELSIF algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('ends_at', ends_at::text, 'is for fixed_window only', 'Give period_s instead.');
    ELSIF period_s IS NOT NULL THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'excludes ends_at', 'Leave out one of the two.');
    ELSIF aligned THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'excludes ends_at', 'Leave out one of the two.');
    END IF;
    IF tick_s <> 0::float8 THEN
        IF (tick_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(tick_s * 1e6::float8 - round(tick_s * 1e6::float8)) <= tick_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'A bucket that leaks in whole steps has one every tick_s; 0 is continuous.');
        END IF;
        IF algorithm <> 'leaky_bucket' THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'is for leaky_bucket only', 'Leave it out.');
        END IF;
        ask.tick_us := round(tick_s * 1e6::float8);
    END IF;
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF aligned AND algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'is for fixed_window only', 'Leave it out.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    IF ends_at IS NOT NULL THEN
        -- A window that ends then is one that begins now and lasts until then.
        ask.now_us := coalesce(ask.now_us, (extract(epoch FROM clock_timestamp())::float8 * 1e6::float8)::bigint);
        IF (ends_at >= '1970-01-01+00' AND ends_at < '10000-01-01+00' AND (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us BETWEEN 1 AND 3155760000000000) IS NOT TRUE THEN
            PERFORM pglimit._refuse('ends_at', quote_literal(ends_at::text), 'must be after the clock, ' || to_timestamp((ask.now_us / 1000000)::float8)::text || ', by at most a hundred years', 'It is the end of the period that clock_timestamp() is in.');
        END IF;
        ask.period_us := (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us;
    END IF;
    IF algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') THEN
        ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
        ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                            ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ELSE
        ask.hold_us := CASE WHEN algorithm = 'sliding_window_counter' THEN 2 ELSE 1 END * ask.period_us;
    END IF;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF algorithm = 'leaky_bucket' THEN
        -- Up to the burst, without the slack.
        ask.capacity := ask.burst;
        INSERT INTO pglimit_leaky_bucket AS t
               (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 1, a.granted, a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, 0, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     ask.capacity::float8 AS capacity,
                     ask.leak::float8 AS leak,
                     ask.tick_us::bigint AS tick_us,
                     ask.hold_us::bigint AS hold_us,
                     LEAST(ask.units::float8, ask.capacity::float8) AS granted) AS a
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
            granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity
                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))),
            level = GREATEST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak),
                    LEAST(EXCLUDED.capacity, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
                        + EXCLUDED.granted)),
            leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                    THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) ELSE t.leaked_at_us
                    + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'leaky_bucket_queue' THEN
        -- Up to the burst, without the slack.
        ask.capacity := ask.burst;
        INSERT INTO pglimit_leaky_bucket_queue AS t
               (policy, key, cost, granted, level, capacity, leak, ticket, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 1, a.granted, a.granted, a.capacity, a.leak, a.now_us, a.now_us, 0, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     ask.capacity::float8 AS capacity,
                     ask.leak::float8 AS leak,
                     ask.hold_us::bigint AS hold_us,
                     LEAST(ask.units::float8, ask.capacity::float8) AS granted) AS a
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
            granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity
                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))),
            level = GREATEST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak),
                    LEAST(EXCLUDED.capacity, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) + EXCLUDED.granted)),
            ticket = GREATEST(t.ticket + 1, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)),
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.ticket, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.level, ask.ticket, ask.updated_at_us, ask.blocked_until_us;
        ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'token_bucket' THEN
        -- Up to the burst, without the slack.
        ask.capacity := ask.burst;
        INSERT INTO pglimit_token_bucket AS t
               (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 1, a.granted, a.granted, a.capacity, a.leak, a.now_us, 0, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     ask.capacity::float8 AS capacity,
                     ask.leak::float8 AS leak,
                     ask.hold_us::bigint AS hold_us,
                     LEAST(ask.units::float8, ask.capacity::float8) AS granted) AS a
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
            granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity
                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))),
            level = GREATEST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak),
                    LEAST(EXCLUDED.capacity, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) + EXCLUDED.granted)),
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'gcra' THEN
        -- Up to the burst, without the slack.
        ask.capacity := ask.burst;
        INSERT INTO pglimit_gcra AS t
               (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 1, a.granted, a.granted, a.capacity, a.leak, a.now_us, 0, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     ask.capacity::float8 AS capacity,
                     ask.leak::float8 AS leak,
                     ask.hold_us::bigint AS hold_us,
                     LEAST(ask.units::float8, ask.capacity::float8) AS granted) AS a
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
            granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity
                        - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))),
            level = GREATEST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak),
                    LEAST(EXCLUDED.capacity, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) + EXCLUDED.granted)),
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'fixed_window' THEN
        -- Up to the burst, without the slack.
        ask.capacity := ask.burst;
        INSERT INTO pglimit_fixed_window AS t
               (policy, key, cost, granted, level, capacity, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 1, a.granted, a.granted, a.capacity,
               CASE WHEN a.granted = 0::float8 THEN 0
                    WHEN a.period_us = 0 THEN CASE WHEN a.now_us < a.turn_us THEN a.turn_us ELSE a.until_us END
                    WHEN a.aligned THEN (a.now_us / a.period_us + 1) * a.period_us
                    ELSE a.now_us + a.period_us END,
               a.now_us, 0, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     ask.capacity::float8 AS capacity,
                     ask.period_us::bigint AS period_us,
                     ask.aligned::bool AS aligned,
                     ask.from_us::bigint AS from_us,
                     ask.turn_us::bigint AS turn_us,
                     ask.until_us::bigint AS until_us,
                     ask.hold_us::bigint AS hold_us,
                     LEAST(ask.units::float8, ask.capacity::float8) AS granted) AS a
        WHERE (a.period_us > 0 OR a.now_us >= a.from_us AND a.now_us < a.until_us)
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
            granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END)),
            level = GREATEST(CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END,
                    LEAST(EXCLUDED.capacity, CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END + EXCLUDED.granted)),
            ends_at_us = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN EXCLUDED.ends_at_us ELSE t.ends_at_us END,
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.ends_at_us, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'sliding_window_counter' THEN
        -- Up to the burst, without the slack.
        ask.capacity := ask.burst;
        INSERT INTO pglimit_sliding_window_counter AS t
               (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 1, a.granted, a.granted, 0, a.capacity, a.period_us,
               (a.now_us / a.period_us + 1) * a.period_us, a.now_us, 0, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     ask.capacity::float8 AS capacity,
                     ask.period_us::bigint AS period_us,
                     ask.hold_us::bigint AS hold_us,
                     LEAST(ask.units::float8, ask.capacity::float8) AS granted) AS a
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
            granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity
                        - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                            THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                            ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)),
            current = CASE WHEN EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                        THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                        ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                    THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us
                        THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END
                    + GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END))
                    ELSE t.current END,
            previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us
                    AND EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                        THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                        ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                    THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                    ELSE t.previous END,
            period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us
                    AND EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                        THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                        ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                    THEN EXCLUDED.period_us ELSE t.period_us END,
            ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us
                    AND EXCLUDED.capacity > CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                        THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                        ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END
                    THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
        IF ask.updated_at_us >= ask.ends_at_us THEN
            ask.rest := ask.current;
            ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
            ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
            ask.window_us := ask.period_us;
            ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
            ask.rest := NULL;
        END IF;
        ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
    ELSIF algorithm = 'sliding_window_log' THEN
        -- Up to the burst, without the slack.
        ask.capacity := ask.burst;
        INSERT INTO pglimit_sliding_window_log AS t
               (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, keep_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 1, a.granted, ARRAY[a.now_us], ARRAY[0::float8],
               0, a.granted, a.capacity, a.period_us, a.period_us, a.now_us, 0, a.now_us + a.hold_us
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     ask.capacity::float8 AS capacity,
                     ask.period_us::bigint AS period_us,
                     ask.hold_us::bigint AS hold_us,
                     LEAST(ask.units::float8, ask.capacity::float8) AS granted) AS a
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
            granted = GREATEST(0, LEAST(EXCLUDED.granted, EXCLUDED.capacity
                        - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))))),
        entries = CASE WHEN CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                    THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                t.total))) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted,
                        EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))))) > CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                    THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                t.total))) ELSE t.total END THEN pg_catalog.array_append(t.entries[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            - EXCLUDED.period_us, t.entries) + 1 :], GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.entries END,
            totals = CASE WHEN CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted,
                            EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                - EXCLUDED.period_us, t.entries) + 1], t.total)))))
                    > CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))) ELSE t.total END THEN CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN pglimit_rebase(pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries)
                                    + 1 :], t.total), GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))) ELSE pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                    - EXCLUDED.period_us, t.entries) + 1 :], t.total) END ELSE t.totals END,
            base = CASE WHEN CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted,
                            EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                - EXCLUDED.period_us, t.entries) + 1], t.total)))))
                    > CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))) ELSE t.total END THEN CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity) THEN 0
                        ELSE GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                t.total)) END ELSE t.base END,
            total = CASE WHEN CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted,
                            EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                - EXCLUDED.period_us, t.entries) + 1], t.total)))))
                    > CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))) ELSE t.total END THEN CASE WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                        THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                    t.total))) ELSE t.total END + GREATEST(0, LEAST(EXCLUDED.granted,
                            EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                - EXCLUDED.period_us, t.entries) + 1], t.total))))) ELSE t.total END,
            period_us = EXCLUDED.period_us, keep_us = GREATEST(t.keep_us, EXCLUDED.period_us),
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(t.updated_at_us - t.period_us, t.entries) + 1], t.total)))::float8 AS level,
            coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us, t.updated_at_us, t.blocked_until_us
        INTO ask.granted, ask.level, ask.newest_at_us, ask.updated_at_us, ask.blocked_until_us;
        ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := true;
    ask.answer.granted := CASE WHEN ask.granted = ask.units THEN ask.units ELSE GREATEST(0, ask.granted) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
        END IF;
    ELSIF algorithm IN ('fixed_window') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.ends_at_us);
        END IF;
    ELSIF algorithm IN ('sliding_window_counter') THEN
        ask.empty_at_us := CASE WHEN ask.current > 0::float8 THEN ask.ends_at_us + ask.window_us
                                WHEN ask.previous > 0::float8 THEN GREATEST(ask.updated_at_us, ask.ends_at_us)
                                ELSE ask.updated_at_us END;
    ELSIF algorithm IN ('sliding_window_log') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.newest_at_us + ask.period_us);
        END IF;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.fill IS 'Records cost units that were spent whatever the limit says.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.refund(algorithm text, name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, tick_s float8 DEFAULT 0, aligned bool DEFAULT false, ends_at timestamptz DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.result
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    units float8 := coalesce($4, NULL);
    burst float8 := coalesce($7, $5);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    ends_at_us bigint;
    current float8;
    previous float8;
    newest_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.result;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF NOT algorithm IN ('leaky_bucket', 'token_bucket', 'gcra') AND ask.burst <> limit_units THEN
        PERFORM pglimit._refuse('burst', burst::text, algorithm || ' has no burst apart from limit_units', 'Leave it out.');
    END IF;
    IF ends_at IS NULL THEN
        IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60; a fixed_window takes ends_at instead.');
        END IF;
        ask.period_us := round(period_s * 1e6::float8);
    ELSIF algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('ends_at', ends_at::text, 'is for fixed_window only', 'Give period_s instead.');
    ELSIF period_s IS NOT NULL THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'excludes ends_at', 'Leave out one of the two.');
    ELSIF aligned THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'excludes ends_at', 'Leave out one of the two.');
    END IF;
    IF tick_s <> 0::float8 THEN
        IF (tick_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(tick_s * 1e6::float8 - round(tick_s * 1e6::float8)) <= tick_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'A bucket that leaks in whole steps has one every tick_s; 0 is continuous.');
        END IF;
        IF algorithm <> 'leaky_bucket' THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'is for leaky_bucket only', 'Leave it out.');
        END IF;
        ask.tick_us := round(tick_s * 1e6::float8);
    END IF;
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF aligned AND algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'is for fixed_window only', 'Leave it out.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF algorithm = 'leaky_bucket_queue' THEN
        RAISE feature_not_supported USING MESSAGE = 'pglimit: refund is not for leaky_bucket_queue: what waits in a queue is not given back',
            HINT = 'Take leaky_bucket, which decides alike and has no turns.';
    END IF;
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    IF ends_at IS NOT NULL THEN
        -- A window that ends then is one that begins now and lasts until then.
        ask.now_us := coalesce(ask.now_us, (extract(epoch FROM clock_timestamp())::float8 * 1e6::float8)::bigint);
        IF (ends_at >= '1970-01-01+00' AND ends_at < '10000-01-01+00' AND (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us BETWEEN 1 AND 3155760000000000) IS NOT TRUE THEN
            PERFORM pglimit._refuse('ends_at', quote_literal(ends_at::text), 'must be after the clock, ' || to_timestamp((ask.now_us / 1000000)::float8)::text || ', by at most a hundred years', 'It is the end of the period that clock_timestamp() is in.');
        END IF;
        ask.period_us := (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us;
    END IF;
    IF algorithm IN ('leaky_bucket', 'token_bucket', 'gcra') THEN
        ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
        ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                            ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ELSE
        ask.hold_us := CASE WHEN algorithm = 'sliding_window_counter' THEN 2 ELSE 1 END * ask.period_us;
    END IF;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF algorithm = 'leaky_bucket' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), back AS (
        UPDATE pglimit_leaky_bucket AS t SET
            cost = 1,
            granted = LEAST(ask.units::float8, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak)),
            level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak) - ask.units::float8),
            leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us)::float8 * t.leak) = 0::float8
                    THEN GREATEST(t.updated_at_us, c.us) ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, c.us) - t.leaked_at_us) / t.tick_us * t.tick_us END,
        updated_at_us = GREATEST(t.updated_at_us, c.us)
        FROM c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text
        RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
        )
        SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM c LEFT JOIN back AS t ON true
        INTO ask.granted, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'token_bucket' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), back AS (
        UPDATE pglimit_token_bucket AS t SET
            cost = 1,
            granted = LEAST(ask.units::float8, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.updated_at_us))::float8 * t.leak)),
            level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.updated_at_us))::float8 * t.leak) - ask.units::float8),
        updated_at_us = GREATEST(t.updated_at_us, c.us)
        FROM c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text
        RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
        )
        SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.level, 0)::float8 AS level,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM c LEFT JOIN back AS t ON true
        INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'gcra' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), back AS (
        UPDATE pglimit_gcra AS t SET
            cost = 1,
            granted = LEAST(ask.units::float8, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.updated_at_us))::float8 * t.leak)),
            level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, c.us) - t.updated_at_us))::float8 * t.leak) - ask.units::float8),
        updated_at_us = GREATEST(t.updated_at_us, c.us)
        FROM c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text
        RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
        )
        SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.level, 0)::float8 AS level,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM c LEFT JOIN back AS t ON true
        INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
        ask.leaked_at_us := ask.updated_at_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'fixed_window' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), back AS (
        UPDATE pglimit_fixed_window AS t SET
            cost = 1,
            granted = LEAST(ask.units::float8, CASE WHEN c.us >= t.ends_at_us THEN 0 ELSE t.level END),
            level = GREATEST(0, CASE WHEN c.us >= t.ends_at_us THEN 0 ELSE t.level END - ask.units::float8),
        updated_at_us = GREATEST(t.updated_at_us, c.us)
        FROM c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text
        RETURNING t.granted, t.level, t.ends_at_us, t.updated_at_us, t.blocked_until_us
        )
        SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.level, 0)::float8 AS level, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM c LEFT JOIN back AS t ON true
        INTO ask.granted, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    ELSIF algorithm = 'sliding_window_counter' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), back AS (
        UPDATE pglimit_sliding_window_counter AS t SET
            cost = 1,
            granted = LEAST(ask.units::float8, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END
                    + CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.previous WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END),
            current = GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END - ask.units::float8),
            previous = GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.previous WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us + t.period_us
                        THEN t.current ELSE 0 END - GREATEST(0, ask.units::float8 - CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.current ELSE 0 END)),
            ends_at_us = CASE WHEN GREATEST(t.updated_at_us, c.us) < t.ends_at_us THEN t.ends_at_us ELSE (GREATEST(t.updated_at_us, c.us) / t.period_us + 1) * t.period_us END,
        updated_at_us = GREATEST(t.updated_at_us, c.us)
        FROM c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text
        RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
        )
        SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous,
            coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM c LEFT JOIN back AS t ON true
        INTO ask.granted, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
        IF ask.updated_at_us >= ask.ends_at_us THEN
            ask.rest := ask.current;
            ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
            ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
            ask.window_us := ask.period_us;
            ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
            ask.rest := NULL;
        END IF;
        ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
    ELSIF algorithm = 'sliding_window_log' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), back AS (
        UPDATE pglimit_sliding_window_log AS t SET
            cost = 1,
            granted = LEAST(ask.units::float8, (t.total - GREATEST(t.base,
                            coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)))),
            entries = CASE WHEN GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                        t.total - ask.units::float8) > GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1],
                            t.total)) THEN t.entries[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries)
                        + 1 : coalesce(pg_catalog.array_position(t.totals, GREATEST(GREATEST(t.base,
                                        coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                                    t.total - ask.units::float8)) - 1, pg_catalog.width_bucket(GREATEST(GREATEST(t.base,
                                        coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                                    t.total - ask.units::float8), t.totals))] ELSE '{}' END,
            totals = CASE WHEN GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                        t.total - ask.units::float8) > GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1],
                            t.total)) THEN t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries)
                        + 1 : coalesce(pg_catalog.array_position(t.totals, GREATEST(GREATEST(t.base,
                                        coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                                    t.total - ask.units::float8)) - 1, pg_catalog.width_bucket(GREATEST(GREATEST(t.base,
                                        coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                                    t.total - ask.units::float8), t.totals))] ELSE '{}' END,
            base = GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                total = GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - t.keep_us, t.entries) + 1], t.total)),
                    t.total - ask.units::float8),
        updated_at_us = GREATEST(t.updated_at_us, c.us)
        FROM c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text
        RETURNING t.granted, (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(t.updated_at_us - t.keep_us, t.entries) + 1], t.total)))::float8 AS level,
            coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us, t.updated_at_us, t.blocked_until_us
        )
        SELECT coalesce(t.granted, 0)::float8 AS granted, coalesce(t.level, 0)::float8 AS level, coalesce(t.newest_at_us, 0)::bigint AS newest_at_us,
               coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
        FROM c LEFT JOIN back AS t ON true
        INTO ask.granted, ask.level, ask.newest_at_us, ask.updated_at_us, ask.blocked_until_us;
        IF now IS NULL THEN
            ask.now_us := ask.updated_at_us;
        END IF;
    END IF;
    ask.answer.allowed := true;
    ask.answer.granted := CASE WHEN ask.granted = ask.units THEN ask.units ELSE GREATEST(0, ask.granted) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF algorithm IN ('leaky_bucket', 'token_bucket', 'gcra') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
        END IF;
    ELSIF algorithm IN ('fixed_window') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.ends_at_us);
        END IF;
    ELSIF algorithm IN ('sliding_window_counter') THEN
        ask.empty_at_us := CASE WHEN ask.current > 0::float8 THEN ask.ends_at_us + ask.window_us
                                WHEN ask.previous > 0::float8 THEN GREATEST(ask.updated_at_us, ask.ends_at_us)
                                ELSE ask.updated_at_us END;
    ELSIF algorithm IN ('sliding_window_log') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.newest_at_us + ask.period_us);
        END IF;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.refund IS 'Gives cost units back, at most what is there.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.reserve(algorithm text, name text, key text, cost float8 DEFAULT 1, limit_units float8 DEFAULT NULL, period_s float8 DEFAULT NULL, burst float8 DEFAULT NULL, tick_s float8 DEFAULT 0, aligned bool DEFAULT false, ends_at timestamptz DEFAULT NULL, ttl_s float8 DEFAULT NULL, block_for_s float8 DEFAULT 0, now timestamptz DEFAULT NULL) RETURNS pglimit.hold
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    units float8 := coalesce($4, NULL);
    cost float8 := $4;
    count float8 := 1;
    unit float8 := $4;
    limit_units float8 := $5;
    burst float8 := coalesce($7, $5);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    aligned bool := coalesce($9, false);
    from_us bigint := 0;
    turn_us bigint := 0;
    until_us bigint := 0;
    block_for_us bigint;
    hold_us bigint;
    now_us bigint := NULL;
    id text := NULL;
    state text := NULL;
    idempotency_key text;
    ttl_us bigint;
    remember_us bigint := 86400000000;
    granted float8 := 0;
    level float8;
    leaked_at_us bigint;
    ends_at_us bigint;
    current float8;
    previous float8;
    newest_at_us bigint;
    frees_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.hold;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (limit_units BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('limit_units', limit_units::text, 'must be from 1e-9 to 2^53', 'It is how many units pass per period_s, such as 5.');
    END IF;
    IF (burst IS NULL OR burst BETWEEN 1e-9::float8 AND 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('burst', burst::text, 'must be from 1e-9 to 2^53, or NULL for limit_units', 'It is how many units pass at once when nothing was used before.');
    END IF;
    IF NOT algorithm IN ('leaky_bucket', 'token_bucket', 'gcra') AND ask.burst <> limit_units THEN
        PERFORM pglimit._refuse('burst', burst::text, algorithm || ' has no burst apart from limit_units', 'Leave it out.');
    END IF;
    IF ends_at IS NULL THEN
        IF (period_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(period_s * 1e6::float8 - round(period_s * 1e6::float8)) <= period_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('period_s', period_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'It is the time that limit_units is for, such as 60; a fixed_window takes ends_at instead.');
        END IF;
        ask.period_us := round(period_s * 1e6::float8);
    ELSIF algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('ends_at', ends_at::text, 'is for fixed_window only', 'Give period_s instead.');
    ELSIF period_s IS NOT NULL THEN
        PERFORM pglimit._refuse('period_s', period_s::text, 'excludes ends_at', 'Leave out one of the two.');
    ELSIF aligned THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'excludes ends_at', 'Leave out one of the two.');
    END IF;
    IF tick_s <> 0::float8 THEN
        IF (tick_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(tick_s * 1e6::float8 - round(tick_s * 1e6::float8)) <= tick_s * 1e-9::float8) IS NOT TRUE THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'A bucket that leaks in whole steps has one every tick_s; 0 is continuous.');
        END IF;
        IF algorithm <> 'leaky_bucket' THEN
            PERFORM pglimit._refuse('tick_s', tick_s::text, 'is for leaky_bucket only', 'Leave it out.');
        END IF;
        ask.tick_us := round(tick_s * 1e6::float8);
    END IF;
    IF (coalesce(block_for_s, 0::float8) = 0::float8 OR block_for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(block_for_s * 1e6::float8 - round(block_for_s * 1e6::float8)) <= block_for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('block_for_s', block_for_s::text, 'must be seconds, at most a hundred years, in whole microseconds, or 0', 'It is for how long a denial blocks the key; 0 is not at all.');
    END IF;
    ask.block_for_us := round(coalesce(block_for_s, 0::float8) * 1e6::float8);
    IF aligned AND algorithm <> 'fixed_window' THEN
        PERFORM pglimit._refuse('aligned', aligned::text, 'is for fixed_window only', 'Leave it out.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF algorithm = 'leaky_bucket_queue' THEN
        RAISE feature_not_supported USING MESSAGE = 'pglimit: reserve is not for leaky_bucket_queue: what waits in a queue is not given back',
            HINT = 'Take leaky_bucket, which decides alike and has no turns.';
    END IF;
    IF (ttl_s BETWEEN 1::float8 AND 3155760000::float8 AND abs(ttl_s * 1e6::float8 - round(ttl_s * 1e6::float8)) <= ttl_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('ttl_s', ttl_s::text, 'must be seconds, from 1 to a hundred years, in whole microseconds', 'It is for how long the units are set aside at most.');
    END IF;
    ask.ttl_us := round(ttl_s * 1e6::float8);
    ask.id := algorithm || ':' || replace(gen_random_uuid()::text, '-'::text, ''::text);
    ask.state := 'held';
    IF (cost > 0::float8 AND cost <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be positive and at most 2^53', 'pglimit.check at cost 0 reads without consuming.');
    ELSIF cost < LEAST(1::float8, 1e-9::float8 * ask.burst) THEN
        PERFORM pglimit._refuse('cost', cost::text, 'must be at least ' || LEAST(1::float8, 1e-9::float8 * ask.burst)::text || ', a billionth of the burst', 'Count in larger units.');
    END IF;
    ask.capacity := ask.burst + LEAST(1e-6::float8, 1e-9::float8 * ask.burst);
    IF ends_at IS NOT NULL THEN
        -- A window that ends then is one that begins now and lasts until then.
        ask.now_us := coalesce(ask.now_us, (extract(epoch FROM clock_timestamp())::float8 * 1e6::float8)::bigint);
        IF (ends_at >= '1970-01-01+00' AND ends_at < '10000-01-01+00' AND (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us BETWEEN 1 AND 3155760000000000) IS NOT TRUE THEN
            PERFORM pglimit._refuse('ends_at', quote_literal(ends_at::text), 'must be after the clock, ' || to_timestamp((ask.now_us / 1000000)::float8)::text || ', by at most a hundred years', 'It is the end of the period that clock_timestamp() is in.');
        END IF;
        ask.period_us := (extract(epoch FROM date_trunc('second'::text, ends_at))::bigint * 1000000 + extract(microseconds FROM ends_at)::bigint % 1000000::bigint) - ask.now_us;
    END IF;
    IF algorithm IN ('leaky_bucket', 'token_bucket', 'gcra') THEN
        ask.leak := limit_units * ask.tick_us::float8 / ask.period_us::float8;
        ask.hold_us := CASE WHEN ceil(ask.capacity / ask.leak) + 1::float8 >= (3155760000000000 / ask.tick_us)::float8 THEN 3155760000000000
                            ELSE (ceil(ask.capacity / ask.leak) + 1::float8)::bigint * ask.tick_us END;
    ELSE
        ask.hold_us := CASE WHEN algorithm = 'sliding_window_counter' THEN 2 ELSE 1 END * ask.period_us;
    END IF;
    ask.hold_us := LEAST(GREATEST(ask.hold_us, ask.block_for_us), 3155760000000000);
    IF algorithm = 'leaky_bucket' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.leaked_at_us, c.us)::bigint AS leaked_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_leaky_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
        ELSE
            LOOP
                WITH taken AS (
                INSERT INTO pglimit_leaky_bucket AS t
                       (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.tick_us, a.now_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.leak::float8 AS leak,
                             ask.tick_us::bigint AS tick_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = ask.idempotency_key::text
                                    AND h.algorithm = 'leaky_bucket' AND h.forget_at_us > a.now_us)
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak, tick_us = EXCLUDED.tick_us,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))
                                        / EXCLUDED.cost))) END,
                    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                    - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))
                                                / EXCLUDED.cost))) END,
                    leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak) = 0::float8
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) ELSE t.leaked_at_us
                            + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us * EXCLUDED.tick_us END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)
                            < EXCLUDED.cost THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
                ), held AS (
                INSERT INTO pglimit_hold
                       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
                        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
                SELECT ask.id::text, ask.state::text, 'leaky_bucket', ask.policy::text, ask.key::text, ask.idempotency_key::text,
                       ask.cost::float8, ask.cost::float8, ask.limit_units::float8, ask.burst::float8, ask.capacity::float8,
                       t.updated_at_us, t.updated_at_us + ask.ttl_us::bigint, t.updated_at_us + ask.ttl_us::bigint + ask.remember_us::bigint,
                       t.level, ask.leak::float8, ask.tick_us::bigint, 0, 0, t.leaked_at_us
                FROM taken AS t
                WHERE t.granted > 0::float8
                )
                SELECT t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us FROM taken AS t
                INTO ask.granted, ask.level, ask.leaked_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('leaky_bucket', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_leaky_bucket AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'token_bucket' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_token_bucket AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
        ELSE
            LOOP
                WITH taken AS (
                INSERT INTO pglimit_token_bucket AS t
                       (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.leak::float8 AS leak,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = ask.idempotency_key::text
                                    AND h.algorithm = 'token_bucket' AND h.forget_at_us > a.now_us)
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
                    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                    - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                                / EXCLUDED.cost))) END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
                ), held AS (
                INSERT INTO pglimit_hold
                       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
                        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
                SELECT ask.id::text, ask.state::text, 'token_bucket', ask.policy::text, ask.key::text, ask.idempotency_key::text,
                       ask.cost::float8, ask.cost::float8, ask.limit_units::float8, ask.burst::float8, ask.capacity::float8,
                       t.updated_at_us, t.updated_at_us + ask.ttl_us::bigint, t.updated_at_us + ask.ttl_us::bigint + ask.remember_us::bigint,
                       t.level, ask.leak::float8, 1, 0, 0, t.updated_at_us
                FROM taken AS t
                WHERE t.granted > 0::float8
                )
                SELECT t.granted, t.level, t.updated_at_us, t.blocked_until_us FROM taken AS t
                INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('token_bucket', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_token_bucket AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            ask.leaked_at_us := ask.updated_at_us;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'gcra' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_gcra AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.updated_at_us, ask.blocked_until_us;
            ask.leaked_at_us := ask.updated_at_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
            ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
            ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
        ELSE
            LOOP
                WITH taken AS (
                INSERT INTO pglimit_gcra AS t
                       (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity, a.leak, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.leak::float8 AS leak,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = ask.idempotency_key::text
                                    AND h.algorithm = 'gcra' AND h.forget_at_us > a.now_us)
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity, leak = EXCLUDED.leak,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)) / EXCLUDED.cost))) END,
                    level = GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak)
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                                    - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak))
                                                / EXCLUDED.cost))) END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8 * EXCLUDED.leak) < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
                ), held AS (
                INSERT INTO pglimit_hold
                       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
                        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
                SELECT ask.id::text, ask.state::text, 'gcra', ask.policy::text, ask.key::text, ask.idempotency_key::text,
                       ask.cost::float8, ask.cost::float8, ask.limit_units::float8, ask.burst::float8, ask.capacity::float8,
                       t.updated_at_us, t.updated_at_us + ask.ttl_us::bigint, t.updated_at_us + ask.ttl_us::bigint + ask.remember_us::bigint,
                       t.level, ask.leak::float8, 1, 0, 0, t.updated_at_us
                FROM taken AS t
                WHERE t.granted > 0::float8
                )
                SELECT t.granted, t.level, t.updated_at_us, t.blocked_until_us FROM taken AS t
                INTO ask.granted, ask.level, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('gcra', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_gcra AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            ask.leaked_at_us := ask.updated_at_us;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'fixed_window' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.level, 0)::float8 AS level, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_fixed_window AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            IF ask.now_us >= ask.ends_at_us THEN
                ask.level := 0;
            END IF;
        ELSE
            LOOP
                WITH taken AS (
                INSERT INTO pglimit_fixed_window AS t
                       (policy, key, cost, granted, level, capacity, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, a.capacity,
                       CASE WHEN a.granted = 0::float8 THEN 0
                            WHEN a.period_us = 0 THEN CASE WHEN a.now_us < a.turn_us THEN a.turn_us ELSE a.until_us END
                            WHEN a.aligned THEN (a.now_us / a.period_us + 1) * a.period_us
                            ELSE a.now_us + a.period_us END,
                       a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.period_us::bigint AS period_us,
                             ask.aligned::bool AS aligned,
                             ask.from_us::bigint AS from_us,
                             ask.turn_us::bigint AS turn_us,
                             ask.until_us::bigint AS until_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                WHERE (a.period_us > 0 OR a.now_us >= a.from_us AND a.now_us < a.until_us)
                  AND NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = ask.idempotency_key::text
                                    AND h.algorithm = 'fixed_window' AND h.forget_at_us > a.now_us)
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END) / EXCLUDED.cost))) END,
                    level = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END
                            + EXCLUDED.cost * CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN 0
                                    ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END)
                                                / EXCLUDED.cost))) END,
                    ends_at_us = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                                      THEN EXCLUDED.ends_at_us ELSE t.ends_at_us END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.level, t.ends_at_us, t.updated_at_us, t.blocked_until_us
                ), held AS (
                INSERT INTO pglimit_hold
                       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
                        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
                SELECT ask.id::text, ask.state::text, 'fixed_window', ask.policy::text, ask.key::text, ask.idempotency_key::text,
                       ask.cost::float8, ask.cost::float8, ask.limit_units::float8, ask.burst::float8, ask.capacity::float8,
                       t.updated_at_us, t.updated_at_us + ask.ttl_us::bigint, t.updated_at_us + ask.ttl_us::bigint + ask.remember_us::bigint,
                       t.level, 0, 1, ask.period_us::bigint, t.ends_at_us, t.updated_at_us
                FROM taken AS t
                WHERE t.granted > 0::float8
                )
                SELECT t.granted, t.level, t.ends_at_us, t.updated_at_us, t.blocked_until_us FROM taken AS t
                INTO ask.granted, ask.level, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('fixed_window', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_fixed_window AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    ELSIF algorithm = 'sliding_window_counter' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us, coalesce(t.current, 0)::float8 AS current, coalesce(t.previous, 0)::float8 AS previous,
                   coalesce(t.period_us, 1)::bigint AS period_us, coalesce(t.ends_at_us, 0)::bigint AS ends_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_sliding_window_counter AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
            IF ask.updated_at_us >= ask.ends_at_us THEN
                ask.rest := ask.current;
                ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
                ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
                ask.window_us := ask.period_us;
                ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
                ask.rest := NULL;
            END IF;
            ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
        ELSE
            LOOP
                WITH taken AS (
                INSERT INTO pglimit_sliding_window_counter AS t
                       (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted, a.cost * a.granted, 0, a.capacity, a.period_us,
                       (a.now_us / a.period_us + 1) * a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.period_us::bigint AS period_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = ask.idempotency_key::text
                                    AND h.algorithm = 'sliding_window_counter' AND h.forget_at_us > a.now_us)
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)
                                        / EXCLUDED.cost))) END,
                    current = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current WHEN EXCLUDED.period_us <> t.period_us
                                THEN t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 ELSE 0 END
                            + EXCLUDED.cost * GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END)
                                        / EXCLUDED.cost))) ELSE t.current END,
                    previous = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us AND EXCLUDED.period_us = t.period_us THEN t.current ELSE 0 END
                            ELSE t.previous END,
                    period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN EXCLUDED.period_us ELSE t.period_us END,
                    ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) >= t.ends_at_us AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.granted > 0::float8 AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END >= EXCLUDED.cost
                            THEN (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / EXCLUDED.period_us + 1) * EXCLUDED.period_us ELSE t.ends_at_us END,
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us
                                THEN t.previous * LEAST(t.period_us, t.ends_at_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 + t.current
                                ELSE t.current * GREATEST(0, t.ends_at_us + t.period_us - GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))::float8 / t.period_us::float8 END < EXCLUDED.cost
                            THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us ELSE t.blocked_until_us END
                RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
                ), held AS (
                INSERT INTO pglimit_hold
                       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
                        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
                SELECT ask.id::text, ask.state::text, 'sliding_window_counter', ask.policy::text, ask.key::text, ask.idempotency_key::text,
                       ask.cost::float8, ask.cost::float8, ask.limit_units::float8, ask.burst::float8, ask.capacity::float8,
                       t.updated_at_us, t.updated_at_us + ask.ttl_us::bigint, t.updated_at_us + ask.ttl_us::bigint + ask.remember_us::bigint,
                       t.previous * LEAST(t.period_us, t.ends_at_us - t.updated_at_us)::float8 / t.period_us::float8 + t.current, 0, 1, ask.period_us::bigint, t.ends_at_us, t.updated_at_us
                FROM taken AS t
                WHERE t.granted > 0::float8
                )
                SELECT t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us FROM taken AS t
                INTO ask.granted, ask.current, ask.previous, ask.window_us, ask.ends_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('sliding_window_counter', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_sliding_window_counter AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
            IF ask.updated_at_us >= ask.ends_at_us THEN
                ask.rest := ask.current;
                ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
                ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
                ask.window_us := ask.period_us;
                ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
                ask.rest := NULL;
            END IF;
            ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
        END IF;
    ELSIF algorithm = 'sliding_window_log' THEN
        IF floor(ask.capacity / ask.cost) < 1::float8 THEN
            -- What can never fit is not tried: reading tells how the key stands.
            SELECT c.us AS now_us,
                   coalesce((t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, c.us) - ask.period_us::bigint, t.entries) + 1], t.total))),
                           0)::float8 AS level,
                   coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us,
                   coalesce(CASE WHEN ask.capacity::float8 - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 1], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals)] WHEN ask.capacity::float8 - (t.total
                                   - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 2], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals) + 1] WHEN ask.capacity::float8 - (t.total
                                   - coalesce(t.totals[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                               - 1e-15::float8 * (t.total + ask.capacity::float8), t.totals) + 3], t.total)) >= ask.unit::float8
                               THEN t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8) - 1e-15::float8 * (t.total + ask.capacity::float8),
                                       t.totals) + 2] ELSE t.entries[pg_catalog.width_bucket(t.total - (ask.capacity::float8 - ask.unit::float8)
                                       + 1e-15::float8 * (t.total + ask.capacity::float8), t.totals)] END, 0)::bigint AS frees_at_us,
                   coalesce(t.updated_at_us, c.us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, 0)::bigint AS blocked_until_us
            FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint)::bigint AS us) AS c
            LEFT JOIN pglimit_sliding_window_log AS t ON t.policy = ask.policy::text AND t.key = ask.key::text
            INTO ask.now_us, ask.level, ask.newest_at_us, ask.frees_at_us, ask.updated_at_us, ask.blocked_until_us;
            ask.updated_at_us := GREATEST(ask.now_us, ask.updated_at_us);
        ELSE
            LOOP
                WITH taken AS (
                INSERT INTO pglimit_sliding_window_log AS t
                       (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, keep_us, updated_at_us, blocked_until_us, expires_at_us)
                SELECT a.policy, a.key, a.cost, a.granted,
                       CASE WHEN a.granted > 0::float8 THEN ARRAY[a.now_us] ELSE '{}' END,
                       CASE WHEN a.granted > 0::float8 THEN ARRAY[0::float8] ELSE '{}' END,
                       0, a.cost * a.granted, a.capacity, a.period_us, a.period_us, a.now_us, -a.block_for_us, a.now_us + a.hold_us
                FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                             CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                  THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                             CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits,
                             ask.policy::text AS policy, ask.key::text AS key,
                             ask.cost::float8 AS cost, ask.capacity::float8 AS capacity,
                             ask.period_us::bigint AS period_us,
                             ask.hold_us::bigint AS hold_us, ask.block_for_us::bigint AS block_for_us,
                             LEAST(ask.count::float8, floor(ask.capacity::float8 / ask.cost::float8)) AS granted) AS a
                WHERE NOT EXISTS (SELECT 1 FROM pglimit_hold AS h
                                  WHERE h.policy = a.policy AND h.key = a.key AND h.idempotency_key = ask.idempotency_key::text
                                    AND h.algorithm = 'sliding_window_log' AND h.forget_at_us > a.now_us)
                ON CONFLICT (policy, key) DO UPDATE SET
                    cost = EXCLUDED.cost, capacity = EXCLUDED.capacity,
                    granted = CASE WHEN t.blocked_until_us > GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) THEN -1
                            ELSE GREATEST(0, LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity
                                            - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                                t.entries) + 1], t.total)))) / EXCLUDED.cost))) END,
                entries = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                        AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                            t.entries) + 1], t.total))) >= EXCLUDED.cost THEN pg_catalog.array_append(t.entries[pg_catalog.width_bucket(GREATEST(t.updated_at_us,
                                        EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1 :], GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)) ELSE t.entries END,
                    totals = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                                WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                                THEN pglimit_rebase(pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries)
                                            + 1 :], t.total), GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                    t.entries) + 1], t.total))) ELSE pg_catalog.array_append(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                            - EXCLUDED.period_us, t.entries) + 1 :], t.total) END ELSE t.totals END,
                    base = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                                WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity) THEN 0
                                ELSE GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                        t.total)) END ELSE t.base END,
                    total = CASE WHEN t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) AND EXCLUDED.granted > 0::float8
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) >= EXCLUDED.cost THEN CASE
                                WHEN t.total > LEAST(16::float8 * EXCLUDED.capacity, 9007199254740992::float8 - EXCLUDED.capacity)
                                THEN (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries) + 1],
                                            t.total))) ELSE t.total END + EXCLUDED.cost * GREATEST(0,
                                LEAST(EXCLUDED.granted, floor((EXCLUDED.capacity - (t.total
                                                - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us, t.entries)
                                                            + 1], t.total)))) / EXCLUDED.cost))) ELSE t.total END,
                    period_us = EXCLUDED.period_us, keep_us = GREATEST(t.keep_us, EXCLUDED.period_us),
                    updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
                    blocked_until_us = CASE WHEN EXCLUDED.blocked_until_us < 0 AND t.blocked_until_us <= GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                            AND EXCLUDED.capacity - (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.period_us,
                                                t.entries) + 1], t.total))) < EXCLUDED.cost THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - EXCLUDED.blocked_until_us
                            ELSE t.blocked_until_us END
                RETURNING t.granted, (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(t.updated_at_us - t.period_us, t.entries) + 1], t.total)))::float8 AS level,
                    coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us,
                       coalesce(CASE WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                                   - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                                   - 1e-15::float8 * (t.total + t.capacity), t.totals) + 1], t.total))
                                   >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                                   THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                               - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                           t.totals)] WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                                   - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                                   - 1e-15::float8 * (t.total + t.capacity), t.totals) + 2], t.total))
                                   >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                                   THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                               - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                           t.totals) + 1] WHEN t.capacity - (t.total - coalesce(t.totals[pg_catalog.width_bucket(t.total
                                                   - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                                   - 1e-15::float8 * (t.total + t.capacity), t.totals) + 3], t.total))
                                   >= LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)
                                   THEN t.entries[pg_catalog.width_bucket(t.total - (t.capacity
                                               - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted)) - 1e-15::float8 * (t.total + t.capacity),
                                           t.totals) + 2] ELSE t.entries[pg_catalog.width_bucket(t.total
                                           - (t.capacity - LEAST(ask.unit::float8, ask.cost::float8 * ask.count::float8 - t.cost * t.granted))
                                           + 1e-15::float8 * (t.total + t.capacity), t.totals)] END, 0)::bigint AS frees_at_us,
                       t.updated_at_us, t.blocked_until_us
                ), held AS (
                INSERT INTO pglimit_hold
                       (id, state, algorithm, policy, key, idempotency_key, reserved, units, limit_units, burst, capacity,
                        created_at_us, expires_at_us, forget_at_us, level, leak, tick_us, period_us, ends_at_us, counted_at_us)
                SELECT ask.id::text, ask.state::text, 'sliding_window_log', ask.policy::text, ask.key::text, ask.idempotency_key::text,
                       ask.cost::float8, ask.cost::float8, ask.limit_units::float8, ask.burst::float8, ask.capacity::float8,
                       t.updated_at_us, t.updated_at_us + ask.ttl_us::bigint, t.updated_at_us + ask.ttl_us::bigint + ask.remember_us::bigint,
                       t.level, 0, 1, ask.period_us::bigint, 0, t.updated_at_us
                FROM taken AS t
                WHERE t.granted > 0::float8
                )
                SELECT t.granted, t.level, t.newest_at_us, t.frees_at_us, t.updated_at_us, t.blocked_until_us FROM taken AS t
                INTO ask.granted, ask.level, ask.newest_at_us, ask.frees_at_us, ask.updated_at_us, ask.blocked_until_us;
                EXIT WHEN ask.granted <> 0::float8 OR NOT pglimit._reap('sliding_window_log', ask.policy, ask.key, ask.now_us);
                IF ask.blocked_until_us > ask.updated_at_us THEN
                    -- The block that this denial started, which expired holds caused.
                    ask.until_us := ask.blocked_until_us;
                    UPDATE pglimit_sliding_window_log AS t SET blocked_until_us = 0
                    FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                                      THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
                    WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
                      AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
                    ask.until_us := 0;
                END IF;
            END LOOP;
            IF now IS NULL THEN
                ask.now_us := ask.updated_at_us;
            END IF;
        END IF;
    END IF;
    ask.answer.allowed := ask.granted > 0::float8;
    ask.answer.granted := CASE WHEN ask.granted = ask.count THEN ask.units ELSE GREATEST(0, ask.granted * ask.cost) END;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    IF NOT ask.answer.allowed THEN
        -- A block that begins with this very denial is its consequence.
        ask.answer.reason := CASE WHEN ask.granted = (-1)::float8 THEN 'blocked' ELSE 'limit' END;
    END IF;
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.rest := LEAST(ask.unit, ask.units - ask.answer.granted);
    END IF;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF algorithm IN ('leaky_bucket', 'token_bucket', 'gcra') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, ask.capacity, ask.rest);
        END IF;
    ELSIF algorithm IN ('fixed_window') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.ends_at_us);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                                   WHEN ask.updated_at_us >= ask.ends_at_us OR floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                                   ELSE ask.ends_at_us END;
        END IF;
    ELSIF algorithm IN ('sliding_window_counter') THEN
        ask.empty_at_us := CASE WHEN ask.current > 0::float8 THEN ask.ends_at_us + ask.window_us
                                WHEN ask.previous > 0::float8 THEN GREATEST(ask.updated_at_us, ask.ends_at_us)
                                ELSE ask.updated_at_us END;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := pglimit._counter_at(ask.current, ask.previous, ask.ends_at_us, ask.window_us, ask.updated_at_us, ask.capacity, ask.rest);
        END IF;
    ELSIF algorithm IN ('sliding_window_log') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.newest_at_us + ask.period_us);
        END IF;
        IF ask.rest > 0::float8 THEN
            ask.fits_at_us := CASE WHEN floor(ask.capacity / ask.rest) < 1::float8 THEN 9223372036854775807
                                   WHEN floor((ask.capacity - ask.level) / ask.rest) >= 1::float8 THEN ask.updated_at_us
                                   ELSE GREATEST(ask.updated_at_us, ask.frees_at_us + ask.period_us) END;
        END IF;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    IF ask.answer.granted < ask.units OR NOT ask.answer.allowed THEN
        ask.answer.retry_after_s := pglimit._seconds(GREATEST(ask.fits_at_us, ask.blocked_until_us), ask.now_us);
    END IF;
    IF ask.answer.allowed THEN
        ask.answer.hold := ask.id;
        ask.answer.expires_at := to_timestamp(((ask.updated_at_us + ask.ttl_us) / 1000000)::float8) + ((ask.updated_at_us + ask.ttl_us) % 1000000::bigint)::float8 * interval '1 microsecond';
    END IF;
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.reserve IS 'Sets cost units aside for ttl_s, all or nothing, until settle or cancel ends the hold.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.settle(hold text, units float8, now timestamptz DEFAULT NULL) RETURNS pglimit.settlement
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := NULL;
    key text := NULL;
    units float8 := coalesce(NULL, $2);
    unit float8 := NULL;
    burst float8 := coalesce(NULL, NULL);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    now_us bigint := NULL;
    algorithm text := NULL;
    level float8;
    leaked_at_us bigint;
    ends_at_us bigint;
    current float8;
    previous float8;
    newest_at_us bigint;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    settled pglimit._settled;
    again bool := false;
    steps bigint;
    rest float8;
    fits_at_us bigint;
    empty_at_us bigint;
    answer pglimit.settlement;
BEGIN
    IF (ask.units >= 0::float8 AND ask.units <= 9007199254740992::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('units', ask.units::text, 'must be from 0 to 2^53', 'It is what was really spent; 0 gives all back.');
    END IF;
    ask.algorithm := split_part(hold, ':'::text, 1);
    IF (ask.algorithm IN ('leaky_bucket', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log') AND octet_length(hold) <= 128 AND octet_length(hold) - octet_length(ask.algorithm) > 16) IS NOT TRUE THEN
        PERFORM pglimit._refuse('hold', quote_nullable(left(hold, 40)), 'is not the hold of a reservation', 'It is the column hold of what pglimit.reserve returned.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    ask.settled := pglimit._settle(hold, 'settled', ask.units, ask.now_us);
    IF ask.settled IS NULL THEN
        RAISE no_data_found USING MESSAGE = 'pglimit: there is no hold ' || quote_literal(left(hold, 80)),
            HINT = 'It never was, its transaction was rolled back, or it ended so long ago that it is forgotten.';
    END IF;
    ask.again := (ask.settled).state = 'settled' AND (ask.settled).units_before = ask.units;
    IF NOT ((ask.settled).changes OR ask.again) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'pglimit: the hold was ' || (ask.settled).state || ', with ' || (ask.settled).units_before::text || ' of its ' || (ask.settled).reserved::text || ' units',
            HINT = 'A hold ends once. Settling it again with the same units is no error.';
    END IF;
    ask.answer.replayed := ask.again;
    ask.answer.expired := (ask.settled).state = 'expired' OR (ask.settled).state = 'held' AND (ask.settled).now_us >= (ask.settled).expires_at_us;
    ask.policy := (ask.settled).policy;
    ask.key := (ask.settled).key;
    ask.burst := (ask.settled).burst;
    ask.capacity := (ask.settled).capacity;
    ask.leak := (ask.settled).leak;
    ask.tick_us := (ask.settled).tick_us;
    ask.period_us := (ask.settled).period_us;
    ask.unit := 0;
    ask.now_us := (ask.settled).now_us;
    ask.updated_at_us := GREATEST(ask.now_us, (ask.settled).updated_at_us);
    ask.blocked_until_us := (ask.settled).blocked_until_us;
    ask.level := (ask.settled).level;
    ask.leaked_at_us := (ask.settled).at_us;
    ask.ends_at_us := (ask.settled).at_us;
    ask.newest_at_us := (ask.settled).at_us;
    ask.current := (ask.settled).level;
    ask.previous := (ask.settled).previous;
    ask.window_us := (ask.settled).window_us;
    IF ask.algorithm = 'leaky_bucket' THEN
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSIF ask.algorithm = 'token_bucket' THEN
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSIF ask.algorithm = 'gcra' THEN
        ask.steps := (ask.updated_at_us - ask.leaked_at_us) / ask.tick_us;
        ask.level := GREATEST(0, ask.level - ask.steps::float8 * ask.leak);
        ask.leaked_at_us := CASE WHEN ask.level = 0::float8 THEN ask.updated_at_us ELSE ask.leaked_at_us + ask.steps * ask.tick_us END;
    ELSIF ask.algorithm = 'fixed_window' THEN
        IF ask.now_us >= ask.ends_at_us THEN
            ask.level := 0;
        END IF;
    ELSIF ask.algorithm = 'sliding_window_counter' THEN
        IF ask.updated_at_us >= ask.ends_at_us THEN
            ask.rest := ask.current;
            ask.current := CASE WHEN ask.window_us <> ask.period_us THEN ask.current * GREATEST(0, ask.ends_at_us + ask.window_us - ask.updated_at_us)::float8 / ask.window_us::float8 ELSE 0 END;
            ask.previous := CASE WHEN ask.window_us = ask.period_us AND ask.updated_at_us < ask.ends_at_us + ask.window_us THEN ask.rest ELSE 0 END;
            ask.window_us := ask.period_us;
            ask.ends_at_us := (ask.updated_at_us / ask.window_us + 1) * ask.window_us;
            ask.rest := NULL;
        END IF;
        ask.level := ask.previous * LEAST(ask.window_us, ask.ends_at_us - ask.updated_at_us)::float8 / ask.window_us::float8 + ask.current;
    ELSIF ask.algorithm = 'sliding_window_log' THEN
    END IF;
    ask.answer.allowed := true;
    ask.answer.granted := ask.units;
    -- A level without the slack; what is above the capacity shows.
    ask.answer.level := CASE WHEN ask.level > 1.00000000000001::float8 * ask.capacity THEN ask.level ELSE LEAST(ask.level, ask.burst) END;
    ask.answer.remaining := CASE WHEN ask.blocked_until_us > ask.updated_at_us THEN 0 ELSE GREATEST(0, ask.burst - ask.level) END;
    ask.answer.retry_after_s := 0;
    ask.answer.delay_s := 0;
    ask.empty_at_us := ask.updated_at_us;
    ask.fits_at_us := ask.updated_at_us;
    IF algorithm IN ('leaky_bucket', 'token_bucket', 'gcra') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := pglimit._bucket_at(ask.level, ask.leak, ask.tick_us, ask.leaked_at_us, ask.updated_at_us, NULL, NULL);
        END IF;
    ELSIF algorithm IN ('fixed_window') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.ends_at_us);
        END IF;
    ELSIF algorithm IN ('sliding_window_counter') THEN
        ask.empty_at_us := CASE WHEN ask.current > 0::float8 THEN ask.ends_at_us + ask.window_us
                                WHEN ask.previous > 0::float8 THEN GREATEST(ask.updated_at_us, ask.ends_at_us)
                                ELSE ask.updated_at_us END;
    ELSIF algorithm IN ('sliding_window_log') THEN
        IF ask.level > 0::float8 THEN
            ask.empty_at_us := GREATEST(ask.updated_at_us, ask.newest_at_us + ask.period_us);
        END IF;
    END IF;
    ask.answer.reset_after_s := pglimit._seconds(GREATEST(ask.empty_at_us, ask.blocked_until_us), ask.now_us);
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.settle IS 'Ends a hold with what was really spent; what is left of it comes back.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.cancel(hold text, now timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    now_us bigint := NULL;
    algorithm text := NULL;
    settled pglimit._settled;
BEGIN
    ask.algorithm := split_part(hold, ':'::text, 1);
    IF (ask.algorithm IN ('leaky_bucket', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log') AND octet_length(hold) <= 128 AND octet_length(hold) - octet_length(ask.algorithm) > 16) IS NOT TRUE THEN
        PERFORM pglimit._refuse('hold', quote_nullable(left(hold, 40)), 'is not the hold of a reservation', 'It is the column hold of what pglimit.reserve returned.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    ask.settled := pglimit._settle(hold, 'cancelled', 0, ask.now_us);
    IF ask.settled IS NULL THEN
        RAISE no_data_found USING MESSAGE = 'pglimit: there is no hold ' || quote_literal(left(hold, 80)),
            HINT = 'It never was, its transaction was rolled back, or it ended so long ago that it is forgotten.';
    END IF;
    IF (ask.settled).state = 'settled' THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'pglimit: the hold was settled, with ' || (ask.settled).units_before::text || ' of its ' || (ask.settled).reserved::text || ' units',
            HINT = 'What was spent can be given back with pglimit.refund.';
    END IF;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.cancel IS 'Ends a hold of which nothing was spent.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.block(algorithm text, name text, key text, for_s float8, now timestamptz DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    for_us bigint;
    now_us bigint := NULL;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF now IS NOT NULL THEN
        IF now < '1970-01-01+00' OR now >= '10000-01-01+00' THEN
            PERFORM pglimit._refuse('now', quote_literal(now::text), 'must be from 1970 to 9999', 'It is for tests; leave it out to go by the database''s clock.');
        END IF;
        ask.now_us := (extract(epoch FROM date_trunc('second'::text, now))::bigint * 1000000 + extract(microseconds FROM now)::bigint % 1000000::bigint);
    END IF;
    IF (for_s BETWEEN 1e-6::float8 AND 3155760000::float8 AND abs(for_s * 1e6::float8 - round(for_s * 1e6::float8)) <= for_s * 1e-9::float8) IS NOT TRUE THEN
        PERFORM pglimit._refuse('for_s', for_s::text, 'must be seconds, more than 0 and at most a hundred years, in whole microseconds', 'pglimit.unblock lifts a block.');
    END IF;
    ask.for_us := round(for_s * 1e6::float8);
    IF algorithm = 'leaky_bucket' THEN
        INSERT INTO pglimit_leaky_bucket AS t
               (policy, key, level, capacity, leak, tick_us, leaked_at_us, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 0, 0, 1, 1, c.us, 1, 0, c.us,
               c.us + ask.for_us::bigint, c.us + ask.for_us::bigint
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        ON CONFLICT (policy, key) DO UPDATE SET
            blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + ask.for_us::bigint);
    ELSIF algorithm = 'leaky_bucket_queue' THEN
        INSERT INTO pglimit_leaky_bucket_queue AS t
               (policy, key, level, capacity, leak, ticket, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 0, 0, 1, c.us, 1, 0, c.us,
               c.us + ask.for_us::bigint, c.us + ask.for_us::bigint
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        ON CONFLICT (policy, key) DO UPDATE SET
            blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + ask.for_us::bigint);
    ELSIF algorithm = 'token_bucket' THEN
        INSERT INTO pglimit_token_bucket AS t
               (policy, key, level, capacity, leak, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 0, 0, 1, 1, 0, c.us,
               c.us + ask.for_us::bigint, c.us + ask.for_us::bigint
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        ON CONFLICT (policy, key) DO UPDATE SET
            blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + ask.for_us::bigint);
    ELSIF algorithm = 'gcra' THEN
        INSERT INTO pglimit_gcra AS t
               (policy, key, level, capacity, leak, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 0, 0, 1, 1, 0, c.us,
               c.us + ask.for_us::bigint, c.us + ask.for_us::bigint
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        ON CONFLICT (policy, key) DO UPDATE SET
            blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + ask.for_us::bigint);
    ELSIF algorithm = 'fixed_window' THEN
        INSERT INTO pglimit_fixed_window AS t
               (policy, key, level, capacity, ends_at_us, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 0, 0, 0, 1, 0, c.us,
               c.us + ask.for_us::bigint, c.us + ask.for_us::bigint
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        ON CONFLICT (policy, key) DO UPDATE SET
            blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + ask.for_us::bigint);
    ELSIF algorithm = 'sliding_window_counter' THEN
        INSERT INTO pglimit_sliding_window_counter AS t
               (policy, key, current, previous, capacity, period_us, ends_at_us, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, 0, 0, 0, 1, 0, 1, 0, c.us,
               c.us + ask.for_us::bigint, c.us + ask.for_us::bigint
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        ON CONFLICT (policy, key) DO UPDATE SET
            blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + ask.for_us::bigint);
    ELSIF algorithm = 'sliding_window_log' THEN
        INSERT INTO pglimit_sliding_window_log AS t
               (policy, key, entries, totals, base, total, capacity, period_us, keep_us, cost, granted, updated_at_us, blocked_until_us, expires_at_us)
        SELECT ask.policy::text, ask.key::text, '{}', '{}', 0, 0, 0, 1, 1, 1, 0, c.us,
               c.us + ask.for_us::bigint, c.us + ask.for_us::bigint
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us,
                CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        ON CONFLICT (policy, key) DO UPDATE SET
            blocked_until_us = GREATEST(t.blocked_until_us, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + ask.for_us::bigint);
    END IF;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.block IS 'Denies the key for for_s seconds whatever it has used.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.unblock(algorithm text, name text, key text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    until_us bigint := 0;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF algorithm = 'leaky_bucket' THEN
        UPDATE pglimit_leaky_bucket AS t SET blocked_until_us = 0
        FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
          AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
    ELSIF algorithm = 'leaky_bucket_queue' THEN
        UPDATE pglimit_leaky_bucket_queue AS t SET blocked_until_us = 0
        FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
          AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
    ELSIF algorithm = 'token_bucket' THEN
        UPDATE pglimit_token_bucket AS t SET blocked_until_us = 0
        FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
          AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
    ELSIF algorithm = 'gcra' THEN
        UPDATE pglimit_gcra AS t SET blocked_until_us = 0
        FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
          AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
    ELSIF algorithm = 'fixed_window' THEN
        UPDATE pglimit_fixed_window AS t SET blocked_until_us = 0
        FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
          AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
    ELSIF algorithm = 'sliding_window_counter' THEN
        UPDATE pglimit_sliding_window_counter AS t SET blocked_until_us = 0
        FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
          AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
    ELSIF algorithm = 'sliding_window_log' THEN
        UPDATE pglimit_sliding_window_log AS t SET blocked_until_us = 0
        FROM (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits) AS c
        WHERE t.policy = ask.policy::text AND t.key = ask.key::text AND t.blocked_until_us > 0
          AND (ask.until_us::bigint = 0 OR t.blocked_until_us = ask.until_us::bigint);
    END IF;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.unblock IS 'Lifts the key''s block and leaves what it has used.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit.reset(algorithm text, name text, key text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    algorithm text := $1;
BEGIN
    IF (algorithm IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log')) IS NOT TRUE THEN
        PERFORM pglimit._refuse('algorithm', quote_nullable(algorithm), 'must be one of leaky_bucket, leaky_bucket_queue, token_bucket, gcra, fixed_window, sliding_window_counter, sliding_window_log', 'Write it as a text, in small letters.');
    END IF;
    IF (ask.policy COLLATE "C" ~ '^[a-z0-9][a-z0-9_.-]{0,63}$') IS NOT TRUE THEN
        PERFORM pglimit._refuse('name', quote_nullable(left(ask.policy, 80)), 'must match ^[a-z0-9][a-z0-9_.-]{0,63}$', 'The name keeps the keys of one limit apart from those of others; whom it is for is the key.');
    END IF;
    IF (octet_length(ask.key) BETWEEN 1 AND 1024) IS NOT TRUE THEN
        IF octet_length(ask.key) > 1024 THEN
            PERFORM pglimit._refuse('key', quote_literal(left(ask.key, 40)) || ' and more', 'is longer than 1024 bytes', 'Hash it first.');
        END IF;
        PERFORM pglimit._refuse('key', quote_nullable(ask.key), 'must not be empty or NULL', 'Take a constant such as ''all'' for a limit that everybody shares.');
    END IF;
    IF algorithm = 'leaky_bucket' THEN
        WITH freed AS (
            UPDATE pglimit_hold AS h SET units = 0
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = 'leaky_bucket' AND h.state = 'held'
            RETURNING h.id
        )
        DELETE FROM pglimit_leaky_bucket AS t
        USING (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
        WHERE c.holds >= 0 AND t.policy = ask.policy::text AND t.key = ask.key::text;
    ELSIF algorithm = 'leaky_bucket_queue' THEN
        WITH freed AS (
            UPDATE pglimit_hold AS h SET units = 0
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = 'leaky_bucket_queue' AND h.state = 'held'
            RETURNING h.id
        )
        DELETE FROM pglimit_leaky_bucket_queue AS t
        USING (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
        WHERE c.holds >= 0 AND t.policy = ask.policy::text AND t.key = ask.key::text;
    ELSIF algorithm = 'token_bucket' THEN
        WITH freed AS (
            UPDATE pglimit_hold AS h SET units = 0
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = 'token_bucket' AND h.state = 'held'
            RETURNING h.id
        )
        DELETE FROM pglimit_token_bucket AS t
        USING (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
        WHERE c.holds >= 0 AND t.policy = ask.policy::text AND t.key = ask.key::text;
    ELSIF algorithm = 'gcra' THEN
        WITH freed AS (
            UPDATE pglimit_hold AS h SET units = 0
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = 'gcra' AND h.state = 'held'
            RETURNING h.id
        )
        DELETE FROM pglimit_gcra AS t
        USING (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
        WHERE c.holds >= 0 AND t.policy = ask.policy::text AND t.key = ask.key::text;
    ELSIF algorithm = 'fixed_window' THEN
        WITH freed AS (
            UPDATE pglimit_hold AS h SET units = 0
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = 'fixed_window' AND h.state = 'held'
            RETURNING h.id
        )
        DELETE FROM pglimit_fixed_window AS t
        USING (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
        WHERE c.holds >= 0 AND t.policy = ask.policy::text AND t.key = ask.key::text;
    ELSIF algorithm = 'sliding_window_counter' THEN
        WITH freed AS (
            UPDATE pglimit_hold AS h SET units = 0
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = 'sliding_window_counter' AND h.state = 'held'
            RETURNING h.id
        )
        DELETE FROM pglimit_sliding_window_counter AS t
        USING (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
        WHERE c.holds >= 0 AND t.policy = ask.policy::text AND t.key = ask.key::text;
    ELSIF algorithm = 'sliding_window_log' THEN
        WITH freed AS (
            UPDATE pglimit_hold AS h SET units = 0
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = 'sliding_window_log' AND h.state = 'held'
            RETURNING h.id
        )
        DELETE FROM pglimit_sliding_window_log AS t
        USING (SELECT CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits, (SELECT count(*) FROM freed) AS holds) AS c
        WHERE c.holds >= 0 AND t.policy = ask.policy::text AND t.key = ask.key::text;
    END IF;
    IF FOUND THEN
        WITH made AS MATERIALIZED (
            SELECT h.id FROM pglimit_hold AS h
            WHERE h.policy = ask.policy::text AND h.key = ask.key::text AND h.algorithm = ask.algorithm::text AND h.state = 'held' AND h.units > 0::float8
            FOR UPDATE OF h NOWAIT
        )
        UPDATE pglimit_hold AS h SET units = 0 FROM made AS m WHERE h.id = m.id;
    END IF;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit.reset IS 'Forgets the key: what it has used and its block.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit._settle(hold text, to_state text, units float8, at_us bigint) RETURNS pglimit._settled
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := NULL;
    key text := NULL;
    units float8 := coalesce(NULL, $3);
    limit_units float8 := NULL;
    burst float8 := coalesce(NULL, NULL);
    capacity float8;
    tick_us bigint := 1;
    leak float8;
    period_us bigint;
    now_us bigint := $4;
    algorithm text := NULL;
    id text := $1;
    state text := $2;
    level float8;
    previous float8;
    updated_at_us bigint;
    blocked_until_us bigint;
    window_us bigint;
    reserved float8;
    units_before float8;
    changes bool;
    expires_at_us bigint;
    freed bool;
    at_us bigint;
    answer pglimit._settled;
BEGIN
    ask.algorithm := split_part(hold, ':'::text, 1);
    IF ask.algorithm = 'leaky_bucket' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), hold AS MATERIALIZED (
            SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
                   h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, ask.units::float8 AS actual,
                   (h.state = 'held' AND (ask.state::text <> 'expired' OR h.expires_at_us <= c.now_us)
                    OR h.state = 'expired' AND ask.state::text = 'settled') AS changes
            FROM c JOIN pglimit_hold AS h ON h.id = ask.id::text AND h.state <> 'spent'
                        AND (h.forget_at_us > c.now_us OR ask.state::text = 'expired')
            FOR UPDATE OF h
        ), counted AS (
        INSERT INTO pglimit_leaky_bucket AS t
               (policy, key, cost, granted, level, capacity, leak, tick_us, leaked_at_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT h.policy, h.key, h.units, h.actual, GREATEST(0, h.actual - h.units), h.capacity, h.leak, h.tick_us, h.now_us,
               h.now_us, -h.counted_at_us, h.now_us
        FROM hold AS h
        WHERE h.changes AND h.actual <> h.units
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END, leak = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
                tick_us = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END,
            granted = LEAST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us)
                            / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END),
                    GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost
                            - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us)
                                    / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8
                                * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
                                ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak)))),
            level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us)
                            / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END)
                    - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost
                            - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us)
                                    / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8
                                * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
                                ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us) / EXCLUDED.tick_us)::float8 * EXCLUDED.leak))))
                + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
            leaked_at_us = CASE WHEN GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us)
                            / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END)::float8 * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END)
                    = 0::float8 THEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                    ELSE t.leaked_at_us + (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.leaked_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END
                    * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.tick_us ELSE t.tick_us END END,
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.leaked_at_us, t.updated_at_us, t.blocked_until_us
        ), ended AS (
        UPDATE pglimit_hold AS h SET
            state = ask.state::text,
            idempotency_key = CASE WHEN ask.state::text = 'settled' THEN h.idempotency_key END,
            units = CASE WHEN ask.state::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
        FROM hold AS b LEFT JOIN counted AS t ON true
        WHERE h.id = b.id AND b.changes
        )
        SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
               h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.now_us::bigint AS now_us, h.expires_at_us,
               (coalesce(t.granted, 0) > 0::float8)::bool AS freed,
               coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, r.blocked_until_us, 0)::bigint AS blocked_until_us,
               coalesce(t.level, r.level, 0)::float8 AS level, 0::float8 AS previous, coalesce(t.leaked_at_us, r.leaked_at_us, h.now_us)::bigint AS at_us, 0::bigint AS window_us
        FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_leaky_bucket AS r ON r.policy = h.policy AND r.key = h.key
        INTO ask.state, ask.reserved, ask.units_before, ask.changes, ask.policy, ask.key, ask.limit_units, ask.burst, ask.capacity, ask.leak, ask.tick_us, ask.period_us, ask.now_us, ask.expires_at_us, ask.freed, ask.updated_at_us, ask.blocked_until_us, ask.level, ask.previous, ask.at_us, ask.window_us;
    ELSIF ask.algorithm = 'token_bucket' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), hold AS MATERIALIZED (
            SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
                   h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, ask.units::float8 AS actual,
                   (h.state = 'held' AND (ask.state::text <> 'expired' OR h.expires_at_us <= c.now_us)
                    OR h.state = 'expired' AND ask.state::text = 'settled') AS changes
            FROM c JOIN pglimit_hold AS h ON h.id = ask.id::text AND h.state <> 'spent'
                        AND (h.forget_at_us > c.now_us OR ask.state::text = 'expired')
            FOR UPDATE OF h
        ), counted AS (
        INSERT INTO pglimit_token_bucket AS t
               (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
        SELECT h.policy, h.key, h.units, h.actual, GREATEST(0, h.actual - h.units), h.capacity, h.leak,
               h.now_us, -h.counted_at_us, h.now_us
        FROM hold AS h
        WHERE h.changes AND h.actual <> h.units
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END, leak = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
            granted = LEAST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END),
                    GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost
                            - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8
                                * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
                                ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8 * EXCLUDED.leak)))),
            level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END)
                    - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost
                            - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8
                                * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
                                ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8 * EXCLUDED.leak))))
                + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
        ), ended AS (
        UPDATE pglimit_hold AS h SET
            state = ask.state::text,
            idempotency_key = CASE WHEN ask.state::text = 'settled' THEN h.idempotency_key END,
            units = CASE WHEN ask.state::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
        FROM hold AS b LEFT JOIN counted AS t ON true
        WHERE h.id = b.id AND b.changes
        )
        SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
               h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.now_us::bigint AS now_us, h.expires_at_us,
               (coalesce(t.granted, 0) > 0::float8)::bool AS freed,
               coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, r.blocked_until_us, 0)::bigint AS blocked_until_us,
               coalesce(t.level, r.level, 0)::float8 AS level, 0::float8 AS previous, coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS at_us, 0::bigint AS window_us
        FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_token_bucket AS r ON r.policy = h.policy AND r.key = h.key
        INTO ask.state, ask.reserved, ask.units_before, ask.changes, ask.policy, ask.key, ask.limit_units, ask.burst, ask.capacity, ask.leak, ask.tick_us, ask.period_us, ask.now_us, ask.expires_at_us, ask.freed, ask.updated_at_us, ask.blocked_until_us, ask.level, ask.previous, ask.at_us, ask.window_us;
    ELSIF ask.algorithm = 'gcra' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), hold AS MATERIALIZED (
            SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
                   h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, ask.units::float8 AS actual,
                   (h.state = 'held' AND (ask.state::text <> 'expired' OR h.expires_at_us <= c.now_us)
                    OR h.state = 'expired' AND ask.state::text = 'settled') AS changes
            FROM c JOIN pglimit_hold AS h ON h.id = ask.id::text AND h.state <> 'spent'
                        AND (h.forget_at_us > c.now_us OR ask.state::text = 'expired')
            FOR UPDATE OF h
        ), counted AS (
        INSERT INTO pglimit_gcra AS t
               (policy, key, cost, granted, level, capacity, leak, updated_at_us, blocked_until_us, expires_at_us)
        SELECT h.policy, h.key, h.units, h.actual, GREATEST(0, h.actual - h.units), h.capacity, h.leak,
               h.now_us, -h.counted_at_us, h.now_us
        FROM hold AS h
        WHERE h.changes AND h.actual <> h.units
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END, leak = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
            granted = LEAST(GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END),
                    GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost
                            - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8
                                * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
                                ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8 * EXCLUDED.leak)))),
            level = GREATEST(0, GREATEST(0, t.level - ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) - t.updated_at_us))::float8
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END)
                    - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, EXCLUDED.cost
                            - GREATEST(((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8
                                * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.leak ELSE t.leak END,
                                ((GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) + EXCLUDED.blocked_until_us))::float8 * EXCLUDED.leak))))
                + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.updated_at_us, t.blocked_until_us
        ), ended AS (
        UPDATE pglimit_hold AS h SET
            state = ask.state::text,
            idempotency_key = CASE WHEN ask.state::text = 'settled' THEN h.idempotency_key END,
            units = CASE WHEN ask.state::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
        FROM hold AS b LEFT JOIN counted AS t ON true
        WHERE h.id = b.id AND b.changes
        )
        SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
               h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.now_us::bigint AS now_us, h.expires_at_us,
               (coalesce(t.granted, 0) > 0::float8)::bool AS freed,
               coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, r.blocked_until_us, 0)::bigint AS blocked_until_us,
               coalesce(t.level, r.level, 0)::float8 AS level, 0::float8 AS previous, coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS at_us, 0::bigint AS window_us
        FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_gcra AS r ON r.policy = h.policy AND r.key = h.key
        INTO ask.state, ask.reserved, ask.units_before, ask.changes, ask.policy, ask.key, ask.limit_units, ask.burst, ask.capacity, ask.leak, ask.tick_us, ask.period_us, ask.now_us, ask.expires_at_us, ask.freed, ask.updated_at_us, ask.blocked_until_us, ask.level, ask.previous, ask.at_us, ask.window_us;
    ELSIF ask.algorithm = 'fixed_window' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), hold AS MATERIALIZED (
            SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
                   h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, ask.units::float8 AS actual,
                   (h.state = 'held' AND (ask.state::text <> 'expired' OR h.expires_at_us <= c.now_us)
                    OR h.state = 'expired' AND ask.state::text = 'settled') AS changes
            FROM c JOIN pglimit_hold AS h ON h.id = ask.id::text AND h.state <> 'spent'
                        AND (h.forget_at_us > c.now_us OR ask.state::text = 'expired')
            FOR UPDATE OF h
        ), counted AS (
        INSERT INTO pglimit_fixed_window AS t
               (policy, key, cost, granted, level, capacity, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT h.policy, h.key, h.units, h.actual, GREATEST(0, h.actual - h.units), h.capacity, h.ends_at_us,
               h.now_us, 0, h.now_us
        FROM hold AS h
        WHERE h.changes AND h.actual <> h.units AND h.ends_at_us > h.now_us
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END,
            granted = LEAST(CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END,
                    CASE WHEN t.ends_at_us = EXCLUDED.ends_at_us THEN GREATEST(0, EXCLUDED.cost - EXCLUDED.granted) ELSE 0 END),
            level = GREATEST(0, CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN 0 ELSE t.level END
                    - CASE WHEN t.ends_at_us = EXCLUDED.ends_at_us THEN GREATEST(0, EXCLUDED.cost - EXCLUDED.granted) ELSE 0 END) + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
            ends_at_us = CASE WHEN EXCLUDED.updated_at_us >= t.ends_at_us THEN EXCLUDED.ends_at_us ELSE t.ends_at_us END,
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.level, t.ends_at_us, t.updated_at_us, t.blocked_until_us
        ), ended AS (
        UPDATE pglimit_hold AS h SET
            state = ask.state::text,
            idempotency_key = CASE WHEN ask.state::text = 'settled' THEN h.idempotency_key END,
            units = CASE WHEN ask.state::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
        FROM hold AS b LEFT JOIN counted AS t ON true
        WHERE h.id = b.id AND b.changes
        )
        SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
               h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.now_us::bigint AS now_us, h.expires_at_us,
               (coalesce(t.granted, 0) > 0::float8)::bool AS freed,
               coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, r.blocked_until_us, 0)::bigint AS blocked_until_us,
               coalesce(t.level, r.level, 0)::float8 AS level, 0::float8 AS previous, coalesce(t.ends_at_us, r.ends_at_us, 0)::bigint AS at_us, 0::bigint AS window_us
        FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_fixed_window AS r ON r.policy = h.policy AND r.key = h.key
        INTO ask.state, ask.reserved, ask.units_before, ask.changes, ask.policy, ask.key, ask.limit_units, ask.burst, ask.capacity, ask.leak, ask.tick_us, ask.period_us, ask.now_us, ask.expires_at_us, ask.freed, ask.updated_at_us, ask.blocked_until_us, ask.level, ask.previous, ask.at_us, ask.window_us;
    ELSIF ask.algorithm = 'sliding_window_counter' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), hold AS MATERIALIZED (
            SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
                   h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, ask.units::float8 AS actual,
                   (h.state = 'held' AND (ask.state::text <> 'expired' OR h.expires_at_us <= c.now_us)
                    OR h.state = 'expired' AND ask.state::text = 'settled') AS changes
            FROM c JOIN pglimit_hold AS h ON h.id = ask.id::text AND h.state <> 'spent'
                        AND (h.forget_at_us > c.now_us OR ask.state::text = 'expired')
            FOR UPDATE OF h
        ), counted AS (
        INSERT INTO pglimit_sliding_window_counter AS t
               (policy, key, cost, granted, current, previous, capacity, period_us, ends_at_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT h.policy, h.key, h.units, h.actual, GREATEST(0, h.actual - h.units), 0, h.capacity, h.period_us,
               (h.now_us / h.period_us + 1) * h.period_us, h.now_us, -h.ends_at_us, h.now_us
        FROM hold AS h
        WHERE h.changes AND h.actual <> h.units
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END,
            granted = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                        ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1)
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us
                    THEN LEAST(CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current ELSE 0 END, GREATEST(0, EXCLUDED.cost - EXCLUDED.granted))
                    WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                        ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1)
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us + t.period_us
                    THEN LEAST(CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous
                            WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END, GREATEST(0, EXCLUDED.cost - EXCLUDED.granted))
                    ELSE 0 END,
            current = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                        ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1)
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us
                    THEN GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current ELSE 0 END - GREATEST(0, EXCLUDED.cost - EXCLUDED.granted))
                    ELSE CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.current ELSE 0 END END
                      + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
            previous = CASE WHEN CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                        ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1)
                        * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END = -EXCLUDED.blocked_until_us + t.period_us
                    THEN GREATEST(0, CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous
                            WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END - GREATEST(0, EXCLUDED.cost - EXCLUDED.granted))
                    ELSE CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.previous
                        WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us + t.period_us THEN t.current ELSE 0 END END,
            period_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.period_us
                    ELSE CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END,
            ends_at_us = CASE WHEN GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) < t.ends_at_us THEN t.ends_at_us
                    ELSE (GREATEST(t.updated_at_us, EXCLUDED.updated_at_us) / CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END + 1)
                    * CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END END,
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, t.current, t.previous, t.period_us, t.ends_at_us, t.updated_at_us, t.blocked_until_us
        ), ended AS (
        UPDATE pglimit_hold AS h SET
            state = ask.state::text,
            idempotency_key = CASE WHEN ask.state::text = 'settled' THEN h.idempotency_key END,
            units = CASE WHEN ask.state::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
        FROM hold AS b LEFT JOIN counted AS t ON true
        WHERE h.id = b.id AND b.changes
        )
        SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
               h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.now_us::bigint AS now_us, h.expires_at_us,
               (coalesce(t.granted, 0) > 0::float8)::bool AS freed,
               coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, r.blocked_until_us, 0)::bigint AS blocked_until_us,
               coalesce(t.current, r.current, 0)::float8 AS level, coalesce(t.previous, r.previous, 0)::float8 AS previous, coalesce(t.ends_at_us, r.ends_at_us, 0)::bigint AS at_us,
                   coalesce(t.period_us, r.period_us, 1)::bigint AS window_us
        FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_sliding_window_counter AS r ON r.policy = h.policy AND r.key = h.key
        INTO ask.state, ask.reserved, ask.units_before, ask.changes, ask.policy, ask.key, ask.limit_units, ask.burst, ask.capacity, ask.leak, ask.tick_us, ask.period_us, ask.now_us, ask.expires_at_us, ask.freed, ask.updated_at_us, ask.blocked_until_us, ask.level, ask.previous, ask.at_us, ask.window_us;
    ELSIF ask.algorithm = 'sliding_window_log' THEN
        WITH c AS MATERIALIZED (
            SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS now_us,
                     CASE WHEN ''::text = 'off' OR ''::text = 'on' AND current_setting('synchronous_commit'::text) = 'off'
                          THEN set_config('synchronous_commit'::text, ''::text, true) END AS commits,
                     CASE WHEN ''::text <> '' THEN set_config('lock_timeout'::text, ''::text, true) END AS waits
        ), hold AS MATERIALIZED (
            SELECT h.id, h.state, h.policy, h.key, h.reserved, h.units, h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us,
                   h.ends_at_us, h.counted_at_us, h.expires_at_us, c.now_us, ask.units::float8 AS actual,
                   (h.state = 'held' AND (ask.state::text <> 'expired' OR h.expires_at_us <= c.now_us)
                    OR h.state = 'expired' AND ask.state::text = 'settled') AS changes
            FROM c JOIN pglimit_hold AS h ON h.id = ask.id::text AND h.state <> 'spent'
                        AND (h.forget_at_us > c.now_us OR ask.state::text = 'expired')
            FOR UPDATE OF h
        ), counted AS (
        INSERT INTO pglimit_sliding_window_log AS t
               (policy, key, cost, granted, entries, totals, base, total, capacity, period_us, keep_us, updated_at_us, blocked_until_us, expires_at_us)
        SELECT h.policy, h.key, h.units, h.actual,
               CASE WHEN h.actual > h.units THEN ARRAY[h.now_us] ELSE '{}' END,
               CASE WHEN h.actual > h.units THEN ARRAY[0::float8] ELSE '{}' END,
               0, GREATEST(0, h.actual - h.units), h.capacity, h.period_us, h.period_us, h.now_us, -h.counted_at_us, h.now_us
        FROM hold AS h
        WHERE h.changes AND h.actual <> h.units
        ON CONFLICT (policy, key) DO UPDATE SET
            cost = 1, capacity = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.capacity ELSE t.capacity END,
                period_us = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.period_us ELSE t.period_us END,
                keep_us = CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END,
            granted = GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted,
                        coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                        - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                            - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                            coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))),
            entries = CASE WHEN t.total + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost) > t.total
                    THEN pg_catalog.array_append(t.entries, GREATEST(t.updated_at_us, EXCLUDED.updated_at_us))
                    WHEN (GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted,
                                coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0::float8
                        AND coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                        - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))))
                        <= GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                            - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                            coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))
                    THEN pg_catalog.array_cat(t.entries[: pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries)],
                        t.entries[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1 :]) ELSE t.entries END,
            totals = CASE WHEN t.total + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost) > t.total THEN pg_catalog.array_append(t.totals, t.total)
                    WHEN (GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted,
                                coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0::float8
                        AND coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                        - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))))
                        <= GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                            - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                            coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))
                    THEN pg_catalog.array_cat(t.totals[: pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries)],
                        pglimit_rebase(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1 :],
                            coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                            - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))))
                    WHEN GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                            - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0::float8
                    THEN pglimit_lower(t.totals, pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries),
                        coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                        - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))),
                        GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))))) ELSE t.totals END,
            base = GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
            total = CASE WHEN NOT (GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted,
                                coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))) > 0::float8
                        AND coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                        - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted, coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                                - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                    - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                    coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))))
                        <= GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                            - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                            coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total)))
                    THEN t.total - GREATEST(0, LEAST(EXCLUDED.cost - EXCLUDED.granted,
                            coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                            - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                                - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                                coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))))
                    WHEN pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) = pg_catalog.cardinality(t.entries)
                    THEN GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                        - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                        coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))
                    ELSE t.total - (coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us, t.entries) + 1], t.total)
                        - GREATEST(GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
                                            - CASE WHEN t.capacity = 0::float8 THEN EXCLUDED.keep_us ELSE t.keep_us END, t.entries) + 1], t.total)),
                            coalesce(t.totals[pg_catalog.width_bucket(-EXCLUDED.blocked_until_us - 1, t.entries) + 1], t.total))) END + GREATEST(0, EXCLUDED.granted - EXCLUDED.cost),
            updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us)
        RETURNING t.granted, (t.total - GREATEST(t.base, coalesce(t.totals[pg_catalog.width_bucket(t.updated_at_us - t.keep_us, t.entries) + 1], t.total)))::float8 AS level,
            coalesce(t.entries[pg_catalog.cardinality(t.entries)], 0)::bigint AS newest_at_us, t.updated_at_us, t.blocked_until_us
        ), ended AS (
        UPDATE pglimit_hold AS h SET
            state = ask.state::text,
            idempotency_key = CASE WHEN ask.state::text = 'settled' THEN h.idempotency_key END,
            units = CASE WHEN ask.state::text = 'settled' THEN b.actual ELSE b.units - coalesce(t.granted, 0) END
        FROM hold AS b LEFT JOIN counted AS t ON true
        WHERE h.id = b.id AND b.changes
        )
        SELECT h.state, h.reserved, h.units AS units_before, h.changes::bool AS changes, h.policy, h.key,
               h.limit_units, h.burst, h.capacity, h.leak, h.tick_us, h.period_us, h.now_us::bigint AS now_us, h.expires_at_us,
               (coalesce(t.granted, 0) > 0::float8)::bool AS freed,
               coalesce(t.updated_at_us, r.updated_at_us, h.now_us)::bigint AS updated_at_us, coalesce(t.blocked_until_us, r.blocked_until_us, 0)::bigint AS blocked_until_us,
               coalesce(t.level, r.total - GREATEST(r.base, coalesce(r.totals[pg_catalog.width_bucket(GREATEST(r.updated_at_us, h.now_us) - r.keep_us, r.entries) + 1], r.total)),
                       0)::float8 AS level, 0::float8 AS previous,
               coalesce(t.newest_at_us, r.entries[pg_catalog.cardinality(r.entries)], 0)::bigint AS at_us, 0::bigint AS window_us
        FROM hold AS h LEFT JOIN counted AS t ON true LEFT JOIN pglimit_sliding_window_log AS r ON r.policy = h.policy AND r.key = h.key
        INTO ask.state, ask.reserved, ask.units_before, ask.changes, ask.policy, ask.key, ask.limit_units, ask.burst, ask.capacity, ask.leak, ask.tick_us, ask.period_us, ask.now_us, ask.expires_at_us, ask.freed, ask.updated_at_us, ask.blocked_until_us, ask.level, ask.previous, ask.at_us, ask.window_us;
    END IF;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    ask.answer := (ask.state, ask.policy, ask.key, ask.reserved, ask.units_before, ask.burst, ask.capacity, ask.leak, ask.tick_us, ask.period_us,
                   ask.now_us, ask.expires_at_us, ask.changes, ask.freed, ask.updated_at_us, ask.blocked_until_us, ask.level, ask.previous, ask.at_us, ask.window_us);
    RETURN ask.answer;
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit._settle IS 'Brings a hold to a state; nobody''s API.';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION pglimit._reap(algorithm text, name text, key text, at_us bigint) RETURNS bool
LANGUAGE plpgsql VOLATILE AS $pglimit$
#variable_conflict use_column
<<ask>>
DECLARE
    policy text := $2;
    key text := $3;
    now_us bigint := $4;
    algorithm text := $1;
    max_rows bigint := 100;
    changes bool;
    freed bool;
    settled pglimit._settled;
    ids text[];
BEGIN
    IF current_setting('transaction_read_only'::text) = 'on' THEN
        RETURN false; -- a check may be asked there; it tells of them as held
    END IF;
    ask.policy := name;
    ask.now_us := at_us;
    LOOP
        ask.ids := ARRAY(
        SELECT h.id
        FROM (SELECT coalesce(ask.now_us::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint) AS us) AS c
        JOIN pglimit_hold AS h ON h.policy = ask.policy::text AND h.key = ask.key::text AND h.state = 'held' AND h.expires_at_us <= c.us
        WHERE h.algorithm = ask.algorithm::text
        ORDER BY h.expires_at_us, h.units
        LIMIT ask.max_rows::bigint
        FOR UPDATE OF h SKIP LOCKED
        );
        ask.changes := false;
        FOR i IN 1 .. pg_catalog.cardinality(ask.ids) LOOP
            ask.settled := pglimit._settle(ask.ids[i], 'expired', 0, at_us);
            ask.freed := coalesce(ask.freed, false) OR coalesce((ask.settled).freed, false);
            ask.changes := ask.changes OR coalesce((ask.settled).changes, false);
        END LOOP;
        EXIT WHEN ask.freed OR NOT ask.changes OR pg_catalog.cardinality(ask.ids) < ask.max_rows;
    END LOOP;
    RETURN coalesce(ask.freed, false);
END $pglimit$;
-- +goose StatementEnd
COMMENT ON FUNCTION pglimit._reap IS 'Gives back the key''s expired holds and tells whether there was any; nobody''s API.';

-- The functions see the schema of the tables, whatever the caller's search_path,
-- and no temporary table before it.
-- +goose StatementBegin
DO $pglimit$
DECLARE
    home name := (SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('pglimit_token_bucket'::text)::oid);
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc AS p
             WHERE p.pronamespace = to_regnamespace('pglimit'::text)::oid AND p.proname IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log', 'allow_up_to', 'check', 'fill', 'refund', 'reserve', 'settle', 'cancel', 'block', 'unblock', 'reset', '_settle', '_reap') LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s SET search_path TO %I, pg_temp', f, home);
    END LOOP;
END $pglimit$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $pglimit$
DECLARE
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc AS p
             WHERE p.pronamespace = to_regnamespace('pglimit'::text)::oid
               AND p.proname IN ('leaky_bucket', 'leaky_bucket_queue', 'token_bucket', 'gcra', 'fixed_window', 'sliding_window_counter', 'sliding_window_log', 'allow_up_to', 'check', 'fill', 'refund', 'reserve', 'settle', 'cancel', 'block', 'unblock', 'reset', '_settle', '_reap', '_refuse', '_seconds', '_bucket_at', '_counter_at') LOOP
        EXECUTE 'DROP FUNCTION ' || f::text;
    END LOOP;
    IF to_regtype('pglimit.result'::text) IS NOT NULL THEN
        DROP TYPE pglimit.result, pglimit.hold, pglimit.settlement, pglimit._settled;
    END IF;
    BEGIN
        DROP SCHEMA IF EXISTS pglimit;
    EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
        NULL; -- it is used for something else too, or is somebody else's
    END;
END $pglimit$;
-- +goose StatementEnd
