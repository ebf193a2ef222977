-- name: SweepRecord :exec
-- SweepRecord records the last complete sweep under the lease of that name.
--
-- Index: the primary key. Locks the sweep's row for the statement.
INSERT INTO pglimit_sweep AS t (swept_at_us, took_us, removed, kept, reservations_expired, name, holder)
SELECT coalesce(sqlc.narg(now_us)::bigint, (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint),
       sqlc.arg(took_us)::bigint, sqlc.arg(removed)::bigint, sqlc.arg(kept)::bigint, sqlc.arg(reservations_expired)::bigint,
       sqlc.arg(name)::text, sqlc.arg(holder)::text
ON CONFLICT (name) DO UPDATE SET
    swept_at_us = EXCLUDED.swept_at_us, took_us = EXCLUDED.took_us, removed = EXCLUDED.removed, kept = EXCLUDED.kept,
    reservations_expired = EXCLUDED.reservations_expired, holder = EXCLUDED.holder;

-- name: SweepStatus :one
-- SweepStatus reads the clock, and the lease and the last sweep of that name. A holder is
-- empty, and a time 0, if there is no such row.
--
-- Index: the primary keys. Locks nothing.
SELECT c.us::bigint AS now_us,
       coalesce((SELECT l.holder FROM pglimit_lease AS l WHERE l.name = sqlc.arg(name)::text), '')::text AS holder,
       coalesce((SELECT l.expires_at_us FROM pglimit_lease AS l WHERE l.name = sqlc.arg(name)::text), 0)::bigint AS lease_ends_us,
       coalesce(s.swept_at_us, 0)::bigint AS swept_at_us,
       coalesce(s.took_us, 0)::bigint AS took_us,
       coalesce(s.removed, 0)::bigint AS removed,
       coalesce(s.kept, 0)::bigint AS kept,
       coalesce(s.reservations_expired, 0)::bigint AS reservations_expired,
       coalesce(s.holder, '')::text AS swept_by
FROM (SELECT (date_part('epoch'::text, clock_timestamp()) * 1000000::float8)::bigint AS us) AS c
LEFT JOIN pglimit_sweep AS s ON s.name = sqlc.arg(name)::text;

-- name: SweepWaiting :one
-- SweepWaiting reads what waits at now_us for the next sweep: the number of due rows,
-- counted up to max_rows, the same of expired and of open reservations, and since when the
-- oldest of them has waited (oldest_us; now_us if none does).
--
-- Index: pglimit_…_expires of each table of limits, pglimit_reservation_expires and
-- pglimit_reservation_forget, up to max_rows entries of each. Locks nothing.
SELECT (SELECT count(*) FROM (
           (SELECT t.expires_at_us FROM pglimit_leaky_bucket AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT t.expires_at_us FROM pglimit_leaky_bucket_queue AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT t.expires_at_us FROM pglimit_token_bucket AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT t.expires_at_us FROM pglimit_fixed_window AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT t.expires_at_us FROM pglimit_sliding_window_counter AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT t.expires_at_us FROM pglimit_sliding_window_log AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT t.expires_at_us FROM pglimit_attempt AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT t.expires_at_us FROM pglimit_slot AS t WHERE t.expires_at_us <= c.us ORDER BY t.expires_at_us LIMIT sqlc.arg(max_rows)::bigint)
           UNION ALL (SELECT h.forget_at_us FROM pglimit_reservation AS h WHERE h.forget_at_us <= c.us AND h.state <> 'open' ORDER BY h.forget_at_us LIMIT sqlc.arg(max_rows)::bigint)
           LIMIT sqlc.arg(max_rows)::bigint) AS due)::bigint AS due_rows,
       (SELECT count(*) FROM (SELECT h.expires_at_us FROM pglimit_reservation AS h WHERE h.state = 'open' AND h.expires_at_us <= c.us
                              ORDER BY h.expires_at_us LIMIT sqlc.arg(max_rows)::bigint) AS expired)::bigint AS expired_reservations,
       (SELECT count(*) FROM (SELECT h.expires_at_us FROM pglimit_reservation AS h WHERE h.state = 'open'
                              ORDER BY h.expires_at_us LIMIT sqlc.arg(max_rows)::bigint) AS open)::bigint AS open_reservations,
       LEAST(c.us, -- which ignores NULL
             (SELECT min(t.expires_at_us) FROM pglimit_leaky_bucket AS t),
             (SELECT min(t.expires_at_us) FROM pglimit_leaky_bucket_queue AS t),
             (SELECT min(t.expires_at_us) FROM pglimit_token_bucket AS t),
             (SELECT min(t.expires_at_us) FROM pglimit_fixed_window AS t),
             (SELECT min(t.expires_at_us) FROM pglimit_sliding_window_counter AS t),
             (SELECT min(t.expires_at_us) FROM pglimit_sliding_window_log AS t),
             (SELECT min(t.expires_at_us) FROM pglimit_attempt AS t),
             (SELECT min(t.expires_at_us) FROM pglimit_slot AS t),
             (SELECT h.forget_at_us FROM pglimit_reservation AS h WHERE h.forget_at_us <= c.us AND h.state <> 'open' ORDER BY h.forget_at_us LIMIT 1),
             (SELECT min(h.expires_at_us) FROM pglimit_reservation AS h WHERE h.state = 'open'))::bigint AS oldest_us
FROM (SELECT sqlc.arg(now_us)::bigint AS us) AS c;
