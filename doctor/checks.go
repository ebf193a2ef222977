package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/duration"
)

// check is one check.
type check struct {
	name string
	// find returns what it found, without the name. An error becomes a line, unless there is a
	// verdict too.
	find func(context.Context, *patient) (Check, error)
	// as is who runs its fixes, unless find says so.
	as fixer
	// needs are checks, in the order of the report. If find fails after one of them has, the
	// error has the same cause, which is reported once.
	needs []string
}

// fixer is who can run a fix.
type fixer int

const (
	self  fixer = iota // the role of the check
	owner              // of the tables
	admin              // a superuser
)

// What checks need.
var (
	theTables = []string{"tables"}
	theRows   = []string{"tables", "migrations", "grants"}
)

// all are the checks in the order of the report.
var all []check

func init() { // checks look into all
	all = []check{
		{"server", checkServer, admin, nil},
		{"primary", checkPrimary, self, nil},
		{"tables", checkTables, self, nil},
		{"migrations", checkMigrations, owner, theTables},
		{"functions", checkFunctions, owner, theTables},
		{"grants", checkGrants, owner, []string{"tables", "migrations"}},
		{"pooler", checkPooler, self, nil},
		{"schemas", checkSchemas, admin, theTables},
		{"encoding", checkEncoding, self, nil},
		{"decision", checkDecision, self, []string{"primary", "tables", "migrations", "grants", "schemas", "encoding"}},
		{"locks", checkLocks, admin, theTables},
		{"isolation", checkIsolation, self, nil},
		{"timeouts", checkTimeouts, self, nil},
		{"connections", checkConnections, self, nil},
		{"durability", checkDurability, admin, nil},
		{"replicas", checkReplicas, admin, nil},
		{"unlogged", checkUnlogged, owner, theTables},
		{"cluster", checkCluster, owner, []string{"tables", "migrations"}},
		{"clock", checkClock, self, nil},
		{"future", checkFuture, self, theRows},
		{"janitor", checkJanitor, self, theRows},
		{"keys", checkKeys, self, theRows},
		{"snapshots", checkSnapshots, admin, nil},
		{"autovacuum", checkAutovacuum, owner, theTables},
		{"hot", checkHOT, owner, theTables},
		{"bloat", checkBloat, owner, theTables},
		{"policies", checkPolicies, self, theRows},
		{"programs", checkPrograms, self, append(theRows, "policies")},
	}
}

func run(ctx context.Context, p *patient) (Report, error) {
	began := time.Now()
	report := Report{At: began, Checks: []Check{}}
	if err := p.admit(ctx); err != nil {
		return Report{}, fmt.Errorf("pglimit: doctor: %w", err)
	}
	p.found = map[string]Check{}
	for _, c := range all {
		if len(p.config.Only) > 0 && !slices.Contains(p.config.Only, c.name) || slices.Contains(p.config.Skip, c.name) {
			continue
		}
		report.Checks = append(report.Checks, p.examine(ctx, c))
		if ctx.Err() != nil {
			return Report{}, fmt.Errorf("pglimit: doctor: %w", context.Cause(ctx))
		}
	}
	slices.SortStableFunc(report.Checks, func(a, b Check) int { return cmp.Compare(b.Verdict, a.Verdict) })
	report.Took = time.Since(began)
	return report, nil
}

// examine makes one check within its time.
func (p *patient) examine(ctx context.Context, c check) Check {
	within, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	found, err := Check{}, errNoTables
	if p.home != "" || !slices.Contains(c.needs, "tables") {
		found, err = c.find(within, p)
	}
	if err != nil {
		if caused, ok := p.cause(ctx, c); ok {
			found = caused
		} else if ms := p.number("statement_timeout"); sqlState(err) == cancelled && ms > 0 && ms < p.config.Timeout.Milliseconds() {
			found = Check{Verdict: Unchecked, Message: fmt.Sprintf("statement_timeout, %d ms, ended what this check reads", ms), NextStep: "see check timeouts"}
		} else if found.Verdict == OK {
			found = unable(within, err, p.config.Timeout)
		}
	}
	found.Name = c.name
	if found.Fix != "" && found.FixAs == "" {
		found.FixAs = p.fixer(c.as)
	}
	p.found[c.name] = found
	return found
}

// cause looks for a check that c needs and that failed. The first check that meets such a
// cause reports it, and the others refer to it.
func (p *patient) cause(ctx context.Context, c check) (Check, bool) {
	for _, name := range c.needs {
		found, made := p.found[name]
		if !made {
			found = p.examine(ctx, all[slices.Index(Names(), name)])
			if found.Verdict == Fail {
				p.found[name] = Check{Name: c.name, Verdict: Fail}
				return found, true
			}
		}
		if found.Verdict == Fail {
			return Check{Verdict: Unchecked, Message: fmt.Sprintf("check %s failed, and this check needs what is missing", found.Name), NextStep: "see check " + found.Name}, true
		}
	}
	return Check{}, false
}

// fixer names who can run a fix; empty: the role of the check.
func (p *patient) fixer(f fixer) string {
	switch {
	case f == self || p.superuser || f == owner && p.owns:
		return ""
	case f == admin:
		return "a superuser"
	case p.owner == "":
		return "the owner of the tables"
	}
	return "role " + p.owner
}

// unable is the line of a check that failed.
func unable(ctx context.Context, err error, timeout time.Duration) Check {
	code := sqlState(err)
	text := line(err)
	if server := (*pgconn.PgError)(nil); errors.As(err, &server) {
		text = line(errors.New(server.Message))
	}
	switch {
	case code == forbidden:
		return Check{Verdict: Unchecked, Message: "this role may not read it: " + text, NextStep: "run the doctor as another role"}
	case code == locked:
		return Check{Verdict: Unchecked, Message: "a table is locked: " + text, NextStep: "see check locks, or run the doctor again when the migration or VACUUM FULL has ended"}
	case ctx.Err() != nil, code == cancelled:
		return Check{Verdict: Warn, Message: fmt.Sprintf("not checked, it took longer than %s", duration.Format(timeout)), NextStep: "run the doctor again with a longer timeout, or when the server is less busy"}
	}
	return Check{Verdict: Fail, Message: text, NextStep: correct}
}

// correct is the next step after an error that the doctor does not know.
const correct = "correct the error, and run the doctor again"

// line returns an error's text in one line.
func line(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "pglimit: "), ": pglimit: ", ": ")
}

// SQLSTATEs.
const (
	forbidden = "42501" // the role has no right to it
	locked    = "55P03" // it waited too long for a lock
	cancelled = "57014" // by statement_timeout or pg_cancel_backend
)

// sqlState returns the SQLSTATE of an error of any driver, or "".
func sqlState(err error) string {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// errNoTables is the error of checks that need the tables, if there are none.
var errNoTables = errors.New("no schema of the search_path has pglimit's tables")
