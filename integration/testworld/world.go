package testworld

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate/sets"
)

// worldVariable is the environment variable that selects in which world the tests run. It
// changes what NewDatabase returns, and so what most tests connect to:
//
//	role            a role that has the rights of an operator and owns nothing
//	schema          the tables are in a schema that only the search_path names
//	serializable    transactions are serializable by default
//	pgbouncer:MODE  through PgBouncer in transaction mode; MODE is pgx's
//	                default_query_exec_mode
//
// Without it tests connect as the owner, with the server's defaults. Databases that a test
// makes in another way, such as EmptyDatabase, are as always. scripts/test-matrix runs the
// worlds, and lists the tests that cannot run in one.
const worldVariable = "PGLIMIT_TEST_AS"

// The worlds.
const (
	worldRole         = "role"
	worldSchema       = "schema"
	worldSerializable = "serializable"
	worldBouncer      = "pgbouncer"
)

// world returns the world and, for worldBouncer, the mode.
func world() (name, mode string, err error) {
	name, mode, _ = strings.Cut(os.Getenv(worldVariable), ":")
	switch name {
	case "", worldSchema, worldSerializable, worldRole:
		if mode == "" {
			return name, "", nil
		}
	case worldBouncer:
		if _, err := pgx.ParseConfig("postgres://?default_query_exec_mode=" + mode); err == nil && mode != "" {
			return name, mode, nil
		}
	}
	return "", "", fmt.Errorf("%s is %q: set it to role, schema, serializable or pgbouncer:MODE, or unset it", worldVariable, os.Getenv(worldVariable))
}

// appRole is the role of worldRole. It ends with the server.
const appRole, appPassword = "pglimit_test_app", "limits"

// appSchema is the schema of worldSchema.
const appSchema = "limits"

// prepareWorld makes the tables in a database that becomes the tests' template.
func prepareWorld(ctx context.Context, owner *pgxpool.Pool) error {
	return prepare(ctx, owner, sets.Tables.Up, distribute)
}

// prepareFunctions makes the tables and the SQL functions.
func prepareFunctions(ctx context.Context, owner *pgxpool.Pool) error {
	return prepare(ctx, owner, sets.Tables.Up, sets.Functions.Up, distribute)
}

func prepare(ctx context.Context, owner *pgxpool.Pool, steps ...func(context.Context, *pgxpool.Pool) error) error {
	name, _, err := world()
	if err != nil {
		return err
	}
	pool := owner
	if name == worldSchema {
		if _, err := owner.Exec(ctx, "CREATE SCHEMA "+appSchema); err != nil {
			return err
		}
		config := owner.Config()
		config.ConnConfig.RuntimeParams["search_path"] = appSchema
		if pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return err
		}
		defer pool.Close()
	}
	for _, step := range steps {
		if err := step(ctx, pool); err != nil {
			return err
		}
	}
	if name == worldRole {
		return grantRole(ctx, owner)
	}
	return nil
}

// grantRole creates the role of worldRole unless another test process has, and gives it an
// operator's rights on what is in the database, as pglimit migrate grants does. It refuses a
// server on which the role would stay.
func grantRole(ctx context.Context, owner *pgxpool.Pool) error {
	if server.Backend() == "url" {
		return fmt.Errorf("%s=%s creates a role: it needs a server that ends with the tests", worldVariable, worldRole)
	}
	_, err := owner.Exec(ctx, "CREATE ROLE "+appRole+" LOGIN PASSWORD '"+appPassword+"'")
	if answer := (*pgconn.PgError)(nil); errors.As(err, &answer) && (answer.Code == "42710" || answer.Code == "23505") {
		err = nil // it exists, or does so a moment later
	}
	if err != nil {
		return err
	}
	if _, err := grants.Apply(ctx, owner, grants.Roles{Operators: []string{appRole}}); err != nil {
		return err
	}
	// For tables that a test creates: see ownerOf.
	_, err = owner.Exec(ctx, "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO "+appRole+"; ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO "+appRole)
	return err
}

// bouncer is the PgBouncer of worldBouncer. Main ends it.
var bouncer struct {
	sync.Mutex
	*Bouncer
}

// bounced returns the URL through PgBouncer of the database at address.
func bounced(t testing.TB, address, mode string) string {
	t.Helper()
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	bouncer.Lock()
	defer bouncer.Unlock()
	if bouncer.Bouncer == nil {
		bouncer.Bouncer, err = StartBouncer(context.Background(), BouncerConfig{
			Server: address, Databases: []string{"*"}, Connections: 30, Statements: 200,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return bouncer.URL(config.Database) + "&default_query_exec_mode=" + mode
}

func closeBouncer() error {
	bouncer.Lock()
	defer bouncer.Unlock()
	if bouncer.Bouncer == nil {
		return nil
	}
	return bouncer.Close()
}

// inWorld returns the URL by which tests connect to the database that its owner reaches
// at address.
func inWorld(t testing.TB, address string) string {
	t.Helper()
	name, mode, err := world()
	if err != nil {
		t.Fatal(err)
	}
	switch name {
	case worldBouncer:
		return bounced(t, address, mode)
	case worldSerializable:
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		// A copy of a template has none of its settings.
		if _, err := conn.Exec(ctx, "ALTER DATABASE "+pgx.Identifier{conn.Config().Database}.Sanitize()+" SET default_transaction_isolation = 'serializable'"); err != nil {
			t.Fatal(err)
		}
		return address
	case "":
		return address
	}
	if name == worldRole {
		u := parse(t, address)
		u.User = url.UserPassword(appRole, appPassword)
		return u.String()
	}
	return WithQuery(t, address, "search_path", appSchema).String()
}

// sqlInWorld returns the URL for a driver of database/sql. lib/pq does not know pgx's mode,
// and sends parameters with their statement if it is told.
func sqlInWorld(t testing.TB, driver, address string) string {
	t.Helper()
	if name, _, _ := world(); name != worldBouncer || driver != "postgres" {
		return address
	}
	u := parse(t, address)
	if q := u.Query(); q.Has("default_query_exec_mode") {
		q.Del("default_query_exec_mode")
		q.Set("binary_parameters", "yes")
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// ownerOf returns a connection of the owner to a pool's database, for a statement of a
// test that was refused to the role of worldRole; nil in all other cases. The role's rights
// are for the limiters, and not for what tests prepare.
func ownerOf(t testing.TB, pool *pgxpool.Pool, err error) *pgx.Conn {
	t.Helper()
	answer := (*pgconn.PgError)(nil)
	if config := pool.Config().ConnConfig; config.User != appRole || !errors.As(err, &answer) || answer.Code != "42501" {
		return nil
	}
	config, err := pgx.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.Database = pool.Config().ConnConfig.Database
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
