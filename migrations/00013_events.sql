-- The marks that keys have reached, such as 80 % of a limit: one row for each key, mark and
-- window. The statement of the decision inserts it, so both are committed or neither is.
-- Decisions under policies without marks neither read nor write this table.

-- +goose Up
CREATE TABLE pglimit_event (
    mark              bigint NOT NULL,                   -- the part of limit_units, in millionths
    window_ends_at_us bigint NOT NULL,                   -- the window's end, its name: the next one records anew
    at_us             bigint NOT NULL,                   -- of the decision
    level             float8 NOT NULL,                   -- units in use after it
    limit_units       float8 NOT NULL,                   -- of the policy: its burst
    due_at_us         bigint NOT NULL,                   -- of the next delivery
    delivered_at_us   bigint NOT NULL DEFAULT 0,         -- 0: not yet
    attempts          bigint NOT NULL DEFAULT 0,         -- deliveries that were begun
    policy            text COLLATE "C" NOT NULL,
    key               text COLLATE "C" NOT NULL,         -- or its HMAC, as in the tables of the algorithms
    algorithm         text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_event_pkey PRIMARY KEY (policy, key, algorithm, mark, window_ends_at_us)
);
CREATE INDEX pglimit_event_due ON pglimit_event (due_at_us) WHERE delivered_at_us = 0;
CREATE INDEX pglimit_event_window ON pglimit_event (window_ends_at_us);

-- +goose Down
DROP TABLE pglimit_event;
