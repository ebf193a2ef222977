-- Storage settings that only PostgreSQL has. They are separate from the tables so
-- that a database that merely speaks its protocol can skip this file.
--
-- fillfactor leaves room in each page, so that a decision updates its row within the
-- page (a HOT update, which changes no index). The autovacuum settings make vacuums
-- frequent and short, because rows change all the time.
--
-- A log's arrays are stored uncompressed outside the row: compression costs a
-- decision several times what it saves in writes. entries and totals stay in the row up to
-- 128, which makes it longer than 2 kB.

-- +goose Up
ALTER TABLE pglimit_leaky_bucket           SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_leaky_bucket_queue     SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_token_bucket           SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_fixed_window           SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_sliding_window_counter SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_sliding_window_log     SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1, toast_tuple_target = 4080);
ALTER TABLE pglimit_sliding_window_log     ALTER entries SET STORAGE EXTERNAL, ALTER totals SET STORAGE EXTERNAL,
    ALTER older_entries SET STORAGE EXTERNAL, ALTER older_totals SET STORAGE EXTERNAL, ALTER middle_entries SET STORAGE EXTERNAL,
    ALTER middle_totals SET STORAGE EXTERNAL, ALTER recent_entries SET STORAGE EXTERNAL, ALTER recent_totals SET STORAGE EXTERNAL;

-- +goose Down
ALTER TABLE pglimit_leaky_bucket           RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_leaky_bucket_queue     RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_token_bucket           RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_fixed_window           RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_sliding_window_counter RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_sliding_window_log     RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay, toast_tuple_target);
ALTER TABLE pglimit_sliding_window_log     ALTER entries SET STORAGE EXTENDED, ALTER totals SET STORAGE EXTENDED,
    ALTER older_entries SET STORAGE EXTENDED, ALTER older_totals SET STORAGE EXTENDED, ALTER middle_entries SET STORAGE EXTENDED,
    ALTER middle_totals SET STORAGE EXTENDED, ALTER recent_entries SET STORAGE EXTENDED, ALTER recent_totals SET STORAGE EXTENDED;
