package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/migrations"
)

func checkPooler(ctx context.Context, p *patient) (Check, error) {
	between, err := pooler.Between(ctx, p.pool)
	if err != nil {
		return Check{}, err
	}
	mode := p.own.Config().ConnConfig.DefaultQueryExecMode
	if !between {
		return judgePooler(mode, false, true, nil), nil
	}
	lost := pooler.Check(ctx, p.own)
	if lost != nil && !pooler.Lost(lost) {
		return Check{}, fmt.Errorf("execute a statement on two connections of the pool: %w", lost)
	}
	return judgePooler(mode, true, p.own.Config().MaxConns > 1, lost), nil
}

// judgePooler judges an exec mode of pgx. tried reports whether statements were executed
// on two connections, and lost is the error if a prepared one was missing then.
func judgePooler(mode pgx.QueryExecMode, between, tried bool, lost error) Check {
	const fix = "add default_query_exec_mode=exec, or cache_describe, to the database's URL"
	prepares := mode == pgx.QueryExecModeCacheStatement
	switch {
	case !between:
		return Check{Message: fmt.Sprintf("connections lead to the server directly, in exec mode %s", modeName(mode))}
	case lost != nil:
		return Check{Status: Warn, Message: fmt.Sprintf("a pooler separates prepared statements from their connections, in exec mode %s: the library sends them again, unprepared", modeName(mode)), Fix: fix}
	case mode == pgx.QueryExecModeDescribeExec:
		return Check{Status: Warn, Message: "a pooler is between, and exec mode describe_exec needs two round trips: another client's statement may come between them", Fix: fix}
	case prepares && !tried:
		return Check{Status: Warn, Message: "a pooler is between, and the pool has one connection: whether prepared statements are kept was not tried", Fix: fix}
	}
	return Check{Message: fmt.Sprintf("a pooler is between, and exec mode %s works through it", modeName(mode))}
}

// modeName is the name of a mode in a connection string.
func modeName(mode pgx.QueryExecMode) string { return strings.ReplaceAll(mode.String(), " ", "_") }

func checkSchemas(ctx context.Context, p *patient) (Check, error) {
	exposed, err := migrations.Strangers(ctx, p.pool)
	if err != nil {
		return Check{}, err
	}
	several, err := db.New().TableOwners(ctx, p.pool)
	if err != nil {
		return Check{}, err
	}
	c := judgeSchemas(exposed, p.path)
	if several != "" { // programs decide nothing
		c.Status, c.Message = Fail, fmt.Sprintf("pglimit's tables in the search_path have several owners (%s), so programs decide nothing; %s", several, c.Message)
		c.Fix = "drop the tables that `pglimit migrate up` did not create, or run ALTER TABLE … OWNER TO for those of another role"
	}
	return c, nil
}

// judgeSchemas judges which other roles may create objects.
func judgeSchemas(exposed []migrations.Exposure, path []string) Check {
	if len(exposed) == 0 {
		return Check{Message: "no other role may create objects in " + strings.Join(path, ", ")}
	}
	c := Check{Message: fmt.Sprintf("other roles may create objects in %d of the schemas that statements use", len(exposed))}
	for _, e := range exposed {
		c = worse(c, Check{Status: Warn, Details: []string{e.String()}, Fix: e.Fix()})
	}
	return c
}

func checkIsolation(_ context.Context, p *patient) (Check, error) {
	level := p.settings["default_transaction_isolation"].value
	if level == "read committed" {
		return Check{Message: "default_transaction_isolation is read committed"}, nil
	}
	return Check{Status: Warn, Message: fmt.Sprintf("default_transaction_isolation is %s: decisions on one key conflict and are tried again, or fail in your transactions with ErrRetryTx", level),
		Fix: p.alter("default_transaction_isolation", "read committed")}, nil
}

// shortest is the least timeout, in milliseconds, that leaves a decision the time of the
// limiter's default Config.Timeout.
const shortest = 1000

// timeouts are the settings that end statements or sessions, and whom a short one hurts.
var timeouts = []struct{ name, hurts string }{
	{"statement_timeout", "decisions and sweeps are cancelled that had more time"},
	{"transaction_timeout", "transactions with a limit are ended that had more time"},
	{"idle_in_transaction_session_timeout", "connections with an open transaction are closed"},
	{"lock_timeout", "limits in your transactions fail with ErrRetryTx while another transaction has the key's row"},
}

func checkTimeouts(_ context.Context, p *patient) (Check, error) {
	c := Check{Message: "no timeout of this role is shorter than a decision's second"}
	for _, t := range timeouts {
		ms := p.number(t.name)
		if ms <= 0 || ms >= shortest {
			continue
		}
		c = worse(c, Check{Status: Warn, Details: []string{fmt.Sprintf("%s is %d ms: %s", t.name, ms, t.hurts)}, Fix: p.alter(t.name, "5s")})
	}
	if c.Status != OK {
		c.Message = fmt.Sprintf("%d timeouts of this role are shorter than a decision's second", len(c.Details))
	}
	return c, nil
}

// needsTables returns errNoTables if there are none.
func (p *patient) needsTables() error {
	if p.home == "" {
		return fmt.Errorf("%w (%s)", errNoTables, strings.Join(p.path, ", "))
	}
	return nil
}
