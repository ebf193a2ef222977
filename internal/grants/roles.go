package grants

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/installed"
)

// role is a role that gets rights.
type role struct {
	oid    uint32
	quoted string

	limit    string // the statement that limits its connections, empty if they are limited
	mayLimit bool   // whether the connection's role may run it
}

// granting plans rights on the objects of a database for roles.
type granting struct {
	*installed.Objects
	askers, operators []role
}

// readGranting reads the catalogue, as [installed.Read] does, and the roles.
func readGranting(ctx context.Context, tx db.DBTX, roles Roles) (*granting, error) {
	all, err := installed.Read(ctx, tx)
	if all == nil {
		return nil, err
	}
	g := &granting{Objects: all}
	return g, errors.Join(err, g.readRoles(ctx, roles))
}

func (g *granting) readRoles(ctx context.Context, roles Roles) error {
	seen := map[string]string{}
	for _, list := range []struct {
		kind  string
		names []string
		into  *[]role
	}{{"asker", roles.Askers, &g.askers}, {"operator", roles.Operators, &g.operators}} {
		for _, name := range list.names {
			if before, ok := seen[name]; ok && before != list.kind {
				return fmt.Errorf("%w: role %q is an asker and an operator: choose one", ErrRole, name)
			} else if ok {
				continue
			}
			seen[name] = list.kind
			r, err := g.readRole(ctx, name, list.kind)
			if err != nil {
				return err
			}
			*list.into = append(*list.into, r)
		}
	}
	return nil
}

func (g *granting) readRole(ctx context.Context, name, kind string) (r role, err error) {
	if name == "" || strings.Contains(name, "\x00") {
		return r, fmt.Errorf("%w: the name of an %s is %q: pass the name of a role", ErrRole, kind, name)
	}
	// As texts: a cast to name would cut a long name off.
	err = g.Tx.QueryRow(ctx, `SELECT r.oid, quote_ident(r.rolname::text),
			CASE r.rolconnlimit WHEN -1 THEN format('ALTER ROLE %I CONNECTION LIMIT %s', r.rolname, greatest(1, current_setting('max_connections')::int / 4)) ELSE '' END,
			i.rolsuper OR i.rolcreaterole AND (current_setting('server_version_num')::int < 160000 OR pg_has_role(i.oid, r.oid, 'MEMBER WITH ADMIN OPTION'))
		FROM pg_roles AS r, pg_roles AS i WHERE r.rolname::text = $1::text AND i.rolname = current_user`, name).Scan(&r.oid, &r.quoted, &r.limit, &r.mayLimit)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && strings.EqualFold(name, "public"):
		return r, fmt.Errorf("%w: PUBLIC is every role: name one role", ErrRole)
	case errors.Is(err, pgx.ErrNoRows):
		return r, fmt.Errorf("%w: there is no role %q: run CREATE ROLE first, or correct the name, which is case-sensitive here", ErrRole, name)
	case err != nil:
		return r, fmt.Errorf("pglimit: look for role %q: %w", name, err)
	}
	return r, nil
}
