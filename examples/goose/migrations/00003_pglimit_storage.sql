-- Settings that only PostgreSQL itself knows, apart from the tables so that a
-- database that merely speaks its protocol can leave this file out.
--
-- fillfactor leaves room in each page, so that a decision rewrites its row in
-- place (a HOT update: no index is touched). The autovacuum settings make it
-- come by often and do little: rows here change all the time.
--
-- The arrays of a log are kept as they are once they leave the row: packing and
-- unpacking them costs a decision several times what it saves in writing.

-- +goose Up
ALTER TABLE pglimit_leaky_bucket           SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_leaky_bucket_queue     SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_token_bucket           SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_gcra                   SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_fixed_window           SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_sliding_window_counter SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_sliding_window_log     SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);
ALTER TABLE pglimit_sliding_window_log     ALTER entries SET STORAGE EXTERNAL, ALTER totals SET STORAGE EXTERNAL;

-- +goose Down
ALTER TABLE pglimit_leaky_bucket           RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_leaky_bucket_queue     RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_token_bucket           RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_gcra                   RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_fixed_window           RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_sliding_window_counter RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_sliding_window_log     RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE pglimit_sliding_window_log     ALTER entries SET STORAGE EXTENDED, ALTER totals SET STORAGE EXTENDED;
