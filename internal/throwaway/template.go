package throwaway

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Template is a prepared database, of which every test gets a copy. Copying
// one is faster than preparing it anew.
type Template struct {
	server   *Server
	label    string
	database string

	mu sync.Mutex // PostgreSQL refuses to copy a database in use, by another copy too
}

var labelPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,19}$`)

// Template creates a database and has prepare fill it, by migrations for
// example. name becomes part of database names: up to 20 of a–z, 0–9 and _.
// The database is this run's alone; Close of the server drops it.
func (s *Server) Template(ctx context.Context, name string, prepare func(ctx context.Context, pool *pgxpool.Pool) error) (_ *Template, err error) {
	if !labelPattern.MatchString(name) {
		return nil, fmt.Errorf("template %q: take a name of up to 20 of a–z, 0–9 and _", name)
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
	// Nobody may be connected while it is copied.
	if err := s.exec(ctx, "ALTER DATABASE "+quote(database)+" ALLOW_CONNECTIONS false"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.templates = append(s.templates, database)
	s.mu.Unlock()
	return &Template{server: s, label: name, database: database}, nil
}
