-- Programs that follow the policies, for people who ask who runs what: each has one row,
-- which it writes every two minutes by default. A program deletes its row when it ends, and
-- the others delete rows that are a day old. No decision reads this table.

-- +goose Up
CREATE TABLE pglimit_program (
    policies_version bigint NOT NULL,                    -- of the policies and overrides that it has loaded
    pid              bigint NOT NULL,
    heartbeat_s      float8 NOT NULL,                    -- seconds between two writes
    started_at       timestamptz NOT NULL,               -- when it opened the policies
    seen_at          timestamptz NOT NULL,               -- the last write
    instance         text COLLATE "C" NOT NULL,          -- random, for each policies.Open
    name             text COLLATE "C" NOT NULL,
    host             text COLLATE "C" NOT NULL,
    library          text COLLATE "C" NOT NULL,          -- version of pglimit
    defaults         jsonb NOT NULL,                     -- its default policies, by name: a list of limiter.Policy
    CONSTRAINT pglimit_program_pkey PRIMARY KEY (instance),
    CONSTRAINT "started_at and seen_at are after 1969 and before 10000" CHECK (started_at >= '1970-01-01 00:00:00+00'::timestamptz AND started_at < '10000-01-01 00:00:00+00'::timestamptz
        AND seen_at >= '1970-01-01 00:00:00+00'::timestamptz AND seen_at < '10000-01-01 00:00:00+00'::timestamptz),
    CONSTRAINT "heartbeat_s is from 0 to a day" CHECK (heartbeat_s BETWEEN 0::float8 AND 86400::float8),
    CONSTRAINT "texts have at most 1,000 bytes" CHECK (octet_length(instance) <= 1000 AND octet_length(name) <= 1000 AND octet_length(host) <= 1000 AND octet_length(library) <= 1000)
);

-- +goose Down
DROP TABLE pglimit_program;
