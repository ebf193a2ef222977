-- The ledgers of balances: an entry for each grant, spending, refund and end of units, with the lots
-- that gave or got them. The statement of the decision inserts it, so both are committed or
-- neither is. Decisions under policies without a ledger neither read nor write this table.
--
-- In a key's order of number each left_units is the one before plus units, except that an entry of
-- the kind open begins anew: something changed without an entry, so units is what there was.

-- +goose Up
CREATE TABLE pglimit_ledger (
    number          bigint NOT NULL,            -- rises with each entry of the key; some are left out
    at_us           bigint NOT NULL,            -- of the decision
    units           float8 NOT NULL,            -- added to the balance: negative if spent or lost
    left_units      float8 NOT NULL,            -- the balance after it: what the lots have, less the debt
    lots            bigint[] NOT NULL,          -- the numbers of the lots that changed, in the order in which they are spent; 0: the debt
    lot_units       float8[] NOT NULL,          -- added to each
    sources         text[] NOT NULL,            -- of each
    kind            text COLLATE "C" NOT NULL,  -- open, grant, spend, charge, reserve, settle, cancel, return, refund, undo, expire, reset
    note            text NOT NULL,              -- the caller's
    reservation     text COLLATE "C",           -- its id
    idempotency_key text COLLATE "C",           -- as stored
    policy          text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,  -- or its HMAC, as in the tables of the algorithms
    CONSTRAINT pglimit_ledger_pkey PRIMARY KEY (policy, key, number)
);
CREATE INDEX pglimit_ledger_at ON pglimit_ledger (at_us);

-- pglimit_lots_changed gives the lots that differ between two accounts at a time, and how much each
-- got: those that had expired then, or the others and the debt as lot 0. Of the parts of a
-- reservation, all units above those that stay went back. What went back to a lot that had expired
-- is in neither account: it is given as got and, as of an expired lot, as lost.
--
-- As of all functions of lots, the body does not name the type: see 00014.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lots_changed(was pglimit_lots, l pglimit_lots, at bigint, ended bool, stay float8,
                                     part_numbers bigint[], part_units float8[], part_ends_us bigint[], part_priorities bigint[], part_sources text[]) RETURNS pglimit_lots
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
WITH was AS (
    SELECT u.number, CASE WHEN u.n = 1::bigint THEN ($1).units ELSE u.has END AS has, u.end_us, u.priority, u.source
    FROM ROWS FROM (pg_catalog.unnest(($1).numbers), pg_catalog.unnest(($1).lefts), pg_catalog.unnest(($1).ends_us), pg_catalog.unnest(($1).priorities), pg_catalog.unnest(($1).sources))
         WITH ORDINALITY AS u (number, has, end_us, priority, source, n)
), is_now AS (
    SELECT u.number, CASE WHEN u.n = 1::bigint THEN ($2).units ELSE u.has END AS has, u.end_us, u.priority, u.source
    FROM ROWS FROM (pg_catalog.unnest(($2).numbers), pg_catalog.unnest(($2).lefts), pg_catalog.unnest(($2).ends_us), pg_catalog.unnest(($2).priorities), pg_catalog.unnest(($2).sources))
         WITH ORDINALITY AS u (number, has, end_us, priority, source, n)
), taken AS (
    SELECT u.number, u.units, u.end_us, u.priority, u.source,
           coalesce(sum(u.units) OVER (ORDER BY u.n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0::float8) AS before
    FROM ROWS FROM (pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9), pg_catalog.unnest($10))
         WITH ORDINALITY AS u (number, units, end_us, priority, source, n)
    WHERE $5 IS NOT NULL
), each AS (
    SELECT w.number, -w.has AS got, w.end_us, w.priority, w.source FROM was AS w WHERE (w.end_us <= $3) = $4
    UNION ALL SELECT i.number, i.has, i.end_us, i.priority, i.source FROM is_now AS i WHERE NOT $4
    UNION ALL SELECT p.number, (p.units - LEAST(p.units, GREATEST(0::float8, $5 - p.before))) * CASE WHEN $4 THEN -1::float8 ELSE 1::float8 END, p.end_us, p.priority, p.source
              FROM taken AS p WHERE p.number > 0::bigint AND p.end_us <= $3
    UNION ALL SELECT 0, coalesce(($1).paid, 0::float8) - ($2).paid, 9223372036854775807, 9223372036854775807, '' WHERE NOT $4
), summed AS (
    SELECT e.number, sum(e.got) AS got, e.end_us, e.priority, e.source FROM each AS e GROUP BY e.number, e.end_us, e.priority, e.source
)
SELECT 0::float8, 0::float8, 0::bigint, 0::float8,
       coalesce(pg_catalog.array_agg(s.number ORDER BY s.priority, s.end_us, s.number), '{}'), coalesce(pg_catalog.array_agg(s.got ORDER BY s.priority, s.end_us, s.number), '{}'),
       coalesce(pg_catalog.array_agg(s.end_us ORDER BY s.priority, s.end_us, s.number), '{}'), coalesce(pg_catalog.array_agg(s.priority ORDER BY s.priority, s.end_us, s.number), '{}'),
       coalesce(pg_catalog.array_agg(s.source ORDER BY s.priority, s.end_us, s.number), '{}'), 0::float8,
       NULL::bigint[], NULL::float8[], NULL::bigint[], NULL::bigint[], NULL::text[]
FROM summed AS s WHERE s.got <> 0::float8 $$;
-- +goose StatementEnd

-- +goose Down
DROP TABLE pglimit_ledger;
DROP FUNCTION pglimit_lots_changed(pglimit_lots, pglimit_lots, bigint, bool, float8, bigint[], float8[], bigint[], bigint[], text[]);
