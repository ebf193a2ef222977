-- One table per algorithm, one row per policy and key. gcra decides as token_bucket does, on
-- the same rows. All times are microseconds
-- since 1970-01-01 UTC: bigint arithmetic is IMMUTABLE and exact, timestamptz
-- arithmetic is neither. Only plain CREATE TABLE is used, so that databases that
-- merely speak PostgreSQL's protocol can run this file unchanged.
--
-- There are no CHECK constraints: PostgreSQL compiles them again in every statement,
-- which costs 4 to 9 % of a decision. The library checks costs and limits, and LEAST
-- and GREATEST keep the levels in range.
--
-- Columns of every table (eight-byte columns first, then texts, to avoid padding):
--   updated_at_us     the clock of the last decision; it never moves back
--   capacity          the largest level, as of the last decision; 0 in a row that a
--                     block made and no decision has used
--   blocked_until_us  end of the key's block; less than a second, or negative, if
--                     there was none. A new row has its policy's block_for here,
--                     negated, or its request's floor in millionths, for the upsert
--   decided_at_us     the clock of the last decision that found no block, so of the
--                     denial that began the block; 0 if an operator blocked the key
--   expires_at_us     when the janitor checks the row next and deletes it if it is
--                     empty. Decisions do not change it, so that all updates are HOT;
--                     the views return the time at which a row is really empty
--   cost, granted     the last decision: the cost of one request, and the number of
--                     requests granted; -1 if the key was blocked
--   policy, key       the policy's name; the key, or its HMAC

-- +goose Up
CREATE TABLE pglimit_leaky_bucket (
    level            float8 NOT NULL,  -- units in the bucket at leaked_at_us
    capacity         float8 NOT NULL,
    leak             float8 NOT NULL,  -- units that leak per tick
    tick_us          bigint NOT NULL,  -- 1 if the bucket leaks continuously
    leaked_at_us     bigint NOT NULL,  -- start of the current tick
    updated_at_us    bigint NOT NULL,
    blocked_until_us bigint NOT NULL,
    decided_at_us    bigint NOT NULL DEFAULT 0,
    expires_at_us    bigint NOT NULL,
    cost             float8 NOT NULL,
    granted          float8 NOT NULL,
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_leaky_bucket_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_leaky_bucket_expires ON pglimit_leaky_bucket (expires_at_us);

CREATE TABLE pglimit_leaky_bucket_queue (
    level            float8 NOT NULL,  -- units waiting at updated_at_us
    capacity         float8 NOT NULL,
    leak             float8 NOT NULL,  -- units that leave per microsecond
    ticket           bigint NOT NULL,  -- names the last place given; grows
    updated_at_us    bigint NOT NULL,
    blocked_until_us bigint NOT NULL,
    decided_at_us    bigint NOT NULL DEFAULT 0,
    expires_at_us    bigint NOT NULL,
    cost             float8 NOT NULL,
    granted          float8 NOT NULL,
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_leaky_bucket_queue_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_leaky_bucket_queue_expires ON pglimit_leaky_bucket_queue (expires_at_us);

CREATE TABLE pglimit_token_bucket (
    level            float8 NOT NULL,  -- burst less the tokens left, at updated_at_us
    capacity         float8 NOT NULL,
    leak             float8 NOT NULL,  -- tokens that come back per microsecond
    updated_at_us    bigint NOT NULL,
    blocked_until_us bigint NOT NULL,
    decided_at_us    bigint NOT NULL DEFAULT 0,
    expires_at_us    bigint NOT NULL,
    cost             float8 NOT NULL,
    granted          float8 NOT NULL,
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_token_bucket_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_token_bucket_expires ON pglimit_token_bucket (expires_at_us);

CREATE TABLE pglimit_fixed_window (
    level            float8 NOT NULL,  -- units counted in the window that ends at ends_at_us
    capacity         float8 NOT NULL,
    ends_at_us       bigint NOT NULL,  -- end of the window; it never moves back
    updated_at_us    bigint NOT NULL,
    blocked_until_us bigint NOT NULL,
    decided_at_us    bigint NOT NULL DEFAULT 0,
    expires_at_us    bigint NOT NULL,
    cost             float8 NOT NULL,
    granted          float8 NOT NULL,
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_fixed_window_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_fixed_window_expires ON pglimit_fixed_window (expires_at_us);

CREATE TABLE pglimit_sliding_window_counter (
    current          float8 NOT NULL,  -- units counted in the window that ends at ends_at_us
    previous         float8 NOT NULL,  -- units counted in the window before it
    capacity         float8 NOT NULL,
    ends_at_us       bigint NOT NULL,  -- end of the current window; it never moves back
    period_us        bigint NOT NULL,  -- length of each of the two windows
    updated_at_us    bigint NOT NULL,
    blocked_until_us bigint NOT NULL,
    decided_at_us    bigint NOT NULL DEFAULT 0,
    expires_at_us    bigint NOT NULL,
    cost             float8 NOT NULL,
    granted          float8 NOT NULL,
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_sliding_window_counter_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_sliding_window_counter_expires ON pglimit_sliding_window_counter (expires_at_us);

-- A decision costs the same at any limit. It writes the row again, but PostgreSQL does not
-- write again what stands out of line and has not changed. So a long log has parts, by age:
-- entries[: gap], older[taken + 1 :], middle, recent, entries[gap + 1 :]; likewise totals. A
-- usual decision drops from the begin of entries and appends to their end. If that uses up
-- entries[: gap], or makes more than 128, pglimit_log_move moves the newest to recent, and the
-- next 64 of older to entries: about once in 64 decisions. Once in 4,096 it makes older and
-- middle anew. A short log has no parts: gap is NULL, and all is in entries. A log that
-- has grown gets its parts by the next decision that adds an entry.
CREATE TABLE pglimit_sliding_window_log (
    base             float8 NOT NULL,  -- running total of the units that have left the window
    total            float8 NOT NULL,  -- running total of all units granted
    seen             float8 NOT NULL DEFAULT 0,  -- as base, at the last decision; a denial leaves base
    capacity         float8 NOT NULL,
    period_us        bigint NOT NULL,
    keep_us          bigint NOT NULL,  -- the longest period of any request: an entry may count for that long
    updated_at_us    bigint NOT NULL,
    blocked_until_us bigint NOT NULL,
    decided_at_us    bigint NOT NULL DEFAULT 0,
    expires_at_us    bigint NOT NULL,
    cost             float8 NOT NULL,
    granted          float8 NOT NULL,
    gap              integer,          -- number of the oldest entries in entries; NULL: all are there
    taken            integer,          -- number of entries of older that have been moved to entries
    entries          bigint[] NOT NULL,  -- times of the decisions in the window, oldest first
    totals           float8[] NOT NULL,  -- the running total before each entry
    older_entries    bigint[],
    older_totals     float8[],
    middle_entries   bigint[],
    middle_totals    float8[],
    recent_entries   bigint[],
    recent_totals    float8[],
    policy           text COLLATE "C" NOT NULL,
    key              text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_sliding_window_log_pkey PRIMARY KEY (policy, key)
);
CREATE INDEX pglimit_sliding_window_log_expires ON pglimit_sliding_window_log (expires_at_us);

-- pglimit_rebase subtracts base from all running totals. Totals that grew without end
-- would lose their last digits, so a log that never empties is rebased now and then.
-- +goose StatementBegin
CREATE FUNCTION pglimit_rebase(totals float8[], base float8) RETURNS float8[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(pg_catalog.array_agg(r.total - $2 ORDER BY r.n), '{}') FROM pg_catalog.unnest($1) WITH ORDINALITY AS r (total, n) $$;
-- +goose StatementEnd

-- pglimit_lower removes units from the middle of a log. It lowers the running totals up
-- to through to at most top, and the later ones by units.
-- +goose StatementBegin
CREATE FUNCTION pglimit_lower(totals float8[], through integer, top float8, units float8) RETURNS float8[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT coalesce(pg_catalog.array_agg(CASE WHEN r.n <= $2 THEN LEAST(r.total, $3) ELSE r.total - $4 END ORDER BY r.n), '{}')
      FROM pg_catalog.unnest($1) WITH ORDINALITY AS r (total, n) $$;
-- +goose StatementEnd

-- pglimit_log_step is the number of entries that move at once: entries holds up to 2 steps,
-- older and recent about a step of steps. The planner puts it into the statements.
-- +goose StatementBegin
CREATE FUNCTION pglimit_log_step() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 64 $$;
-- +goose StatementEnd

-- What pglimit_log_move takes and gives: the parts of a log.
CREATE TYPE pglimit_log AS (
    entries        bigint[],
    totals         float8[],
    gap            integer,
    taken          integer,
    older_entries  bigint[],
    older_totals   float8[],
    middle_entries bigint[],
    middle_totals  float8[],
    recent_entries bigint[],
    recent_totals  float8[],
    deep           boolean  -- given: middle is there; returned: older and middle have changed
);

-- pglimit_log_whole joins the parts of a log's entries, or of its totals.
-- +goose StatementBegin
CREATE FUNCTION pglimit_log_whole(near anyarray, gap integer, taken integer, older anyarray, middle anyarray, recent anyarray) RETURNS anyarray
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN $2 IS NULL THEN $1
             ELSE pg_catalog.array_cat(pg_catalog.array_cat(pg_catalog.array_cat(pg_catalog.array_cat($1[: $2], $4[$3 + 1 :]), $5), $6), $1[$2 + 1 :]) END $$;
-- +goose StatementEnd

-- pglimit_log_move makes room for another entry. It drops the first gone entries and, of the
-- other parts, those up to the time after. It moves step entries, see pglimit_log_step, and
-- subtracts minus from all totals. Older and middle of the result are new only if it is deep.
-- +goose StatementBegin
CREATE FUNCTION pglimit_log_move(l pglimit_log, step integer, gone integer, after bigint, minus float8) RETURNS pglimit_log
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    far constant integer := step * step;
    has constant integer := pg_catalog.cardinality(l.entries);
    newest constant integer := CASE WHEN l.gap IS NOT NULL THEN GREATEST(gone, l.gap) WHEN has - gone >= 2 * step THEN gone + step ELSE has END;
    newest_entries constant bigint[] := l.entries[newest + 1 :];
    newest_totals constant float8[] := l.totals[newest + 1 :];
    gone_there integer;
BEGIN
    l.entries := l.entries[gone + 1 : newest];
    l.totals := l.totals[gone + 1 : newest];
    IF l.gap IS NOT NULL OR newest < has THEN
        IF l.deep THEN
            l.older_entries := pg_catalog.array_cat(pg_catalog.array_cat(l.older_entries[l.taken + 1 :], l.middle_entries), l.recent_entries);
            l.older_totals := pg_catalog.array_cat(pg_catalog.array_cat(l.older_totals[l.taken + 1 :], l.middle_totals), l.recent_totals);
            gone_there := coalesce(pg_catalog.width_bucket(after, l.older_entries), 0);
            l.middle_entries := l.older_entries[gone_there + far + 1 :];
            l.middle_totals := l.older_totals[gone_there + far + 1 :];
            l.older_entries := l.older_entries[gone_there + 1 : gone_there + far];
            l.older_totals := l.older_totals[gone_there + 1 : gone_there + far];
            l.recent_entries := NULL;
            l.recent_totals := NULL;
            l.taken := 0;
        END IF;
        IF pg_catalog.cardinality(l.entries) = 0 THEN
            l.taken := GREATEST(l.taken, pg_catalog.width_bucket(after, l.older_entries));
            l.entries := coalesce(l.older_entries[l.taken + 1 : l.taken + step], '{}');
            l.totals := coalesce(l.older_totals[l.taken + 1 : l.taken + step], '{}');
            l.taken := l.taken + step;
        END IF;
        l.gap := pg_catalog.cardinality(l.entries);
        l.taken := coalesce(l.taken, 0);
        l.recent_entries := pg_catalog.array_cat(l.recent_entries, newest_entries);
        l.recent_totals := pg_catalog.array_cat(l.recent_totals, newest_totals);
        IF l.gap = 0 THEN -- all entries elsewhere are gone
            l := ROW(newest_entries, newest_totals, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, true);
        END IF;
    END IF;
    IF minus > 0::float8 THEN
        -- Where a shard's node runs this, it finds no other function of pglimit.
        l.totals := ARRAY(SELECT u.total - minus FROM pg_catalog.unnest(l.totals) WITH ORDINALITY AS u (total, n) ORDER BY u.n);
        l.older_totals := ARRAY(SELECT u.total - minus FROM pg_catalog.unnest(l.older_totals) WITH ORDINALITY AS u (total, n) ORDER BY u.n);
        l.middle_totals := ARRAY(SELECT u.total - minus FROM pg_catalog.unnest(l.middle_totals) WITH ORDINALITY AS u (total, n) ORDER BY u.n);
        l.recent_totals := ARRAY(SELECT u.total - minus FROM pg_catalog.unnest(l.recent_totals) WITH ORDINALITY AS u (total, n) ORDER BY u.n);
    END IF;
    RETURN l;
END $$;
-- +goose StatementEnd

-- pglimit_log_frees returns the time of the entry that must leave before need more units fit
-- into room, 0 if there is none: that up to which the running totals reach total - (room -
-- need), up to rounding. Entries closer than the rounding error are tried from the first on,
-- with the arithmetic of a decision. NULL: it may be behind the gap.
-- +goose StatementBegin
CREATE FUNCTION pglimit_log_frees(entries bigint[], totals float8[], gap integer, total float8, room float8, need float8) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    first constant integer := pg_catalog.width_bucket(total - (room - need) - 1e-15::float8 * (total + room), totals);
    last constant integer := pg_catalog.width_bucket(total - (room - need) + 1e-15::float8 * (total + room), totals);
BEGIN
    IF first <= gap AND last > gap - 3 THEN
        RETURN NULL;
    END IF;
    FOR i IN first .. first + 2 LOOP
        IF room - (total - coalesce(totals[i + 1], total)) >= need THEN
            RETURN coalesce(entries[i], 0);
        END IF;
    END LOOP;
    RETURN coalesce(entries[last], 0);
END $$;
-- +goose StatementEnd

-- Reservations, and requests admitted under an idempotency key. The units are counted
-- in the key's row, which has no reference to this one. The policy's parameters are
-- as of the admission. The primary key begins with the policy and the key, so that a
-- database that is split by those keeps a reservation with its key's row. The ID that
-- callers have is algorithm:id:policy:key, with the key in base64url.
CREATE TABLE pglimit_reservation (
    reserved        float8 NOT NULL,  -- units admitted
    units           float8 NOT NULL,  -- units still counted; of a settled reservation, the units spent
    level           float8 NOT NULL,  -- the key's level after the admission
    limit_units     float8 NOT NULL,
    burst           float8 NOT NULL,
    capacity        float8 NOT NULL,
    leak            float8 NOT NULL,  -- 0 for windows
    tick_us         bigint NOT NULL,
    period_us       bigint NOT NULL,  -- 0 for buckets
    ends_at_us      bigint NOT NULL,  -- end of the window that counted it; 0 if there is none
    counted_at_us   bigint NOT NULL,  -- from when its units leak or age
    created_at_us   bigint NOT NULL,
    expires_at_us   bigint NOT NULL,  -- from when it is expired, if still open
    forget_at_us    bigint NOT NULL,  -- end of its retention: the row may be deleted
    state           text COLLATE "C" NOT NULL,  -- open, settled, cancelled or expired; spent: only an idempotency key, no reservation
    algorithm       text COLLATE "C" NOT NULL,
    id              text COLLATE "C" NOT NULL,  -- random
    policy          text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C",  -- NULL if it had none, was cancelled or has expired
    requested       float8,           -- units requested; NULL if they are what was reserved
    estimate        float8,           -- the same, of an estimate that was reserved as a whole; NULL of all others
    usage_at_us     bigint,           -- the sum in pglimit_usage that has its units; NULL: none
    part_numbers    bigint[],         -- of a balance: the lots that it took from, in their order; 0 or NULL: a debt
    part_units      float8[],         -- what it took of each
    part_ends_us    bigint[],
    part_priorities bigint[],
    part_sources    text[],
    note            text,             -- of a balance with a ledger: the request's; NULL of all others
    CONSTRAINT pglimit_reservation_pkey PRIMARY KEY (policy, key, id)
);
CREATE UNIQUE INDEX pglimit_reservation_idempotency ON pglimit_reservation (policy, key, idempotency_key, algorithm) WHERE idempotency_key IS NOT NULL;
CREATE INDEX pglimit_reservation_open ON pglimit_reservation (policy, key, expires_at_us) WHERE state = 'open';
CREATE INDEX pglimit_reservation_expires ON pglimit_reservation (expires_at_us) WHERE state = 'open';
CREATE INDEX pglimit_reservation_estimate ON pglimit_reservation (policy, key, algorithm, created_at_us) WHERE state = 'settled' AND estimate IS NOT NULL;
CREATE INDEX pglimit_reservation_forget ON pglimit_reservation (forget_at_us);

-- Leases for tasks that one process runs at a time: the janitor's sweeps.
CREATE TABLE pglimit_lease (
    expires_at_us bigint NOT NULL,
    name          text COLLATE "C" NOT NULL,
    holder        text COLLATE "C" NOT NULL,
    CONSTRAINT pglimit_lease_pkey PRIMARY KEY (name)
);

-- +goose Down
-- Dropping all tables needs the locks of all at the same time. They are taken in the
-- library's order. After a quarter of deadlock_timeout they are released, so that no
-- other statement fails with a deadlock; then others get three times as long.
-- +goose StatementBegin
DO $pglimit$
DECLARE
    statements text[] := ARRAY[
        'LOCK TABLE pglimit_leaky_bucket IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_leaky_bucket_queue IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_token_bucket IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_fixed_window IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_sliding_window_counter IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_sliding_window_log IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_reservation IN ACCESS EXCLUSIVE MODE',
        'LOCK TABLE pglimit_lease IN ACCESS EXCLUSIVE MODE'];
    deadlock_ms float8 := (SELECT s.setting::float8 FROM pg_catalog.pg_settings AS s WHERE s.name = 'deadlock_timeout');
    before text := current_setting('lock_timeout'::text);
    statement text;
    began timestamptz;
    left_ms float8;
BEGIN
    BEGIN
        -- Waiting for this lock cancels an autovacuum. It does not conflict with traffic.
        PERFORM set_config('lock_timeout'::text, (deadlock_ms + 1000::float8)::text, true);
        LOCK TABLE pglimit_leaky_bucket, pglimit_leaky_bucket_queue, pglimit_token_bucket, pglimit_fixed_window,
            pglimit_sliding_window_counter, pglimit_sliding_window_log,
            pglimit_reservation, pglimit_lease IN SHARE UPDATE EXCLUSIVE MODE;
    EXCEPTION WHEN lock_not_available THEN
        NULL; -- for example, a manual VACUUM
    END;
    FOR try IN 0 .. 44 LOOP
        began := clock_timestamp();
        BEGIN
            FOREACH statement IN ARRAY statements LOOP
                -- Short waits find a gap in traffic, long ones wait for its end: 1, 2, 4 .. 256 ms.
                left_ms := LEAST(power(2::float8, (try % 9)::float8), deadlock_ms / 4::float8) - extract(epoch FROM clock_timestamp() - began)::float8 * 1000::float8;
                PERFORM set_config('lock_timeout'::text, GREATEST(1::float8, trunc(left_ms))::text, true);
                EXECUTE statement;
            END LOOP;
            PERFORM set_config('lock_timeout'::text, before, true);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            NULL; -- all locks are released
        END;
        PERFORM pg_sleep(0.01::float8 + 3::float8 * extract(epoch FROM clock_timestamp() - began)::float8);
    END LOOP;
    RAISE lock_not_available USING MESSAGE = 'pglimit: a transaction has had locks on the tables for too long: end it, or stop the traffic, and run this again';
END $pglimit$;
-- +goose StatementEnd
DROP TABLE pglimit_lease;
DROP TABLE pglimit_reservation;
DROP FUNCTION pglimit_log_frees(bigint[], float8[], integer, float8, float8, float8);
DROP FUNCTION pglimit_log_move(pglimit_log, integer, integer, bigint, float8);
DROP FUNCTION pglimit_log_whole(anyarray, integer, integer, anyarray, anyarray, anyarray);
DROP TYPE pglimit_log;
DROP FUNCTION pglimit_log_step();
DROP FUNCTION pglimit_lower(float8[], integer, float8, float8);
DROP FUNCTION pglimit_rebase(float8[], float8);
DROP TABLE pglimit_sliding_window_log;
DROP TABLE pglimit_sliding_window_counter;
DROP TABLE pglimit_fixed_window;
DROP TABLE pglimit_token_bucket;
DROP TABLE pglimit_leaky_bucket_queue;
DROP TABLE pglimit_leaky_bucket;
