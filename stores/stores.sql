-- What the stores of this folder call, in schema pglimit_store. It needs the tables and the SQL
-- functions: pglimit migrate up, then pglimit migrate up --functions. Run it as their owner, and
-- again after each update of pglimit:
--
--   psql "$DATABASE_URL" -1 -v ON_ERROR_STOP=1 -f stores/stores.sql
--
-- The functions add an idempotency key to those of schema pglimit: a retry under the same key
-- counts once, as Request.IdempotencyKey of the Go library does, in the same rows. No name is
-- overloaded. They run with the caller's rights, which must be those of an operator, and see the
-- schema of the tables, whatever the caller's search_path:
--
--   GRANT USAGE ON SCHEMA pglimit_store TO worker;

CREATE SCHEMA IF NOT EXISTS pglimit_store;

DO $$
BEGIN
    IF to_regtype('pglimit_store.answer') IS NULL THEN
        CREATE TYPE pglimit_store.answer AS (
            allowed bool, remaining float8, level float8, capacity float8, retry_after_s float8, reset_after_s float8, delay_s float8, reason text, replayed bool
        );
    END IF;
END $$;

-- _replayed returns the level right after the admission under an idempotency key, or NULL.
CREATE OR REPLACE FUNCTION pglimit_store._replayed(name text, key text, cost float8, idempotency_key text) RETURNS float8
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now_us bigint := date_part('epoch', clock_timestamp()) * 1000000;
    seen pglimit_reservation;
BEGIN
    IF octet_length(idempotency_key) NOT BETWEEN 1 AND 1024 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'pglimit: idempotency_key must have 1 to 1,024 bytes', HINT = 'Pass NULL for none.';
    END IF;
    SELECT * INTO seen FROM pglimit_reservation AS h
    WHERE h.policy = _replayed.name AND h.key = _replayed.key AND h.idempotency_key = _replayed.idempotency_key;
    IF seen.forget_at_us <= now_us AND seen.state <> 'open' THEN -- the janitor has not deleted it yet
        DELETE FROM pglimit_reservation AS h WHERE h.policy = seen.policy AND h.key = seen.key AND h.id = seen.id;
        RETURN NULL;
    ELSIF seen.state <> 'spent' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'pglimit: idempotency_key was used to reserve', HINT = 'Use another key.';
    ELSIF seen.reserved <> cost THEN
        RAISE invalid_parameter_value USING MESSAGE = format('pglimit: idempotency_key was used with cost %s, now with %s', seen.reserved, cost), HINT = 'Use another key.';
    END IF;
    RETURN seen.level;
END $$;

-- _remember makes a reservation, which nobody else has seen yet, a request admitted under an
-- idempotency key. One that is not counted has no row. After a denial there is none: while that waited
-- for the key's row, the same request may have been admitted and have taken the room. Then it raises
-- the unique_violation of a second admission, which rolls the denial back, with a block that it began.
CREATE OR REPLACE FUNCTION pglimit_store._remember(name text, key text, cost float8, reservation text, idempotency_key text, remember_s float8) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF reservation IS NULL THEN
        IF pglimit_store._replayed(name, key, cost, idempotency_key) IS NOT NULL THEN
            RAISE unique_violation;
        END IF;
        RETURN;
    END IF;
    UPDATE pglimit_reservation AS h
    SET state = 'spent', idempotency_key = _remember.idempotency_key, expires_at_us = h.created_at_us, forget_at_us = h.created_at_us + (remember_s * 1000000)::bigint
    WHERE h.policy = _remember.name AND h.key = _remember.key AND h.id = split_part(reservation, ':', 2);
END $$;

-- allow requests cost units under a policy of pglimit_policy. An admission under an
-- idempotency_key is remembered for remember_s; a denial is not. A leaky_bucket_queue takes none.
CREATE OR REPLACE FUNCTION pglimit_store.allow(name text, key text, cost float8 DEFAULT 1, idempotency_key text DEFAULT NULL, remember_s float8 DEFAULT 86400)
RETURNS pglimit_store.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    before float8;
    r record;
    replayed bool := false;
BEGIN
    FOR i IN 1 .. 3 LOOP
        BEGIN
            IF idempotency_key IS NULL THEN
                SELECT * INTO r FROM pglimit.allow(name, key, cost);
            ELSE
                before := pglimit_store._replayed(name, key, cost, idempotency_key);
                replayed := before IS NOT NULL;
                IF replayed THEN
                    SELECT * INTO r FROM pglimit.check(name, key, 0);
                ELSE
                    SELECT * INTO r FROM pglimit.reserve(name, key, cost, ttl_s => 1);
                    PERFORM pglimit_store._remember(name, key, cost, r.reservation, idempotency_key, remember_s);
                END IF;
            END IF;
            RETURN (r.allowed OR replayed, r.remaining, coalesce(before, r.level),
                -- What fits is rounded down to whole units. While blocked it is 0.
                CASE WHEN r.reason = 'blocked' THEN (SELECT coalesce(p.burst, p.limit_units) FROM pglimit_policy AS p WHERE p.name = allow.name)
                     ELSE ceil(r.level + r.remaining) END,
                CASE WHEN replayed THEN 0 ELSE r.retry_after_s END, r.reset_after_s, r.delay_s, CASE WHEN NOT replayed THEN r.reason END, replayed)::pglimit_store.answer;
        EXCEPTION WHEN unique_violation THEN -- another call under the same key has committed: nothing is counted here
        END;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'pglimit: another call under the same idempotency_key ended first', HINT = 'Roll back, and run the transaction again.';
END $$;

-- acquire is allow with numbers: cost units of limit_units in period_s, in a fixed_window,
-- sliding_window_counter or sliding_window_log. level is the count after it; of a replay, the count then.
CREATE OR REPLACE FUNCTION pglimit_store.acquire(algorithm text, name text, key text, cost float8, limit_units float8, period_s float8,
    idempotency_key text DEFAULT NULL, remember_s float8 DEFAULT 86400)
RETURNS pglimit_store.answer LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    before float8;
    r record;
    replayed bool := false;
BEGIN
    FOR i IN 1 .. 3 LOOP
        BEGIN
            IF algorithm NOT IN ('fixed_window', 'sliding_window_counter', 'sliding_window_log') THEN
                RAISE invalid_parameter_value USING MESSAGE = format('pglimit: algorithm is %L', algorithm), HINT = 'Name a window, or store a policy and call allow.';
            ELSIF idempotency_key IS NOT NULL THEN
                before := pglimit_store._replayed(name, key, cost, idempotency_key);
                replayed := before IS NOT NULL;
            END IF;
            IF replayed THEN
                SELECT * INTO r FROM pglimit.check_with(algorithm, name, key, 0, limit_units, period_s);
            ELSIF idempotency_key IS NOT NULL THEN
                SELECT * INTO r FROM pglimit.reserve_with(algorithm, name, key, cost, limit_units, period_s, ttl_s => 1);
                PERFORM pglimit_store._remember(name, key, cost, r.reservation, idempotency_key, remember_s);
            ELSIF algorithm = 'fixed_window' THEN
                SELECT * INTO r FROM pglimit.fixed_window(name, key, cost, limit_units, period_s);
            ELSIF algorithm = 'sliding_window_counter' THEN
                SELECT * INTO r FROM pglimit.sliding_window_counter(name, key, cost, limit_units, period_s);
            ELSE
                SELECT * INTO r FROM pglimit.sliding_window_log(name, key, cost, limit_units, period_s);
            END IF;
            RETURN (r.allowed OR replayed, r.remaining, coalesce(before, r.level), limit_units,
                CASE WHEN replayed THEN 0 ELSE r.retry_after_s END, r.reset_after_s, 0, CASE WHEN NOT replayed THEN r.reason END, replayed)::pglimit_store.answer;
        EXCEPTION WHEN unique_violation THEN -- another call under the same key has committed: nothing is counted here
        END;
    END LOOP;
    RAISE serialization_failure USING MESSAGE = 'pglimit: another call under the same idempotency_key ended first', HINT = 'Roll back, and run the transaction again.';
END $$;

-- hit counts cost units in a fixed window of period_s that denies nothing: the caller compares.
CREATE OR REPLACE FUNCTION pglimit_store.hit(name text, key text, cost float8, period_s float8, idempotency_key text DEFAULT NULL, remember_s float8 DEFAULT 86400)
RETURNS pglimit_store.answer LANGUAGE sql VOLATILE AS $$
    SELECT a FROM pglimit_store.acquire('fixed_window', $1, $2, $3, 9007199254740992, $4, $5, $6) AS a
$$;

-- hits reads what hit has counted.
CREATE OR REPLACE FUNCTION pglimit_store.hits(name text, key text) RETURNS TABLE (level float8, reset_after_s float8)
LANGUAGE sql VOLATILE AS $$
    SELECT c.level, c.reset_after_s FROM pglimit.check_with('fixed_window', $1, $2, 0, 9007199254740992, 1) AS c
$$;

-- unhit takes cost units back, at most what the present window has.
CREATE OR REPLACE FUNCTION pglimit_store.unhit(name text, key text, cost float8, period_s float8) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT FROM pglimit.refund_with('fixed_window', $1, $2, $3, 9007199254740992, $4)
$$;

-- put sets what hit has counted.
CREATE OR REPLACE FUNCTION pglimit_store.put(name text, key text, cost float8, period_s float8) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pglimit.reset_with('fixed_window', name, key);
    PERFORM pglimit_store.hit(name, key, cost, period_s);
END $$;

-- forget resets a key, under each algorithm that acquire is for.
CREATE OR REPLACE FUNCTION pglimit_store.forget(name text, key text) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT FROM unnest(ARRAY['fixed_window', 'sliding_window_counter', 'sliding_window_log']) AS a (algorithm),
        LATERAL pglimit.reset_with(a.algorithm, $1, $2)
$$;

-- forget_all resets all keys of a name, and returns how many it had. It locks their rows until
-- the transaction ends.
CREATE OR REPLACE FUNCTION pglimit_store.forget_all(name text) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT count(*) FROM pglimit_keys AS k, LATERAL pglimit.reset_with(k.algorithm, k.policy, k.key) AS done WHERE k.policy = $1
$$;

DO $$
DECLARE
    path text := (SELECT substr(c, 13) FROM pg_proc AS p, unnest(p.proconfig) AS c WHERE p.oid = 'pglimit.token_bucket'::regproc AND c LIKE 'search_path=%');
    f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = 'pglimit_store'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path TO %s', f, path);
    END LOOP;
END $$;
