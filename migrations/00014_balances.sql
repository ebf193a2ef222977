-- Prepaid units: a row for each policy and key, with what is left of its grants. Times and the
-- order of the columns are as in the tables of the other algorithms.
--
-- A lot is the units of one grant. The arrays have the lots with units, in the order in which they
-- are spent: by priority, end and number. A usual decision spends from the first lot alone, so what
-- that has is in units; its element of lefts is older. In every row
--   total_granted + debt = units + later + total_spent + total_expired
-- but for the rounding of fractions. A lot that has expired counts until a statement sees it.

-- +goose Up
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
    entries          bigint NOT NULL DEFAULT 0,  -- the number of the last entry in pglimit_ledger, negated if the row has changed since without one
    entries_before   bigint NOT NULL DEFAULT 0,  -- what entries was before the last decision that entered
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
    was              pglimit_lots,  -- the account before the last decision that entered, with its debt as paid
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_balance_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_balance_expires ON pglimit_balance (expires_at_us);
ALTER TABLE pglimit_balance SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- The bodies of these functions do not name the type: on a shard they run where the search_path has
-- pg_catalog alone.
--
-- pglimit_lots_spend drops the lots that have expired at a time and spends from the others. It gives
-- the part of each. Sums are of the lots in their order, so that the library computes the same bits.
-- A function in SQL would be planned again in each statement, which takes ten times as long.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lots_spend(l pglimit_lots, at bigint, spend float8) RETURNS pglimit_lots
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    numbers bigint[] := l.numbers;
    lefts float8[] := l.lefts;
    ends_us bigint[] := l.ends_us;
    priorities bigint[] := l.priorities;
    sources text[] := l.sources;
    all_units float8 := l.units + l.later;
    before float8 := 0;
    has float8 := l.units;
    gave float8;
BEGIN
    SELECT 0, 0, 9223372036854775807, 0, '{}', '{}', '{}', '{}', '{}', 0 INTO l;
    FOR n IN 1 .. cardinality(numbers) LOOP
        IF n > 1 THEN
            has := lefts[n];
        END IF;
        IF ends_us[n] <= at THEN
            l.expired := l.expired + has;
            CONTINUE;
        END IF;
        gave := GREATEST(0, LEAST(has, spend - before));
        before := before + has;
        has := has - gave;
        IF gave > 0 THEN
            l.part_numbers := l.part_numbers || numbers[n];
            l.part_units := l.part_units || gave;
            l.part_ends_us := l.part_ends_us || ends_us[n];
            l.part_priorities := l.part_priorities || priorities[n];
            l.part_sources := l.part_sources || sources[n];
        END IF;
        IF has > 0 AND (spend = 0 OR spend < all_units) THEN
            IF l.numbers = '{}' THEN
                l.units := has;
            ELSE
                l.later := l.later + has;
            END IF;
            l.next_end_us := LEAST(l.next_end_us, ends_us[n]);
            l.numbers := l.numbers || numbers[n];
            l.lefts := l.lefts || has;
            l.ends_us := l.ends_us || ends_us[n];
            l.priorities := l.priorities || priorities[n];
            l.sources := l.sources || sources[n];
        END IF;
    END LOOP;
    IF spend > all_units THEN
        l.part_numbers := l.part_numbers || 0::bigint;
        l.part_units := l.part_units || spend - all_units;
        l.part_ends_us := l.part_ends_us || 0::bigint;
        l.part_priorities := l.part_priorities || 0::bigint;
        l.part_sources := l.part_sources || ''::text;
    END IF;
    RETURN l;
END $$;
-- +goose StatementEnd

-- pglimit_lots_add adds units to the lot of a number, or that lot in its place.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lots_add(l pglimit_lots, number bigint, units float8, end_us bigint, priority bigint, source text) RETURNS pglimit_lots
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    place integer;
BEGIN
    IF l.numbers <> '{}' THEN
        l.lefts[1] := l.units;
    END IF;
    place := array_position(l.numbers, number);
    IF place IS NULL THEN
        place := 1;
        WHILE (l.priorities[place], l.ends_us[place], l.numbers[place]) < (priority, end_us, number) LOOP
            place := place + 1;
        END LOOP;
        l.numbers := l.numbers[: place - 1] || number || l.numbers[place :];
        l.lefts := l.lefts[: place - 1] || 0::float8 || l.lefts[place :];
        l.ends_us := l.ends_us[: place - 1] || end_us || l.ends_us[place :];
        l.priorities := l.priorities[: place - 1] || priority || l.priorities[place :];
        l.sources := l.sources[: place - 1] || source || l.sources[place :];
    END IF;
    l.lefts[place] := l.lefts[place] + units;
    l.units := coalesce(l.lefts[1], 0);
    l.later := 0;
    l.next_end_us := 9223372036854775807;
    FOR n IN 1 .. cardinality(l.numbers) LOOP
        l.later := l.later + CASE WHEN n > 1 THEN l.lefts[n] ELSE 0 END;
        l.next_end_us := LEAST(l.next_end_us, l.ends_us[n]);
    END LOOP;
    RETURN l;
END $$;
-- +goose StatementEnd

-- pglimit_lots_return gives back what a reservation took of lots, but for the units that stay, the
-- last taken first. Units of a lot that has expired are lost. The others pay the debt, and the rest
-- goes to its lot, which is made again if it was used up. What was taken as a debt goes to the lot
-- that is spent last, or without any to one of the number made, which does not expire.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lots_return(l pglimit_lots, at bigint, stay float8, debt float8, made bigint,
                                    part_numbers bigint[], part_units float8[], part_ends_us bigint[], part_priorities bigint[], part_sources text[]) RETURNS pglimit_lots
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last integer := cardinality(l.numbers);
    last_number bigint := coalesce(l.numbers[last], made);
    last_end_us bigint := coalesce(l.ends_us[last], 9223372036854775807);
    last_priority bigint := coalesce(l.priorities[last], 0);
    last_source text := coalesce(l.sources[last], 'refund');
    number bigint;
    end_us bigint;
    priority bigint;
    source text;
    before float8 := 0;
    back float8[] := '{}';
    units float8;
    place integer;
BEGIN
    IF l.numbers <> '{}' THEN
        l.lefts[1] := l.units;
    END IF;
    FOR n IN 1 .. cardinality(part_units) LOOP
        back := back || part_units[n] - LEAST(part_units[n], GREATEST(0, stay - before));
        before := before + part_units[n];
    END LOOP;
    l.expired := 0;
    l.paid := 0;
    FOR n IN REVERSE cardinality(part_units) .. 1 LOOP
        number := coalesce(part_numbers[n], 0);
        end_us := part_ends_us[n];
        priority := part_priorities[n];
        source := part_sources[n];
        IF number > 0 AND end_us <= at THEN
            l.expired := l.expired + back[n];
            CONTINUE;
        END IF;
        units := back[n] - LEAST(back[n], GREATEST(0, debt - l.paid));
        l.paid := l.paid + back[n];
        CONTINUE WHEN units <= 0;
        IF number = 0 THEN
            number := last_number;
            end_us := last_end_us;
            priority := last_priority;
            source := last_source;
        END IF;
        place := array_position(l.numbers, number);
        IF place IS NULL THEN
            place := 1;
            WHILE (l.priorities[place], l.ends_us[place], l.numbers[place]) < (priority, end_us, number) LOOP
                place := place + 1;
            END LOOP;
            l.numbers := l.numbers[: place - 1] || number || l.numbers[place :];
            l.lefts := l.lefts[: place - 1] || 0::float8 || l.lefts[place :];
            l.ends_us := l.ends_us[: place - 1] || end_us || l.ends_us[place :];
            l.priorities := l.priorities[: place - 1] || priority || l.priorities[place :];
            l.sources := l.sources[: place - 1] || source || l.sources[place :];
        END IF;
        l.lefts[place] := l.lefts[place] + units;
    END LOOP;
    l.paid := LEAST(debt, l.paid);
    l.units := coalesce(l.lefts[1], 0);
    l.later := 0;
    l.next_end_us := 9223372036854775807;
    FOR n IN 1 .. cardinality(l.numbers) LOOP
        l.later := l.later + CASE WHEN n > 1 THEN l.lefts[n] ELSE 0 END;
        l.next_end_us := LEAST(l.next_end_us, l.ends_us[n]);
    END LOOP;
    RETURN l;
END $$;
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
DROP TABLE pglimit_balance;
DROP TYPE pglimit_lots;
