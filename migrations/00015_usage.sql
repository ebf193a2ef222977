-- The units that keys have spent in each hour or day: a row for each policy, key and span. The
-- statement of the decision adds to it, so both are committed or neither is. Decisions under
-- policies without usage_by neither read nor write this table.

-- +goose Up
CREATE TABLE pglimit_usage (
    units     float8 NOT NULL,            -- spent, less those given back
    at_us     bigint NOT NULL,            -- where the hour or the day begins, in UTC
    until_us  bigint NOT NULL,            -- from when the janitor deletes the row
    policy    text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,  -- or its HMAC, as in the tables of the algorithms
    algorithm text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_usage_pkey PRIMARY KEY (policy, key, algorithm, at_us)
);
CREATE INDEX pglimit_usage_until ON pglimit_usage (until_us);
ALTER TABLE pglimit_usage SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);

-- +goose Down
DROP TABLE pglimit_usage;
