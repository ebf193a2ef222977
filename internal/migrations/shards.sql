-- The functions through which statements reach one shard of the distributed tables. `pglimit
-- migrate distribute` creates them, in the schema of the tables, on every node. search_path
-- is that schema and pg_temp while this file runs. A function whose first argument is
-- shard_key runs on the node that has the key's shard. Each statement ends in $pglimit$.

-- pglimit_shard holds the shard of a key where it is until the transaction ends, as each
-- write of Citus does, and returns its number for pglimit_token_bucket. It fails unless this
-- node has the shard, with the keys listed. It runs as the tables' owner, whom Citus lets
-- hold a shard.
CREATE OR REPLACE FUNCTION pglimit_shard(of_key text, keys text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $pglimit$
DECLARE
    shard bigint := get_shard_id_for_distribution_column('pglimit_token_bucket'::regclass, of_key);
BEGIN
    -- The look after the lock needs a new snapshot, which only read committed takes.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL02', MESSAGE = 'pglimit: a shard is held at read committed only';
    END IF;
    PERFORM lock_shard_metadata(5, ARRAY[shard]);
    PERFORM FROM pg_dist_shard AS s JOIN pg_dist_placement AS p ON p.shardid = s.shardid
    WHERE s.shardid = shard AND p.groupid = (SELECT g.groupid FROM pg_dist_local_group AS g)
      AND worker_hash(of_key) BETWEEN s.shardminvalue::int AND s.shardmaxvalue::int
      AND NOT EXISTS (SELECT FROM unnest(keys) AS k WHERE worker_hash(k) NOT BETWEEN s.shardminvalue::int AND s.shardmaxvalue::int);
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL01', MESSAGE = 'pglimit: the keys are not in one shard of this node';
    END IF;
    RETURN shard;
END $pglimit$;

-- pglimit_on_shard executes a statement of pglimit against the tables of the key's shard.
-- args are its parameters, of which number keys_at, unless that is 0, lists all its keys.
-- The session prepares the statement once for each shard, under a name that begins with
-- name, another one for each text. A setting of the session remembers that: a look at
-- pg_prepared_statements takes a millisecond once there are a hundred. It runs as its
-- caller, who needs rights on the tables.
CREATE OR REPLACE FUNCTION pglimit_on_shard(shard_key text, keys_at integer, name text, statement text, args text[]) RETURNS SETOF record
LANGUAGE plpgsql SET search_path FROM CURRENT SET citus.enable_manual_changes_to_shards = on AS $pglimit$
DECLARE
    shard bigint := pglimit_shard(shard_key, CASE WHEN keys_at > 0 THEN args[keys_at]::text[] END);
    prepared text := name || shard;
    t record;
BEGIN
    IF current_setting('pglimit.' || prepared, true) IS DISTINCT FROM 'prepared' THEN
        FOR t IN SELECT c.relname AS whole, format('%I.%I', n.nspname, c.relname || '_' || s.shardid) AS part
                 FROM pg_dist_shard AS a
                 JOIN pg_dist_partition AS b ON b.logicalrelid = a.logicalrelid
                 JOIN pg_dist_partition AS d ON d.colocationid = b.colocationid
                 JOIN pg_dist_shard AS s ON s.logicalrelid = d.logicalrelid AND s.shardminvalue = a.shardminvalue
                 JOIN pg_class AS c ON c.oid = d.logicalrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
                 WHERE a.shardid = shard
        LOOP
            statement := regexp_replace(statement, '\m' || t.whole || '\M', t.part, 'g');
        END LOOP;
        IF NOT EXISTS (SELECT FROM pg_prepared_statements AS p WHERE p.name = prepared) THEN -- a rollback undoes the setting alone
            EXECUTE format('PREPARE %I AS ', prepared) || statement;
        END IF;
        PERFORM set_config('pglimit.' || prepared, 'prepared', false);
    END IF;
    RETURN QUERY EXECUTE format('EXECUTE %I', prepared)
        || coalesce('(' || (SELECT string_agg(quote_nullable(a.text), ',' ORDER BY a.n) FROM unnest(args) WITH ORDINALITY AS a (text, n)) || ')', '');
END $pglimit$;
