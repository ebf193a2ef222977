package pglimittest

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const databaseTimeout = time.Minute

// TB has the methods of testing.TB that New calls.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Template is a prepared database; each test gets a copy. Copying it is faster than
// preparing it again.
type Template struct {
	server   *Server
	label    string
	database string

	mu sync.Mutex // PostgreSQL does not copy a database that is in use, even by another copy
}

var labelPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,19}$`)

// Template creates a database and calls prepare to set it up, such as by migrations. name
// becomes part of database names: up to 20 of a–z, 0–9 and _. No other run uses the
// database. The server's Close drops it.
func (s *Server) Template(ctx context.Context, name string, prepare func(ctx context.Context, pool *pgxpool.Pool) error) (_ *Template, err error) {
	if !labelPattern.MatchString(name) {
		return nil, fmt.Errorf("template %q: use a name of up to 20 of a–z, 0–9 and _", name)
	}
	address, drop, err := s.CreateDatabase(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("template %s: %w", name, errors.Join(err, drop(ctx)))
		}
	}()
	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		return nil, err
	}
	database := pool.Config().ConnConfig.Database
	err = prepare(ctx, pool)
	pool.Close()
	if err != nil {
		return nil, err
	}
	// A database with connections cannot be copied.
	if err := s.seal(ctx, database); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.templates = append(s.templates, database)
	s.mu.Unlock()
	return &Template{server: s, label: name, database: database}, nil
}

// New creates a copy of the template for one test and returns its URL. The copy is dropped
// when the test ends. If the test failed on a server that PGLIMIT_TEST_DATABASE_URL names,
// the copy is kept for inspection and its name is logged.
func (t *Template) New(tb TB) (address string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	t.mu.Lock()
	urls, drop, err := t.server.create(ctx, t.label, t.database)
	t.mu.Unlock()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	address = urls[0]
	tb.Cleanup(func() {
		if tb.Failed() && t.server.kind == kindURL {
			if config, err := pgx.ParseConfig(address); err == nil {
				tb.Logf("the failed test's database is kept: %s at %s:%d", config.Database, config.Host, config.Port)
			}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
		defer cancel()
		if err := drop(ctx); err != nil {
			tb.Logf("%v", err) // the test may have ended the server
		}
	})
	return address
}
