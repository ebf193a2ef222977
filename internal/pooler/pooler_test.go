package pooler

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestExplain checks that an error caused by a pooler names the setting to change, once,
// and that any other error is unchanged.
func TestExplain(t *testing.T) {
	t.Parallel()
	answer := func(code string) error { return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code}) }
	for _, c := range []struct {
		err  error
		mode pgx.QueryExecMode
		// whether Explain (alone) and ExplainIn (behind) add ErrStatements
		alone, behind bool
	}{
		{answer("26000"), pgx.QueryExecModeCacheStatement, true, true},
		{answer("42P05"), pgx.QueryExecModeExec, true, true},
		{answer("22P02"), pgx.QueryExecModeDescribeExec, false, true},
		{answer("08P01"), pgx.QueryExecModeDescribeExec, false, true},
		{answer("42P01"), pgx.QueryExecModeDescribeExec, false, false},
		{answer("22P02"), pgx.QueryExecModeCacheStatement, false, false},
		{answer("22P02"), pgx.QueryExecModeExec, false, false},
		{answer("53300"), pgx.QueryExecModeCacheDescribe, false, false},
		{errors.New("no server"), pgx.QueryExecModeCacheStatement, false, false},
		{nil, pgx.QueryExecModeCacheStatement, false, false},
	} {
		for i, err := range []error{Explain(c.err), Explain(Explain(c.err)), ExplainIn(c.mode, c.err), Explain(ExplainIn(c.mode, c.err))} {
			want := c.alone
			if i >= 2 {
				want = c.behind
			}
			if errors.Is(err, ErrStatements) != want || !errors.Is(err, c.err) {
				t.Errorf("%v in mode %v, %d: got %v, want it explained: %v", c.err, c.mode, i, err, want)
			}
			if want && strings.Count(err.Error(), "default_query_exec_mode=exec") != 1 {
				t.Errorf("%v: got %v", c.err, err)
			}
		}
	}
}

// TestLostAndRefused: which errors of the server or of PgBouncer 1.18 mean that a pooler
// lost a statement, or that a login is refused.
func TestLostAndRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code, message string
		lost, refused bool
	}{
		{"26000", "prepared statement does not exist", true, false},
		{"42P05", "prepared statement already exists", true, false},
		{"08P01", `bind message supplies 1 parameters, but prepared statement "" requires 2`, true, false},
		{"08P01", "password authentication failed", false, true},
		{"08P01", "no such database: shop", false, true},
		{"08P01", `database "shop" does not exist`, false, true},
		{"08P01", "unsupported startup parameter: search_path", false, true},
		{"08P01", "query_wait_timeout", false, false},
		{"08P01", "server conn crashed?", false, false},
		{"3D000", `database "shop" does not exist`, false, false}, // the server's own answer
		{"57P03", "the database system is starting up", false, false},
	} {
		err := fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: c.code, Message: c.message})
		if Lost(err) != c.lost || Refused(err) != c.refused {
			t.Errorf("%v: lost %v, refused %v", err, Lost(err), Refused(err))
		}
	}
}
