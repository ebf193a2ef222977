package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/strangers"
)

func checkPooler(ctx context.Context, p *patient) (c Check, err error) {
	err = onPgx(ctx, p.db, 1, func(conns []*pgx.Conn) error {
		between, err := pooler.BetweenOn(ctx, conns[0])
		if err == nil && !between {
			c = judgePooler(cmp.Or(p.mode, conns[0].Config().DefaultQueryExecMode), false, true, nil)
		}
		return err
	})
	if errors.Is(err, errNotPgx) {
		return Check{Verdict: Unchecked, Message: "whether a pooler is between cannot be seen with this driver; docs/operations.md has the settings for lib/pq behind one",
			Fix: "pglimit doctor --only pooler"}, nil
	}
	if err != nil || c.Message != "" {
		return c, err
	}
	tried := 2
	if p.size == 1 {
		tried = 1
	}
	err = onPgx(ctx, p.own, tried, func(conns []*pgx.Conn) error {
		lost := pooler.CheckOn(ctx, conns)
		if lost != nil && !pooler.Lost(lost) {
			return fmt.Errorf("execute a statement on two connections of the pool: %w", lost)
		}
		c = judgePooler(conns[0].Config().DefaultQueryExecMode, true, tried > 1, lost)
		return nil
	})
	return c, err
}

// errNotPgx is onPgx's error for connections of another driver.
var errNotPgx = errors.New("the driver is not pgx")

// onPgx calls f with n connections of db at once.
func onPgx(ctx context.Context, db *sql.DB, n int, f func([]*pgx.Conn) error, have ...*pgx.Conn) error {
	if len(have) == n {
		return f(have)
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Raw(func(driver any) error {
		of, ok := driver.(*stdlib.Conn)
		if !ok {
			return errNotPgx
		}
		return onPgx(ctx, db, n, f, append(have, of.Conn())...)
	})
}

// judgePooler judges an exec mode of pgx. tried reports whether statements were executed
// on two connections, and lost is the error if a prepared one was missing then.
func judgePooler(mode pgx.QueryExecMode, between, tried bool, lost error) Check {
	const next = "add default_query_exec_mode=exec, or cache_describe, to the database's URL"
	prepares := mode == pgx.QueryExecModeCacheStatement
	switch {
	case !between:
		return Check{Message: fmt.Sprintf("connections lead to the server directly, in exec mode %s", modeName(mode))}
	case lost != nil:
		return Check{Verdict: Warn, Message: fmt.Sprintf("a pooler separates prepared statements from their connections, in exec mode %s: the library sends them again, unprepared", modeName(mode)), NextStep: next}
	case mode == pgx.QueryExecModeDescribeExec:
		return Check{Verdict: Warn, Message: "a pooler is between, and exec mode describe_exec needs two round trips: another client's statement may come between them", NextStep: next}
	case prepares && !tried:
		return Check{Verdict: Warn, Message: "a pooler is between, and the pool has one connection: whether prepared statements are kept was not tried", NextStep: next}
	}
	return Check{Message: fmt.Sprintf("a pooler is between, and exec mode %s works through it", modeName(mode))}
}

// modeName is the name of a mode in a connection string.
func modeName(mode pgx.QueryExecMode) string { return strings.ReplaceAll(mode.String(), " ", "_") }

func checkSchemas(ctx context.Context, p *patient) (Check, error) {
	var owners db.TableOwnersRow
	err := p.transaction(ctx, func(tx db.DBTX) (err error) {
		owners, err = db.New().TableOwners(ctx, tx)
		return err
	})
	if err != nil {
		return Check{}, err
	}
	trusted := p.ownerOID
	if owners.Several != "" { // one of them may have put a table in front
		trusted = 0
	}
	exposed, err := strangers.Find(ctx, p.db, trusted)
	if err != nil {
		return Check{}, err
	}
	c := judgeSchemas(exposed, p.path, p.owner)
	if owners.Several != "" { // programs decide nothing
		c.Verdict, c.Message = Fail, fmt.Sprintf("pglimit's tables in the search_path have several owners (%s), so programs decide nothing; %s", owners.Several, c.Message)
		c.Fix, c.NextStep = "", "drop the tables that `pglimit migrate up` did not create, or run ALTER TABLE … OWNER TO for those of another role"
	}
	return c, nil
}

// judgeSchemas judges which roles other than heir, to whom schemas should belong, may create
// objects.
func judgeSchemas(exposed []strangers.Exposure, path []string, heir string) Check {
	if len(exposed) == 0 {
		return Check{Message: "no other role may create objects in " + strings.Join(path, ", ")}
	}
	c := Check{Message: fmt.Sprintf("other roles may create objects in %d of the schemas that statements use", len(exposed))}
	for _, e := range exposed {
		c = worse(c, Check{Verdict: Warn, Details: []string{e.String()}, Fix: e.Fix(heir)})
	}
	return c
}

func checkEncoding(_ context.Context, p *patient) (Check, error) {
	client := p.settings["client_encoding"].value
	if exec.CheckEncoding(client, p.settings["server_encoding"].value) == nil {
		return Check{Message: "client_encoding is " + client}, nil
	}
	return p.alter("client_encoding", "'UTF8'").as(Fail, fmt.Sprintf("client_encoding is %s: programs with pgx decide nothing, since a key that is not ASCII would be stored as another", client)), nil
}

func checkIsolation(_ context.Context, p *patient) (Check, error) {
	level := p.settings["default_transaction_isolation"].value
	if level == "read committed" {
		return Check{Message: "default_transaction_isolation is read committed"}, nil
	}
	return p.alter("default_transaction_isolation", "'read committed'").as(Warn,
		fmt.Sprintf("default_transaction_isolation is %s: decisions on one key conflict and are tried again, or fail in your transactions with ErrRetryTx", level)), nil
}

// Timeouts, in milliseconds: the least that leaves a decision the time of the limiter's default
// Config.Timeout, and the least that most decisions can do with.
const (
	shortest = 1000
	enough   = 100
)

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
		ends := ms < enough && t.name == "statement_timeout" // perhaps what the doctor reads, which then lacks the setting's source
		if ends {
			p.settings[t.name] = setting{value: p.settings[t.name].value}
		}
		one := p.alter(t.name, "'5s'")
		one.Verdict, one.Details = Warn, []string{fmt.Sprintf("%s is %d ms: %s", t.name, ms, t.hurts)}
		if ends {
			one.Verdict, one.NextStep = Fail, "remove it from the connection string too, if that has it"
			one.Fix = strings.Replace(one.Fix, "ALTER", "SET statement_timeout = '5s'; ALTER", 1) // as the first statement would end too
		}
		c = worse(c, one)
	}
	if c.Verdict != OK {
		c.Message = printable.Count(len(c.Details), "timeout") + " of this role, shorter than a decision's second: " + c.Details[0]
	}
	return c, nil
}
