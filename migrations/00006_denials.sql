-- Denials of the last hours by policy and key, for people who ask who was limited, and
-- the last sweep of a janitor. Programs with a DenialLog add up denials in memory and
-- write the sums every few seconds. The SQL functions add those of policies with
-- count_denials one by one, in the caller's transaction. A row is for one minute. The
-- janitor merges rows of more than an hour ago, so that one is for up to ten minutes.

-- +goose Up
CREATE TABLE pglimit_denial (
    denials           bigint NOT NULL,                   -- in the minute from slot_us on
    shadowed          bigint NOT NULL,                   -- of these, those that a shadow policy let pass
    blocked           bigint NOT NULL DEFAULT 0,         -- and those by their reason; all others are by the limit
    above_burst       bigint NOT NULL DEFAULT 0,         -- their cost can never fit
    overloaded        bigint NOT NULL DEFAULT 0,         -- too many callers waited for the database
    units             float8 NOT NULL,                   -- requested by them
    slot_us           bigint NOT NULL,
    last_denied_at_us bigint NOT NULL,
    retry_at_us       bigint NOT NULL DEFAULT 0,         -- when all would fit that ever can, as of their denials
    merged            bool NOT NULL DEFAULT false,       -- of several minutes
    policy            text COLLATE "C" NOT NULL,
    key               text COLLATE "C" NOT NULL,         -- '': all keys for which there was no room
    algorithm         text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_denial_pkey PRIMARY KEY (policy, key, algorithm, slot_us)
);
CREATE INDEX pglimit_denial_slot ON pglimit_denial (slot_us);

CREATE TABLE pglimit_sweep (
    swept_at_us          bigint NOT NULL,                -- end of the last complete sweep
    took_us              bigint NOT NULL,
    removed              bigint NOT NULL,                -- rows
    kept                 bigint NOT NULL,                -- rows that were due and not empty
    reservations_expired bigint NOT NULL,
    name                 text COLLATE "C" NOT NULL,      -- of the lease
    holder               text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_sweep_pkey PRIMARY KEY (name)
);

-- +goose Down
DROP TABLE pglimit_sweep;
DROP TABLE pglimit_denial;
