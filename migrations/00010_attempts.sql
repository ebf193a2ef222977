-- Attempts that succeed or fail, such as logins. A key has a row for each source from which an
-- attempt has succeeded, and a row for the source '', which all others share. Times and the
-- order of the columns are as in the tables of the other algorithms. The tickets under way are
-- in three arrays, in the order of their ends. A ticket that has ended without a report stays
-- there until the next statement counts it.

-- +goose Up
CREATE TABLE pglimit_attempt (
    failures         bigint NOT NULL DEFAULT 0,  -- that count until forget_at_us
    waits_until_us   bigint NOT NULL DEFAULT 0,
    forget_at_us     bigint NOT NULL DEFAULT 0,
    known_until_us   bigint NOT NULL DEFAULT 0,  -- of a source that has succeeded; 0 for ''
    blocked_until_us bigint NOT NULL DEFAULT 0,  -- end of the key's block, in the row of ''; others have a copy
    updated_at_us    bigint NOT NULL,
    expires_at_us    bigint NOT NULL,
    limit_failures   bigint NOT NULL DEFAULT 0,  -- the policy's numbers, as of the last attempt
    at_once          bigint NOT NULL DEFAULT 0,
    quiet_us         bigint NOT NULL DEFAULT 0,
    block_for_us     bigint NOT NULL DEFAULT 0,
    block_growth     float8 NOT NULL DEFAULT 1,
    block_max_us     bigint NOT NULL DEFAULT 0,
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    source           text COLLATE "C" NOT NULL,  -- or its HMAC
    succeeded_from   text COLLATE "C" NOT NULL DEFAULT '',  -- the source of the last success
    ids              text[] NOT NULL DEFAULT '{}',
    sources          text[] NOT NULL DEFAULT '{}',
    ends_us          bigint[] NOT NULL DEFAULT '{}',
    CONSTRAINT pglimit_attempt_pkey PRIMARY KEY (policy, key, source)
);
CREATE INDEX pglimit_attempt_expires ON pglimit_attempt (expires_at_us);
ALTER TABLE pglimit_attempt SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- pglimit_attempt_wait returns the wait after a number of failures: block_for_us, times growth
-- for each failure above the limit, at most 1,000 times, and at most block_max_us. It multiplies
-- step by step, so that the library computes the same bits.
-- +goose StatementBegin
CREATE FUNCTION pglimit_attempt_wait(failures bigint, limit_failures bigint, block_for_us bigint, growth float8, block_max_us bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wait float8 := block_for_us;
BEGIN
    IF failures < limit_failures THEN
        RETURN 0;
    END IF;
    FOR growths IN 1 .. LEAST(failures - limit_failures, 1000)::integer LOOP
        EXIT WHEN wait >= block_max_us OR growth = 1;
        wait := wait * growth;
    END LOOP;
    RETURN LEAST(wait, block_max_us)::bigint;
END $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION pglimit_attempt_wait(bigint, bigint, bigint, float8, bigint);
DROP TABLE pglimit_attempt;
