-- Triggers of pglimit_policy and pglimit_override, for PostgreSQL only. They note every
-- change, whatever makes it: a program, a migration or a person with psql.
--
--   - They raise pglimit_policy_version by one, once per transaction, and notify channel
--     pglimit_policies with the schema of the tables.
--   - They set version, changed_at and changed_by of the row. changed_by is the role that
--     logged in: session_user.
--   - They set ruled of a policy, which is no change of it, and not in its history.
--   - They write pglimit_policy_history. The note is that of set_config('pglimit.note', …, true),
--     or else the row's, if that is new. An UPDATE that changes nothing is not noted.
--   - They refuse more than 100,000 overrides, more than 1,000 of a policy for several keys,
--     100 of these patterns, and TRUNCATE.
--   - They raise the version if a part of the history is deleted. No change has that version,
--     so that programs load all, not what has changed.
--
-- A writer locks the row of pglimit_policy_version before any other, so that writers wait
-- for each other and never deadlock. Each function runs with the writer's rights, with
-- pg_catalog as its search_path, and finds the tables in the schema of its trigger.

-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION pglimit_policy_begin() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $pglimit$
BEGIN
    EXECUTE format('SELECT FROM %I.pglimit_policy_version FOR UPDATE', TG_TABLE_SCHEMA);
    RETURN NULL;
END $pglimit$;
-- +goose StatementEnd

-- +goose StatementBegin
-- The comparison needs all digits of a number, whatever the session shows.
CREATE FUNCTION pglimit_policy_stamp() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $pglimit$
DECLARE
    stamps CONSTANT text[] := '{version,changed_at,changed_by,ruled}';
    -- A dump carries changed_in to servers with other transactions of that number.
    this CONSTANT text := pg_current_xact_id()::text || ' ' || ((date_part('epoch', now()) * 1000000::float8)::bigint)::text;
    current bigint;
BEGIN
    IF TG_TABLE_NAME = 'pglimit_policy' AND TG_OP <> 'DELETE' THEN
        EXECUTE format('SELECT EXISTS (SELECT FROM %I.pglimit_override AS o WHERE o.policy = $1 AND o.match <> %L)', TG_TABLE_SCHEMA, '') INTO NEW.ruled USING NEW.name;
    END IF;
    IF TG_OP = 'UPDATE' AND to_jsonb(NEW) - stamps = to_jsonb(OLD) - stamps THEN
        IF TG_TABLE_NAME = 'pglimit_policy' THEN
            OLD.ruled := NEW.ruled;
        END IF;
        RETURN OLD;
    END IF;
    EXECUTE format('SELECT version FROM %I.pglimit_policy_version WHERE changed_in = $1', TG_TABLE_SCHEMA) INTO current USING this;
    IF current IS NULL THEN
        EXECUTE format('UPDATE %I.pglimit_policy_version SET version = version + 1::bigint, changed_in = $1 RETURNING version', TG_TABLE_SCHEMA)
            INTO current USING this;
        IF current IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'object_not_in_prerequisite_state',
                MESSAGE = format('pglimit: %I.pglimit_policy_version has no row', TG_TABLE_SCHEMA),
                HINT = format('INSERT INTO %1$I.pglimit_policy_version (version) SELECT coalesce(max(version), 0) FROM %1$I.pglimit_policy_history', TG_TABLE_SCHEMA);
        END IF;
        PERFORM pg_notify('pglimit_policies', TG_TABLE_SCHEMA::text);
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.version := current;
    NEW.changed_at := clock_timestamp();
    NEW.changed_by := session_user::text;
    RETURN NEW;
END $pglimit$;
-- +goose StatementEnd

-- The history has times in UTC and numbers with all their digits, whatever the session
-- has. A row that gets another name or key is one deletion and one new row.
-- +goose StatementBegin
CREATE FUNCTION pglimit_policy_record() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET extra_float_digits = 1 AS $pglimit$
DECLARE
    -- Its first word is the policy's name; its second one, of an override, is the key.
    identity CONSTANT text[] := CASE WHEN TG_TABLE_NAME = 'pglimit_policy' THEN '{name}'::text[] ELSE '{policy,key,match}'::text[] END;
    before jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - 'ruled' END;
    after jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - 'ruled' END;
    change CONSTANT text := format($sql$
        INSERT INTO %1$I.pglimit_policy_history (version, changed_at, name, key, changed_by, note, before, after)
        SELECT v.version, clock_timestamp(), $1, $2, session_user::text, $3, $4, $5 FROM %1$I.pglimit_policy_version AS v$sql$, TG_TABLE_SCHEMA);
    note CONSTANT text := coalesce(nullif(left(current_setting('pglimit.note', true), 1000), ''),
        CASE WHEN before ->> 'note' IS DISTINCT FROM after ->> 'note' THEN after ->> 'note' END, '');
BEGIN
    IF before = after THEN
        RETURN NULL;
    END IF;
    IF before ->> 'match' <> '' OR after ->> 'match' <> '' THEN
        EXECUTE format('UPDATE %1$I.pglimit_policy AS p SET ruled = NOT p.ruled WHERE p.name IN ($1, $2)
            AND p.ruled <> EXISTS (SELECT FROM %1$I.pglimit_override AS o WHERE o.policy = p.name AND o.match <> %2$L)', TG_TABLE_SCHEMA, '')
            USING before ->> 'policy', after ->> 'policy';
    END IF;
    IF before ->> identity[1] <> after ->> identity[1] OR before ->> identity[2] <> after ->> identity[2]
        OR before ->> identity[3] <> after ->> identity[3] THEN
        EXECUTE change USING before ->> identity[1], before ->> identity[2], note, before, NULL::jsonb;
        before := NULL;
    END IF;
    EXECUTE change USING coalesce(after, before) ->> identity[1], coalesce(after, before) ->> identity[2],
        note, before, after;
    RETURN NULL;
END $pglimit$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION pglimit_override_bound() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $pglimit$
DECLARE
    over bool;
BEGIN
    IF NOT EXISTS (SELECT FROM added) THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT count(*) > 100000::bigint FROM (SELECT FROM %I.pglimit_override LIMIT 100001::bigint) AS o', TG_TABLE_SCHEMA) INTO over;
    IF over THEN
        RAISE EXCEPTION USING ERRCODE = 'program_limit_exceeded',
            MESSAGE = 'pglimit: there can be at most 100,000 overrides',
            HINT = 'Delete those that have ended (until <= now()). For many keys with the same limit use another policy.';
    END IF;
    IF EXISTS (SELECT FROM added AS a WHERE a.match <> '') THEN
        EXECUTE format('SELECT max(r.n) > 1000::bigint OR max(r.patterns) > 100::bigint FROM (SELECT count(*) AS n, count(*) FILTER (WHERE o.match = %L) AS patterns FROM %I.pglimit_override AS o WHERE o.match <> %L GROUP BY o.policy) AS r', 'pattern', TG_TABLE_SCHEMA, '') INTO over;
        IF over THEN
            RAISE EXCEPTION USING ERRCODE = 'program_limit_exceeded',
                MESSAGE = 'pglimit: a policy can have at most 1,000 overrides with a match, and of these 100 patterns',
                HINT = 'Delete those that have ended (until <= now()), or join several in a shorter prefix or a larger network.';
        END IF;
    END IF;
    RETURN NULL;
END $pglimit$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION pglimit_policy_forget() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $pglimit$
BEGIN
    IF EXISTS (SELECT FROM gone) THEN
        EXECUTE format('UPDATE %I.pglimit_policy_version SET version = version + 1::bigint, changed_in = $1', TG_TABLE_SCHEMA) USING ''::text;
    END IF;
    RETURN NULL;
END $pglimit$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION pglimit_policy_keep() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $pglimit$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'feature_not_supported',
        MESSAGE = format('pglimit: TRUNCATE of %s, which its history would not note', TG_TABLE_NAME),
        HINT = format('DELETE FROM %I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME);
END $pglimit$;
-- +goose StatementEnd

CREATE TRIGGER pglimit_policy_begin BEFORE INSERT OR UPDATE OR DELETE ON pglimit_policy FOR EACH STATEMENT EXECUTE FUNCTION pglimit_policy_begin();
CREATE TRIGGER pglimit_policy_stamp BEFORE INSERT OR UPDATE OR DELETE ON pglimit_policy FOR EACH ROW EXECUTE FUNCTION pglimit_policy_stamp();
CREATE TRIGGER pglimit_policy_record AFTER INSERT OR UPDATE OR DELETE ON pglimit_policy FOR EACH ROW EXECUTE FUNCTION pglimit_policy_record();
CREATE TRIGGER pglimit_policy_keep BEFORE TRUNCATE ON pglimit_policy FOR EACH STATEMENT EXECUTE FUNCTION pglimit_policy_keep();
CREATE TRIGGER pglimit_policy_begin BEFORE INSERT OR UPDATE OR DELETE ON pglimit_override FOR EACH STATEMENT EXECUTE FUNCTION pglimit_policy_begin();
CREATE TRIGGER pglimit_policy_stamp BEFORE INSERT OR UPDATE OR DELETE ON pglimit_override FOR EACH ROW EXECUTE FUNCTION pglimit_policy_stamp();
CREATE TRIGGER pglimit_policy_record AFTER INSERT OR UPDATE OR DELETE ON pglimit_override FOR EACH ROW EXECUTE FUNCTION pglimit_policy_record();
CREATE TRIGGER pglimit_policy_keep BEFORE TRUNCATE ON pglimit_override FOR EACH STATEMENT EXECUTE FUNCTION pglimit_policy_keep();
CREATE TRIGGER pglimit_override_bound AFTER INSERT ON pglimit_override REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION pglimit_override_bound();
CREATE TRIGGER pglimit_override_bound_update AFTER UPDATE ON pglimit_override REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION pglimit_override_bound();
CREATE TRIGGER pglimit_policy_begin BEFORE DELETE ON pglimit_policy_history FOR EACH STATEMENT EXECUTE FUNCTION pglimit_policy_begin();
CREATE TRIGGER pglimit_policy_forget AFTER DELETE ON pglimit_policy_history REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pglimit_policy_forget();

-- +goose Down
-- Dropping needs the locks of all tables at the same time. After a quarter of
-- deadlock_timeout they are released, so that no other statement fails with a deadlock;
-- then others get three times as long.
-- +goose StatementBegin
DO $pglimit$
DECLARE
    statements text[] := ARRAY[
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
DROP TRIGGER pglimit_policy_forget ON pglimit_policy_history;
DROP TRIGGER pglimit_policy_begin ON pglimit_policy_history;
DROP TRIGGER pglimit_policy_keep ON pglimit_policy;
DROP TRIGGER pglimit_policy_record ON pglimit_policy;
DROP TRIGGER pglimit_policy_stamp ON pglimit_policy;
DROP TRIGGER pglimit_policy_begin ON pglimit_policy;
DROP TRIGGER pglimit_override_bound_update ON pglimit_override;
DROP TRIGGER pglimit_override_bound ON pglimit_override;
DROP TRIGGER pglimit_policy_keep ON pglimit_override;
DROP TRIGGER pglimit_policy_record ON pglimit_override;
DROP TRIGGER pglimit_policy_stamp ON pglimit_override;
DROP TRIGGER pglimit_policy_begin ON pglimit_override;
DROP FUNCTION pglimit_policy_keep();
DROP FUNCTION pglimit_policy_forget();
DROP FUNCTION pglimit_override_bound();
DROP FUNCTION pglimit_policy_record();
DROP FUNCTION pglimit_policy_stamp();
DROP FUNCTION pglimit_policy_begin();
