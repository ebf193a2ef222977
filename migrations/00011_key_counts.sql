-- How many keys have a row, of the policies with max_keys: one row for each policy and
-- table of limits. A process takes permits for new rows from it, a few at a time, and counts
-- them here before it inserts. So keys is never less than the number of rows. The janitor
-- takes off the rows that it deletes, and counts again for what was never inserted.
--
-- A decision for a key that has a row neither reads nor locks this table.

-- +goose Up
CREATE TABLE pglimit_key_count (
    keys          bigint NOT NULL,                       -- rows, and permits for more
    max_keys      bigint NOT NULL,                       -- of the policy, at the last permit
    granted       bigint NOT NULL,                       -- permits, at the last taking
    taken_at_us   bigint NOT NULL,                       -- the last permit or reset of a key
    counted_at_us bigint NOT NULL,                       -- when the janitor last counted the rows
    policy        text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,             -- always '', which is no caller's key
    algorithm     text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_key_count_pkey PRIMARY KEY (policy, key, algorithm)
);

-- +goose Down
DROP TABLE pglimit_key_count;
