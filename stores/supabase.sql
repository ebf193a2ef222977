-- pglimit for Supabase and any other PostgREST: functions of a schema that is safe to expose.
-- It needs the tables and the SQL functions: pglimit migrate up, then pglimit migrate up --functions.
--
--   psql "$DATABASE_URL" -1 -v ON_ERROR_STOP=1 -f stores/supabase.sql
--
-- PostgREST refuses overloaded functions. No name here is overloaded, and none of schemas pglimit
-- and pglimit_ask. The functions are SECURITY DEFINER with a fixed search_path: run this file as
-- the owner of pglimit's tables, never as a superuser. PUBLIC may execute none of them.

CREATE SCHEMA IF NOT EXISTS pglimit_rpc;

-- allow requests one unit for the signed-in user. The key is the subject of the verified token:
-- a client cannot name another's. The policy must have askers, and the client chooses which.
CREATE OR REPLACE FUNCTION pglimit_rpc.allow(name text) RETURNS jsonb -- the columns of pglimit.result
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    subject text := nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub';
BEGIN
    IF subject IS NULL THEN
        RAISE insufficient_privilege USING MESSAGE = 'pglimit: the request has no token of a user', HINT = 'Sign in first.';
    END IF;
    RETURN to_jsonb(pglimit_ask.allow(name, 'user:' || subject));
END $$;

-- check_request limits all writing requests of each signed-in user, before PostgREST runs them:
--
--   ALTER ROLE authenticator SET pgrst.db_pre_request = 'pglimit_rpc.check_request';
--   NOTIFY pgrst, 'reload config';
--
-- It uses policy supabase. Two kinds of requests pass: GET and HEAD, because their transaction only
-- reads and can count nothing; and those without a user, whose address the database does not
-- know for sure. A denial is 429 with Retry-After, in PostgREST 12 and later. PostgREST rolls it
-- back, so a block does not start.
CREATE OR REPLACE FUNCTION pglimit_rpc.check_request() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    subject text := nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub';
    answer pglimit.result;
BEGIN
    IF subject IS NULL OR current_setting('transaction_read_only')::bool THEN
        RETURN;
    END IF;
    answer := pglimit.allow('supabase', 'user:' || subject);
    IF NOT answer.allowed THEN
        RAISE SQLSTATE 'PGRST' USING
            MESSAGE = json_build_object('code', '429', 'message', 'too many requests'),
            DETAIL = json_build_object('status', 429, 'headers',
                CASE WHEN answer.retry_after_s IS NULL THEN '{}'::json ELSE json_build_object('Retry-After', ceil(answer.retry_after_s)::text) END);
    END IF;
END $$;

REVOKE ALL ON FUNCTION pglimit_rpc.allow(text), pglimit_rpc.check_request() FROM PUBLIC;

DO $$
DECLARE
    path text := (SELECT substr(c, 13) FROM pg_proc AS p, unnest(p.proconfig) AS c WHERE p.oid = 'pglimit.token_bucket'::regproc AND c LIKE 'search_path=%');
    f regprocedure;
    r name;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = 'pglimit_rpc'::regnamespace LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path TO %s', f, path);
    END LOOP;
    -- Supabase's roles: users who signed in, and those who did not.
    FOREACH r IN ARRAY ARRAY['authenticated', 'anon'] LOOP
        IF to_regrole(r) IS NOT NULL THEN
            EXECUTE format('GRANT USAGE ON SCHEMA pglimit_rpc TO %I', r);
            EXECUTE format('GRANT EXECUTE ON FUNCTION pglimit_rpc.check_request() TO %I', r);
        END IF;
    END LOOP;
    IF to_regrole('authenticated') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION pglimit_rpc.allow(text) TO authenticated;
    END IF;
END $$;
