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
