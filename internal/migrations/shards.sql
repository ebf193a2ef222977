-- The functions through which statements reach one shard of the distributed tables. `pglimit
-- migrate distribute` creates them, in the schema of the tables, on every node. It puts the
-- names in for :home, that schema, and :'bucket', the table that the others are placed by.
-- Other roles may create objects there: so no name is looked up there, or anywhere but where
-- it says. A function whose first argument is shard_key runs on the node that has the key's
-- shard. Each statement ends in $pglimit$.

-- pglimit_shard holds the shard of a key where it is until the transaction ends, as each
-- write of Citus does, and returns its number for pglimit_token_bucket. It fails unless this
-- node has the shard, with the keys listed. It runs as the tables' owner, whom Citus lets
-- hold a shard.
CREATE OR REPLACE FUNCTION :home.pglimit_shard(of_key text, keys text[]) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pglimit$
DECLARE
    shard pg_catalog.int8 := pg_catalog.get_shard_id_for_distribution_column(:'bucket'::pg_catalog.regclass, of_key);
BEGIN
    -- The look after the lock needs a new snapshot, which only read committed takes.
    IF pg_catalog.current_setting('transaction_isolation'::pg_catalog.text) OPERATOR(pg_catalog.<>) 'read committed'::pg_catalog.text THEN
        RAISE EXCEPTION USING ERRCODE = 'PGL02', MESSAGE = 'pglimit: a shard is held at read committed only';
    END IF;
    PERFORM pg_catalog.lock_shard_metadata(5, ARRAY[shard]);
    PERFORM FROM pg_catalog.pg_dist_shard AS s JOIN pg_catalog.pg_dist_placement AS p ON p.shardid OPERATOR(pg_catalog.=) s.shardid
    WHERE s.shardid OPERATOR(pg_catalog.=) shard AND p.groupid OPERATOR(pg_catalog.=) (SELECT g.groupid FROM pg_catalog.pg_dist_local_group AS g)
      AND NOT EXISTS (SELECT FROM pg_catalog.unnest(pg_catalog.array_prepend(of_key, keys)) AS k
          WHERE pg_catalog.worker_hash(k) OPERATOR(pg_catalog.<) s.shardminvalue::pg_catalog.int4
             OR pg_catalog.worker_hash(k) OPERATOR(pg_catalog.>) s.shardmaxvalue::pg_catalog.int4);
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
CREATE OR REPLACE FUNCTION :home.pglimit_on_shard(shard_key text, keys_at integer, name text, statement text, args text[]) RETURNS SETOF record
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET citus.enable_manual_changes_to_shards = on AS $pglimit$
DECLARE
    shard pg_catalog.int8 := :home.pglimit_shard(shard_key, CASE WHEN keys_at OPERATOR(pg_catalog.>) 0 THEN args[keys_at]::pg_catalog.text[] END);
    prepared pg_catalog.text := name OPERATOR(pg_catalog.||) shard::pg_catalog.text;
    t pg_catalog.record;
BEGIN
    IF coalesce(pg_catalog.current_setting('pglimit.'::pg_catalog.text OPERATOR(pg_catalog.||) prepared, true), ''::pg_catalog.text)
        OPERATOR(pg_catalog.<>) 'prepared'::pg_catalog.text THEN
        FOR t IN SELECT c.relname AS whole, pg_catalog.format('%I.%I'::pg_catalog.text, n.nspname, pg_catalog.concat(c.relname, '_', s.shardid)) AS part
                 FROM pg_catalog.pg_dist_shard AS a
                 JOIN pg_catalog.pg_dist_partition AS b ON b.logicalrelid::pg_catalog.oid OPERATOR(pg_catalog.=) a.logicalrelid::pg_catalog.oid
                 JOIN pg_catalog.pg_dist_partition AS d ON d.colocationid OPERATOR(pg_catalog.=) b.colocationid
                 JOIN pg_catalog.pg_dist_shard AS s ON s.logicalrelid::pg_catalog.oid OPERATOR(pg_catalog.=) d.logicalrelid::pg_catalog.oid
                     AND s.shardminvalue OPERATOR(pg_catalog.=) a.shardminvalue
                 JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) d.logicalrelid::pg_catalog.oid
                 JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
                 WHERE a.shardid OPERATOR(pg_catalog.=) shard
                 UNION ALL SELECT f.f, pg_catalog.concat(:'home', '.', f.f) FROM (VALUES ('pglimit_rebase'::pg_catalog.name), ('pglimit_lower'::pg_catalog.name)) AS f (f)
        LOOP
            statement := pg_catalog.regexp_replace(statement, pg_catalog.concat('\m', t.whole, '\M'), t.part, 'g'::pg_catalog.text);
        END LOOP;
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements AS p WHERE p.name OPERATOR(pg_catalog.=) prepared) THEN -- a rollback undoes the setting alone
            EXECUTE pg_catalog.concat(pg_catalog.format('PREPARE %I AS '::pg_catalog.text, prepared), statement);
        END IF;
        PERFORM pg_catalog.set_config('pglimit.'::pg_catalog.text OPERATOR(pg_catalog.||) prepared, 'prepared'::pg_catalog.text, false);
    END IF;
    RETURN QUERY EXECUTE pg_catalog.concat(pg_catalog.format('EXECUTE %I'::pg_catalog.text, prepared),
        (SELECT '('::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.string_agg(pg_catalog.quote_nullable(a.text), ','::pg_catalog.text ORDER BY a.n) OPERATOR(pg_catalog.||) ')'::pg_catalog.text
         FROM pg_catalog.unnest(args) WITH ORDINALITY AS a (text, n)));
END $pglimit$;
