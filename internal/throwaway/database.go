package throwaway

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// CreateDatabase creates an empty database, whose name holds the label, and
// returns a URL of it and how to drop it, connections to it notwithstanding. As
// in PostgreSQL 15, other roles than its owner may not create in schema public.
func (s *Server) CreateDatabase(ctx context.Context, label string) (address string, drop func(context.Context) error, _ error) {
	// Unlike template1, nobody can be connected to template0, which would
	// keep it from being copied.
	address, drop, err := s.create(ctx, label, "template0")
	if err != nil {
		return "", nil, err
	}
	if err := execOn(ctx, address, "REVOKE CREATE ON SCHEMA public FROM PUBLIC"); err != nil {
		return "", nil, errors.Join(fmt.Errorf("close schema public of %s: %w", label, err), drop(ctx))
	}
	return address, drop, nil
}

// create creates a copy of a template under a name nobody else uses.
func (s *Server) create(ctx context.Context, label, template string) (address string, drop func(context.Context) error, _ error) {
	name := fmt.Sprintf("pglimit_%s_%s_%d", label, s.run, s.count.Add(1))
	const longest = 63
	if len(name) > longest {
		return "", nil, fmt.Errorf("create database %s: its name is %d bytes too long: shorten the label %q", name, len(name)-longest, label)
	}
	address, err := databaseURL(s.URL(), name)
	if err != nil {
		return "", nil, err
	}
	sql := "CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(template)
	if s.number >= 150000 {
		sql += " STRATEGY FILE_COPY" // half the work of WAL_LOG, which older servers do not have
	}
	err = s.exec(ctx, sql)
	if err != nil {
		return "", nil, fmt.Errorf("create database %s: %w", name, err)
	}
	return address, func(ctx context.Context) error { return s.drop(ctx, name) }, nil
}

func (s *Server) drop(ctx context.Context, name string) error {
	if err := s.exec(ctx, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop database %s: %w", name, err)
	}
	return nil
}

// exec runs one statement on a connection of its own, since the server may
// have been restarted since the last.
func (s *Server) exec(ctx context.Context, sql string) error { return execOn(ctx, s.URL(), sql) }

func execOn(ctx context.Context, address, sql string) error {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// databaseURL is address with another database. address is a URL or, as
// libpq takes as well, a line of key=value pairs, of which the last holds.
func databaseURL(address, name string) (string, error) {
	if !strings.HasPrefix(address, "postgres://") && !strings.HasPrefix(address, "postgresql://") {
		return address + " dbname=" + name, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("%s is not a URL that can be read: see postgres://USER:PASSWORD@HOST:PORT/DATABASE", envURL) // the cause would show the password
	}
	u.Path = "/" + name
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = query.Encode()
	return u.String(), nil
}
