-- gcra decides as token_bucket does, on the same rows. Once its rows were in a table of their
-- own: that is moved to pglimit_token_bucket and dropped. If a key has a row in both, the
-- fuller one counts; of denials in both, those of token_bucket stay. Down leaves the rows where they are.

-- +goose Up
-- +goose StatementBegin
DO $pglimit$
BEGIN
    IF to_regclass('pglimit_gcra'::text) IS NULL THEN
        RETURN;
    END IF;
    LOCK TABLE pglimit_gcra IN ACCESS EXCLUSIVE MODE;
    INSERT INTO pglimit_token_bucket AS t
           (level, capacity, leak, updated_at_us, blocked_until_us, decided_at_us, expires_at_us, cost, granted, policy, key)
    SELECT g.level, g.capacity, g.leak, g.updated_at_us, g.blocked_until_us, g.decided_at_us, g.expires_at_us, g.cost, g.granted, g.policy, g.key
    FROM pglimit_gcra AS g
    ON CONFLICT (policy, key) DO UPDATE SET
        level = GREATEST(t.level, EXCLUDED.level), updated_at_us = GREATEST(t.updated_at_us, EXCLUDED.updated_at_us),
        blocked_until_us = GREATEST(t.blocked_until_us, EXCLUDED.blocked_until_us), expires_at_us = GREATEST(t.expires_at_us, EXCLUDED.expires_at_us);
    UPDATE pglimit_reservation SET algorithm = 'token_bucket' WHERE algorithm = 'gcra';
    DELETE FROM pglimit_denial AS d USING pglimit_denial AS t
    WHERE d.algorithm = 'gcra' AND t.algorithm = 'token_bucket' AND t.policy = d.policy AND t.key = d.key AND t.slot_us = d.slot_us;
    UPDATE pglimit_denial SET algorithm = 'token_bucket' WHERE algorithm = 'gcra';
    DROP VIEW IF EXISTS pglimit_gcra_now;
    DROP TABLE pglimit_gcra;
END $pglimit$;
-- +goose StatementEnd

-- +goose Down
