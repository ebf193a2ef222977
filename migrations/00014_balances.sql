-- Prepaid units: a row for each policy and key, with what is left of its grants. Times and the
-- order of the columns are as in the tables of the other algorithms.
--
-- A lot is the units of one grant. The arrays have the lots with units, in the order in which they
-- are spent: by priority, end and number. A usual decision spends from the first lot alone, so what
-- that has is in units; its element of lefts is older. In every row
--   total_granted + debt = units + later + total_spent + total_expired
-- but for the rounding of fractions. A lot that has expired counts until a statement sees it.

-- +goose Up
CREATE TABLE pglimit_balance (
    units            float8 NOT NULL DEFAULT 0,  -- what the first lot has
    later            float8 NOT NULL DEFAULT 0,  -- what the other lots have
    debt             float8 NOT NULL DEFAULT 0,  -- spent without units; a grant pays it first
    total_granted    float8 NOT NULL DEFAULT 0,
    total_spent      float8 NOT NULL DEFAULT 0,
    total_expired    float8 NOT NULL DEFAULT 0,
    capacity         float8 NOT NULL,            -- the policy's overdraft, as of the last decision
    next_end_us      bigint NOT NULL DEFAULT 9223372036854775807,  -- the first end of a lot
    lots_made        bigint NOT NULL DEFAULT 0,  -- the number of the last lot
    block_for_us     bigint NOT NULL DEFAULT 0,  -- the policy's, as of the last decision
    updated_at_us    bigint NOT NULL,
    blocked_until_us bigint NOT NULL,
    decided_at_us    bigint NOT NULL DEFAULT 0,
    expires_at_us    bigint NOT NULL,
    requested        float8 NOT NULL DEFAULT 0,  -- the last decision: the number of requests
    cost             float8 NOT NULL,
    granted          float8 NOT NULL,
    numbers          bigint[] NOT NULL DEFAULT '{}',
    lefts            float8[] NOT NULL DEFAULT '{}',
    ends_us          bigint[] NOT NULL DEFAULT '{}',  -- 9223372036854775807: it does not expire
    priorities       bigint[] NOT NULL DEFAULT '{}',
    sources          text[] NOT NULL DEFAULT '{}',    -- what was bought
    part_numbers     bigint[],  -- the last decision: the lots that it spent from, in their order, and 0 for a debt.
    part_units       float8[],  -- NULL: the first lot alone, which has units left; or a debt alone
    part_ends_us     bigint[],
    part_priorities  bigint[],
    part_sources     text[],
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_balance_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_balance_expires ON pglimit_balance (expires_at_us);
ALTER TABLE pglimit_balance SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- What the functions of lots take and give.
CREATE TYPE pglimit_lots AS (
    units       float8,
    later       float8,
    next_end_us bigint,
    expired     float8,  -- given: what lots had that were dropped because they had expired, or would have
    numbers     bigint[],
    lefts       float8[],
    ends_us     bigint[],
    priorities  bigint[],
    sources     text[],
    paid        float8,  -- given: what went back to the debt
    part_numbers    bigint[],  -- given: what was spent of each lot, and of 0 as a debt; NULL: nothing
    part_units      float8[],
    part_ends_us    bigint[],
    part_priorities bigint[],
    part_sources    text[]
);

-- The bodies of these functions do not name the type: on a shard they run where the search_path has
-- pg_catalog alone.
--
-- pglimit_lots_spend drops the lots that have expired at a time and spends from the others. It gives
-- the part of each. Sums
-- are of the lots in their order, so that the library computes the same bits.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lots_spend(l pglimit_lots, at bigint, spend float8) RETURNS pglimit_lots
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
WITH each AS (
    SELECT u.n, u.number, CASE WHEN u.n = 1::bigint THEN ($1).units ELSE u.has END AS has, u.end_us, u.priority, u.source
    FROM ROWS FROM (pg_catalog.unnest(($1).numbers), pg_catalog.unnest(($1).lefts), pg_catalog.unnest(($1).ends_us), pg_catalog.unnest(($1).priorities), pg_catalog.unnest(($1).sources))
         WITH ORDINALITY AS u (number, has, end_us, priority, source, n)
), live AS (
    SELECT e.n, e.number, e.has, e.end_us, e.priority, e.source,
           coalesce(sum(e.has) OVER (ORDER BY e.n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0::float8) AS before
    FROM each AS e WHERE e.end_us > $2
), spent AS (
    SELECT v.n, v.number, v.has, GREATEST(0::float8, LEAST(v.has, $3 - v.before)) AS gave, v.end_us, v.priority, v.source FROM live AS v
), kept AS (
    SELECT s.n, s.number, s.has - s.gave AS has, s.end_us, s.priority, s.source, row_number() OVER (ORDER BY s.n) AS place
    FROM spent AS s WHERE s.has - s.gave > 0::float8 AND ($3 = 0::float8 OR $3 < ($1).units + ($1).later)
), parts AS (
    SELECT pg_catalog.array_agg(s.number ORDER BY s.n) AS numbers, pg_catalog.array_agg(s.gave ORDER BY s.n) AS units, pg_catalog.array_agg(s.end_us ORDER BY s.n) AS ends_us,
           pg_catalog.array_agg(s.priority ORDER BY s.n) AS priorities, pg_catalog.array_agg(s.source ORDER BY s.n) AS sources
    FROM (SELECT v.n, v.number, v.gave, v.end_us, v.priority, v.source FROM spent AS v WHERE v.gave > 0::float8
          UNION ALL SELECT 9223372036854775807, 0, $3 - (($1).units + ($1).later), 0, 0, '' WHERE $3 > ($1).units + ($1).later) AS s
)
SELECT coalesce(sum(k.has) FILTER (WHERE k.place = 1::bigint), 0::float8), coalesce(sum(k.has ORDER BY k.n) FILTER (WHERE k.place > 1::bigint), 0::float8),
           coalesce(min(k.end_us), 9223372036854775807), (SELECT coalesce(sum(e.has ORDER BY e.n), 0::float8) FROM each AS e WHERE e.end_us <= $2),
           coalesce(pg_catalog.array_agg(k.number ORDER BY k.n), '{}'), coalesce(pg_catalog.array_agg(k.has ORDER BY k.n), '{}'), coalesce(pg_catalog.array_agg(k.end_us ORDER BY k.n), '{}'),
           coalesce(pg_catalog.array_agg(k.priority ORDER BY k.n), '{}'), coalesce(pg_catalog.array_agg(k.source ORDER BY k.n), '{}'), 0::float8,
           (SELECT p.numbers FROM parts AS p), (SELECT p.units FROM parts AS p), (SELECT p.ends_us FROM parts AS p), (SELECT p.priorities FROM parts AS p), (SELECT p.sources FROM parts AS p)
FROM kept AS k $$;
-- +goose StatementEnd

-- pglimit_lots_add adds units to the lot of a number, or that lot in its place.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lots_add(l pglimit_lots, number bigint, units float8, end_us bigint, priority bigint, source text) RETURNS pglimit_lots
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
WITH each AS (
    SELECT u.number, CASE WHEN u.n = 1::bigint THEN ($1).units ELSE u.has END AS has, u.end_us, u.priority, u.source
    FROM ROWS FROM (pg_catalog.unnest(($1).numbers), pg_catalog.unnest(($1).lefts), pg_catalog.unnest(($1).ends_us), pg_catalog.unnest(($1).priorities), pg_catalog.unnest(($1).sources))
         WITH ORDINALITY AS u (number, has, end_us, priority, source, n)
    UNION ALL SELECT $2, $3, $4, $5, $6
), placed AS (
    SELECT e.number, sum(e.has) AS has, e.end_us, e.priority, e.source, row_number() OVER (ORDER BY e.priority, e.end_us, e.number) AS place
    FROM each AS e GROUP BY e.number, e.end_us, e.priority, e.source
)
SELECT sum(k.has) FILTER (WHERE k.place = 1::bigint), coalesce(sum(k.has ORDER BY k.place) FILTER (WHERE k.place > 1::bigint), 0::float8),
           min(k.end_us), ($1).expired,
           pg_catalog.array_agg(k.number ORDER BY k.place), pg_catalog.array_agg(k.has ORDER BY k.place), pg_catalog.array_agg(k.end_us ORDER BY k.place),
           pg_catalog.array_agg(k.priority ORDER BY k.place), pg_catalog.array_agg(k.source ORDER BY k.place), ($1).paid,
           ($1).part_numbers, ($1).part_units, ($1).part_ends_us, ($1).part_priorities, ($1).part_sources
FROM placed AS k $$;
-- +goose StatementEnd

-- pglimit_lots_return gives back what a reservation took of lots, but for the units that stay, the
-- last taken first. Units of a lot that has expired are lost. The others pay the debt, and the rest
-- goes to its lot, which is made again if it was used up. What was taken as a debt goes to the lot
-- that is spent last, or without any to one of the number made, which does not expire.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lots_return(l pglimit_lots, at bigint, stay float8, debt float8, made bigint,
                                    part_numbers bigint[], part_units float8[], part_ends_us bigint[], part_priorities bigint[], part_sources text[]) RETURNS pglimit_lots
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
WITH each AS (
    SELECT u.n, u.number, CASE WHEN u.n = 1::bigint THEN ($1).units ELSE u.has END AS has, u.end_us, u.priority, u.source
    FROM ROWS FROM (pg_catalog.unnest(($1).numbers), pg_catalog.unnest(($1).lefts), pg_catalog.unnest(($1).ends_us), pg_catalog.unnest(($1).priorities), pg_catalog.unnest(($1).sources))
         WITH ORDINALITY AS u (number, has, end_us, priority, source, n)
), taken AS (
    SELECT u.n, u.number, u.units, u.end_us, u.priority, u.source,
           coalesce(sum(u.units) OVER (ORDER BY u.n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0::float8) AS before
    FROM ROWS FROM (pg_catalog.unnest($6), pg_catalog.unnest($7), pg_catalog.unnest($8), pg_catalog.unnest($9), pg_catalog.unnest($10))
         WITH ORDINALITY AS u (number, units, end_us, priority, source, n)
), back AS (
    SELECT p.n, p.number, p.units - LEAST(p.units, GREATEST(0::float8, $3 - p.before)) AS units, p.end_us, p.priority, p.source,
           coalesce(p.number, 0::bigint) > 0::bigint AND p.end_us <= $2 AS lost
    FROM taken AS p
), rest AS (
    SELECT b.n, b.number, b.end_us, b.priority, b.source,
           b.units - LEAST(b.units, GREATEST(0::float8, $4 - coalesce(sum(b.units) OVER (ORDER BY b.n DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0::float8))) AS units
    FROM back AS b WHERE NOT b.lost
), gives AS (
    SELECT 0::bigint AS turn, e.number, e.has, e.end_us, e.priority, e.source FROM each AS e
    UNION ALL
    SELECT 9223372036854775807 - r.n, r.number, r.units, r.end_us, r.priority, r.source FROM rest AS r WHERE r.units > 0::float8 AND coalesce(r.number, 0::bigint) > 0::bigint
    UNION ALL
    SELECT 9223372036854775807 - r.n, coalesce(f.number, $5), r.units, coalesce(f.end_us, 9223372036854775807), coalesce(f.priority, 0::bigint), coalesce(f.source, 'refund')
    FROM rest AS r LEFT JOIN (SELECT e.number, e.end_us, e.priority, e.source FROM each AS e ORDER BY e.n DESC LIMIT 1) AS f ON true
    WHERE r.units > 0::float8 AND coalesce(r.number, 0::bigint) = 0::bigint
), summed AS (
    SELECT g.number, sum(g.has ORDER BY g.turn) AS has, min(g.end_us) AS end_us, min(g.priority) AS priority, (pg_catalog.array_agg(g.source ORDER BY g.turn))[1] AS source
    FROM gives AS g GROUP BY g.number
), placed AS (
    SELECT s.number, s.has, s.end_us, s.priority, s.source, row_number() OVER (ORDER BY s.priority, s.end_us, s.number) AS place FROM summed AS s
)
SELECT coalesce(sum(k.has) FILTER (WHERE k.place = 1::bigint), 0::float8), coalesce(sum(k.has ORDER BY k.place) FILTER (WHERE k.place > 1::bigint), 0::float8),
           coalesce(min(k.end_us), 9223372036854775807), (SELECT coalesce(sum(b.units ORDER BY b.n DESC), 0::float8) FROM back AS b WHERE b.lost),
           coalesce(pg_catalog.array_agg(k.number ORDER BY k.place), '{}'), coalesce(pg_catalog.array_agg(k.has ORDER BY k.place), '{}'), coalesce(pg_catalog.array_agg(k.end_us ORDER BY k.place), '{}'),
           coalesce(pg_catalog.array_agg(k.priority ORDER BY k.place), '{}'), coalesce(pg_catalog.array_agg(k.source ORDER BY k.place), '{}'),
           (SELECT LEAST($4, coalesce(sum(b.units ORDER BY b.n DESC), 0::float8)) FROM back AS b WHERE NOT b.lost),
           NULL::bigint[], NULL::float8[], NULL::bigint[], NULL::bigint[], NULL::text[]
FROM placed AS k $$;
-- +goose StatementEnd

-- It sums the lots as pglimit_lots_spend does, but does not call it: Citus takes a view that uses a
-- function and its type for a circular dependency.
CREATE VIEW pglimit_balance_now AS
SELECT t.policy, t.key, l.units, t.debt, l.lots,
       CASE WHEN l.next_end_us < 9223372036854775807 THEN to_timestamp(l.next_end_us::float8 / 1000000::float8) END AS next_end_at,
       t.total_granted AS granted, t.total_spent AS spent, t.total_expired + l.expired AS expired,
       to_timestamp(t.updated_at_us::float8 / 1000000::float8) AS updated_at,
       CASE WHEN t.blocked_until_us > c.us THEN to_timestamp(t.blocked_until_us::float8 / 1000000::float8) END AS blocked_until
FROM (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c, pglimit_balance AS t,
     LATERAL (SELECT coalesce(sum(e.has ORDER BY e.n) FILTER (WHERE e.live), 0::float8) AS units, count(*) FILTER (WHERE e.live AND e.has > 0::float8)::integer AS lots,
                     min(e.end_us) FILTER (WHERE e.live AND e.has > 0::float8) AS next_end_us, coalesce(sum(e.has ORDER BY e.n) FILTER (WHERE NOT e.live), 0::float8) AS expired
              FROM (SELECT u.n, CASE WHEN u.n = 1::bigint THEN t.units ELSE u.has END AS has, u.end_us, u.end_us > GREATEST(t.updated_at_us, c.us) AS live
                    FROM ROWS FROM (pg_catalog.unnest(t.lefts), pg_catalog.unnest(t.ends_us)) WITH ORDINALITY AS u (has, end_us, n)) AS e) AS l;

-- +goose Down
DROP VIEW pglimit_balance_now;
DROP FUNCTION pglimit_lots_return(pglimit_lots, bigint, float8, float8, bigint, bigint[], float8[], bigint[], bigint[], text[]);
DROP FUNCTION pglimit_lots_add(pglimit_lots, bigint, float8, bigint, bigint, text);
DROP FUNCTION pglimit_lots_spend(pglimit_lots, bigint, float8);
DROP TYPE pglimit_lots;
DROP TABLE pglimit_balance;
