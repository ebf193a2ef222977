package pglimittest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const closeTimeout = 30 * time.Second

// The kinds of server that Backend returns.
const (
	kindURL    = "url"
	kindShared = "shared"
	kindDocker = "docker"
	kindLocal  = "local"
	kindCitus  = "citus"
)

// Server is a PostgreSQL server for tests. Its methods are safe for concurrent use.
type Server struct {
	kind    string
	backend backend
	ending  ending
	version string
	number  int    // of the version: 170002 is 17.2
	run     string // part of the names of all databases of this run
	nodes   []node // of a Citus cluster, the coordinator first
	workers []*Server
	count   atomic.Int64

	mu        sync.Mutex
	templates []string
	closed    bool
}

// backend is one way to run a server.
type backend interface {
	URL() string      // of the superuser, or of the role that the user named; changes with Restart
	Describe() string // without the password
	Close(context.Context) error
}

// ending ends and restarts a server.
type ending interface {
	Stop(context.Context) error
	Kill(context.Context) error
	Restart(context.Context) error
}

// readVersion reads the server's version, and returns an error if it is too old.
func (s *Server) readVersion(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	const query = `SELECT current_setting('server_version'), current_setting('server_version_num')::int`
	if err := conn.QueryRow(ctx, query).Scan(&s.version, &s.number); err != nil {
		return err
	}
	s.version, _, _ = strings.Cut(s.version, " ")
	if s.number < 130000 {
		return fmt.Errorf("PostgreSQL %s is too old: use 13 or newer", s.version)
	}
	return nil
}

// URL returns the server's URL for a role that may create databases; for a server that
// Start started, the superuser. With Docker, Restart changes it: call URL again. Other
// runs may share the database that it names, so create separate databases.
func (s *Server) URL() string { return s.backend.URL() }

// Backend returns "url", "shared", "docker", "local" or "citus".
func (s *Server) Backend() string { return s.kind }

// String describes the server in one line, without a password.
func (s *Server) String() string {
	return fmt.Sprintf("PostgreSQL %s, %s", s.version, s.backend.Describe())
}

// Stop ends the server by a fast shutdown and returns when it has ended. Like Kill and
// Restart, it is for a server of StartOwn and fails for others.
func (s *Server) Stop(ctx context.Context) error { return s.ending.Stop(ctx) }

// Kill ends all processes of the server with SIGKILL, like a crash, and returns when they
// have ended.
func (s *Server) Kill(ctx context.Context) error { return s.ending.Kill(ctx) }

// Restart stops the server if it runs, starts it with the same data, and returns once it
// accepts connections.
func (s *Server) Restart(ctx context.Context) error { return s.ending.Restart(ctx) }

// Close removes the server with all its databases. On a server that is shared or
// that PGLIMIT_TEST_DATABASE_URL names, it only drops the templates. Further calls
// do nothing.
func (s *Server) Close() error {
	s.mu.Lock()
	templates, closed := s.templates, s.closed
	s.templates, s.closed = nil, true
	s.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var err error
	if s.kind == kindURL || s.kind == kindShared {
		for _, name := range templates {
			err = errors.Join(err, s.drop(ctx, name))
		}
	}
	return errors.Join(err, s.backend.Close(ctx))
}

// CreateDatabase creates an empty database with label in its name. It returns the
// database's URL and a function that drops it, even with open connections. As in
// PostgreSQL 15, only the owner may create objects in schema public.
func (s *Server) CreateDatabase(ctx context.Context, label string) (address string, drop func(context.Context) error, _ error) {
	// A database with connections cannot be copied. Unlike template1, template0 accepts
	// none.
	urls, drop, err := s.create(ctx, label, "template0")
	if err != nil {
		return "", nil, err
	}
	if err = everywhere(ctx, urls, "REVOKE CREATE ON SCHEMA public FROM PUBLIC"); err == nil && len(urls) > 1 {
		err = s.joinAlone(ctx, urls)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("prepare database %s: %w", label, err), drop(ctx))
	}
	return urls[0], drop, nil
}

// create creates a copy of a template under a unique name on all nodes. It returns the
// databases' URLs, the coordinator's first.
func (s *Server) create(ctx context.Context, label, template string) (urls []string, drop func(context.Context) error, _ error) {
	name := fmt.Sprintf("pglimit_%s_%s_%d", label, s.run, s.count.Add(1))
	const longest = 63
	if len(name) > longest {
		return nil, nil, fmt.Errorf("create database %s: its name is %d bytes too long: shorten the label %q", name, len(name)-longest, label)
	}
	for _, server := range s.servers() {
		address, err := databaseURL(server, name)
		if err != nil {
			return nil, nil, err
		}
		urls = append(urls, address)
	}
	sql := "CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(template)
	if s.number >= 150000 {
		sql += " STRATEGY FILE_COPY" // half the work of WAL_LOG, the newer default
	}
	drop = func(ctx context.Context) error { return s.drop(ctx, name) }
	if err := s.exec(ctx, sql); err != nil {
		err = fmt.Errorf("create database %s: %w", name, err)
		if len(urls) > 1 {
			err = errors.Join(err, drop(ctx)) // some nodes may have it
		}
		return nil, nil, err
	}
	return urls, drop, nil
}

func (s *Server) drop(ctx context.Context, name string) error {
	if len(s.workers) > 0 { // FORCE alone leaves Citus's sessions
		if err := s.seal(ctx, name); err != nil {
			return fmt.Errorf("close database %s: %w", name, err)
		}
	}
	if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// exec runs one statement on all nodes. The connections are new, because a node may have
// been restarted since the last one.
func (s *Server) exec(ctx context.Context, sql string, args ...any) error {
	return everywhere(ctx, s.servers(), sql, args...)
}

func execOn(ctx context.Context, address, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// databaseURL returns address with another database. address is a URL or, as libpq also
// accepts, a line of key=value pairs, in which the last value of a key applies.
func databaseURL(address, name string) (string, error) {
	if !isURL(address) {
		return address + " dbname=" + name, nil
	}
	u, err := parseURL(address)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func isURL(address string) bool {
	return strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://")
}

func parseURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("%s is not a valid URL: use postgres://USER:PASSWORD@HOST:PORT/DATABASE", envURL) // the cause would show the password
	}
	return u, nil
}
