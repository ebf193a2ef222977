-- Slots: at most so many units of a key are held at a time. Times and the order of the columns are
-- as in the tables of the other algorithms. A slot that has ended stays in its row until the next
-- statement on the row takes it out.

-- +goose Up
CREATE TABLE pglimit_slot (
    held             bigint NOT NULL DEFAULT 0,     -- the sum of costs
    limit_units      bigint NOT NULL DEFAULT 0,     -- the policy's numbers, as of the last Acquire
    period_us        bigint NOT NULL DEFAULT 0,
    fence            bigint NOT NULL DEFAULT 0,     -- of the last slot; it only grows
    blocked_until_us bigint NOT NULL DEFAULT 0,
    updated_at_us    bigint NOT NULL,
    expires_at_us    bigint NOT NULL,
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    ids              text[] NOT NULL DEFAULT '{}',  -- of the slots, in the order of their ends
    costs            bigint[] NOT NULL DEFAULT '{}',
    ends             bigint[] NOT NULL DEFAULT '{}',
    CONSTRAINT pglimit_slot_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_slot_expires ON pglimit_slot (expires_at_us);
ALTER TABLE pglimit_slot SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- pglimit_slot_units returns the sum of costs.
-- +goose StatementBegin
CREATE FUNCTION pglimit_slot_units(costs bigint[]) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$ SELECT coalesce(pg_catalog.sum(c), 0)::bigint FROM pg_catalog.unnest(costs) AS c $$;
-- +goose StatementEnd

-- pglimit_slot_free_at returns the end of the first slot with which slots of so many units have
-- ended: 0 if that is none.
-- +goose StatementBegin
CREATE FUNCTION pglimit_slot_free_at(costs bigint[], ends bigint[], units bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN units <= 0 THEN 0 ELSE coalesce(pg_catalog.min(s.ends_at), 0) END
    FROM (SELECT ends[i] AS ends_at, pg_catalog.sum(costs[i]) OVER (ORDER BY i) AS ended
          FROM pg_catalog.generate_series(1, pg_catalog.cardinality(costs)) AS i) AS s
    WHERE s.ended >= units::numeric $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION pglimit_slot_free_at(bigint[], bigint[], bigint);
DROP FUNCTION pglimit_slot_units(bigint[]);
DROP TABLE pglimit_slot;
