-- Attempts that succeed or fail, such as logins. A key has a row for each source from which an
-- attempt has succeeded, and a row for the source '', which all others share. Times and the
-- order of the columns are as in the tables of the other algorithms. A ticket that has ended
-- without a report stays in its row until the next statement counts it.

-- +goose Up
CREATE TABLE pglimit_attempt (
    failures         bigint NOT NULL DEFAULT 0,  -- that count until forget_at_us
    waits_until_us   bigint NOT NULL DEFAULT 0,
    forget_at_us     bigint NOT NULL DEFAULT 0,
    known_until_us   bigint NOT NULL DEFAULT 0,  -- of a source that has succeeded; 0 for ''
    blocked_until_us bigint NOT NULL DEFAULT 0,  -- end of the key's block, in the row of ''; others have a copy. 0 or less: none
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
    tickets          text[] NOT NULL DEFAULT '{}',  -- under way, in the order of their ends: ID, source and end of each
    CONSTRAINT pglimit_attempt_pkey PRIMARY KEY (policy, key, source)
);
CREATE INDEX pglimit_attempt_expires ON pglimit_attempt (expires_at_us);
ALTER TABLE pglimit_attempt SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- The functions of the statements. They multiply step by step, so that the library computes the
-- same bits.

-- pglimit_attempt_counts counts the tickets that have expired at a time as failures, at the end of
-- the last of them, and if failed another failure at that time. It returns the failures, the end
-- of the wait and the time that forgets the failures. The wait is block_for_us, times growth for
-- each failure above the limit, at most 1,000 times, and at most block_max_us.
-- +goose StatementBegin
CREATE FUNCTION pglimit_attempt_counts(tickets text[], at bigint, failed bool, failures bigint, waits_until bigint, forget_at bigint,
    limit_failures bigint, block_for_us bigint, growth float8, block_max_us bigint, quiet_us bigint) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    gone integer := 0;
    last bigint;
    wait float8;
BEGIN
    WHILE tickets[gone + 3]::bigint <= at LOOP
        gone := gone + 3;
    END LOOP;
    FOR step IN 1 .. 2 LOOP
        IF step = 1 AND gone > 0 THEN
            last := tickets[gone]::bigint;
            failures := CASE WHEN tickets[3]::bigint < forget_at THEN failures ELSE 0 END + gone / 3;
        ELSIF step = 2 AND failed THEN
            last := at;
            failures := CASE WHEN at < forget_at THEN failures ELSE 0 END + 1;
        ELSE
            CONTINUE;
        END IF;
        wait := CASE WHEN failures < limit_failures THEN 0 ELSE block_for_us END;
        FOR growths IN 1 .. LEAST(GREATEST(failures - limit_failures, 0), 1000)::integer LOOP
            EXIT WHEN wait >= block_max_us OR growth = 1;
            wait := wait * growth;
        END LOOP;
        waits_until := GREATEST(waits_until, last + LEAST(wait, block_max_us)::bigint);
        forget_at := waits_until + quiet_us;
    END LOOP;
    RETURN ARRAY[failures, waits_until, forget_at];
END $$;
-- +goose StatementEnd

-- pglimit_attempt_left returns the tickets that are under way at a time, without the one of an ID.
-- +goose StatementBegin
CREATE FUNCTION pglimit_attempt_left(tickets text[], at bigint, id text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    under_way text[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(tickets) BY 3 LOOP
        IF tickets[i] <> id AND tickets[i + 2]::bigint > at THEN
            under_way := under_way || tickets[i : i + 2];
        END IF;
    END LOOP;
    RETURN under_way;
END $$;
-- +goose StatementEnd

-- pglimit_attempt_begin returns the tickets under way at a time, and with them a ticket that was
-- made at made_at, if the key does not wait until later and fewer than at_once are under way.
-- +goose StatementBegin
CREATE FUNCTION pglimit_attempt_begin(tickets text[], ticket text[], made_at bigint, at bigint, waits_until bigint, at_once bigint) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ends constant bigint := at + ticket[3]::bigint - made_at;
    before text[] := '{}';
    after text[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(tickets) BY 3 LOOP
        IF tickets[i + 2]::bigint <= at THEN
            CONTINUE;
        ELSIF tickets[i + 2]::bigint <= ends THEN
            before := before || tickets[i : i + 2];
        ELSE
            after := after || tickets[i : i + 2];
        END IF;
    END LOOP;
    IF waits_until <= at AND cardinality(before) + cardinality(after) < 3 * at_once THEN
        before := before || ticket[1 : 2] || ends::text;
    END IF;
    RETURN before || after;
END $$;
-- +goose StatementEnd

-- pglimit_attempt_ends returns the ends of tickets.
-- +goose StatementBegin
CREATE FUNCTION pglimit_attempt_ends(tickets text[]) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$ SELECT pg_catalog.string_agg(tickets[i], ','::text ORDER BY i) FROM pg_catalog.generate_series(3, pg_catalog.cardinality(tickets), 3) AS i $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION pglimit_attempt_ends(text[]);
DROP FUNCTION pglimit_attempt_begin(text[], text[], bigint, bigint, bigint, bigint);
DROP FUNCTION pglimit_attempt_left(text[], bigint, text);
DROP FUNCTION pglimit_attempt_counts(text[], bigint, bool, bigint, bigint, bigint, bigint, bigint, float8, bigint, bigint);
DROP TABLE pglimit_attempt;
