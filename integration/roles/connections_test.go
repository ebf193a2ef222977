package roles

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/grants"
)

// TestGrantsLeaveConnections: an asker that opens all connections it can leaves some to
// others. It takes all of a server's, so it is not parallel.
func TestGrantsLeaveConnections(t *testing.T) {
	s := newSite(t)
	asker := s.roles.Askers[0]
	most := testworld.Value[int](t, s.super, `SELECT current_setting('max_connections')::int / 4`)
	statement := fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT %d", asker, most)

	// An owner that may not alter roles gets a warning with the statement.
	plan, err := grants.Apply(t.Context(), s.owner, s.roles)
	if err != nil || slices.Contains(plan.Statements, statement) || !strings.Contains(strings.Join(plan.Warnings, "\n"), "run "+statement) {
		t.Errorf("as the owner: %q, %v", plan, err)
	}
	testworld.Exec(t, s.super, fmt.Sprintf(`ALTER ROLE %[1]s CREATEROLE; GRANT %[2]s TO %[1]s WITH ADMIN OPTION`, testworld.RoleOf(t, s.ownerURL), asker))
	if plan, err = grants.Apply(t.Context(), s.owner, s.roles); err != nil || !slices.Contains(plan.Statements, statement) {
		t.Errorf("as an owner that may: %q, %v", plan, err)
	}
	opened := 0
	for {
		conn, err := pgx.Connect(t.Context(), s.askerURL)
		var answer *pgconn.PgError
		if errors.As(err, &answer) && answer.Code == "53300" {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		opened++
	}
	conn, err := pgx.Connect(t.Context(), s.operatorURL)
	if err != nil {
		t.Fatalf("an asker opened %d connections and left none: %v", opened, err)
	}
	defer conn.Close(t.Context())
	if opened > most {
		t.Errorf("an asker opened %d connections, limit %d", opened, most)
	}

	// A limit that is there is kept.
	testworld.Exec(t, s.super, `ALTER ROLE `+asker+` CONNECTION LIMIT 2`)
	if plan, err := grants.Apply(t.Context(), s.owner, s.roles); err != nil || strings.Contains(fmt.Sprint(plan), "CONNECTION LIMIT") {
		t.Errorf("with a limit: %q, %v", plan, err)
	}
}
