// Package doctor checks a database that holds pglimit's tables: what would refuse, slow
// down or lose decisions, and what to do about it.
//
//	report, err := doctor.Run(ctx, pool, nil)
//	if err != nil {
//		return err // the database does not answer
//	}
//	for _, c := range report.Checks {
//		fmt.Println(c.Verdict, c.Name, c.Message, c.Fix)
//	}
//
// Run reads the catalogue, the server's statistics and a bounded number of rows. It takes no
// lock that a decision could wait for. Only check decision writes: new rows under random keys,
// which it rolls back. [RunSQL] is for database/sql. `pglimit doctor` prints the same report.
package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/sqldb"
	"github.com/pglimit/pglimit/internal/store"
)

// Verdict is the result of a check. A larger one is worse.
type Verdict int

const (
	// OK means that the check found nothing to do.
	OK Verdict = iota
	// Unchecked means that the check could not look: the role may not, or another check
	// failed that says why. Check.Fix or Check.NextStep is what lets it look.
	Unchecked
	// Warn means that decisions work, and that something should be changed: it costs
	// speed or space, or loses decisions in a failure.
	Warn
	// Fail means that decisions fail or are lost now, or will be soon.
	Fail
)

// verdicts are the names, from OK on.
var verdicts = []string{"ok", "unchecked", "warn", "fail"}

// String returns "ok", "unchecked", "warn" or "fail".
func (s Verdict) String() string {
	if s < OK || s > Fail {
		return fmt.Sprintf("Verdict(%d)", int(s))
	}
	return verdicts[s]
}

// MarshalText returns String.
func (s Verdict) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Verdict) UnmarshalText(text []byte) error {
	known := slices.Index(verdicts, string(text))
	if known < 0 {
		return fmt.Errorf("pglimit: doctor: verdict is %q: use one of %q", text, verdicts)
	}
	*s = Verdict(known)
	return nil
}

// Check is the result of one check.
type Check struct {
	// Name is the check's name: one of [Names].
	Name string `json:"name"`
	// Verdict is OK, Unchecked, Warn or Fail.
	Verdict Verdict `json:"verdict"`
	// Message says in one line what was found.
	Message string `json:"message"`
	// Fix mends what was found, as it is: one line of SQL for a session, or of shell. It is
	// empty if Verdict is OK, or if no line can mend it: then NextStep says what can.
	Fix string `json:"fix,omitempty"`
	// FixAs is who can run Fix, such as "role owner"; empty: the role of the check.
	FixAs string `json:"fix_as,omitempty"`
	// NextStep is what to do instead of Fix or after it, as a sentence; empty: nothing.
	NextStep string `json:"next_step,omitempty"`
	// Details are further lines, such as one for each table. They may name roles,
	// applications, tables and policies, and never contain a key or the text of a
	// statement.
	Details []string `json:"details,omitempty"`
}

// Report is the result of [Run].
type Report struct {
	// Checks are the results, the worst first, and then in the order of [Names]. No check is
	// left out unless Config says so.
	Checks []Check `json:"checks"`
	// At is when Run began, by this program's clock.
	At time.Time `json:"at"`
	// Took is the duration of Run.
	Took time.Duration `json:"took_ns"`
}

// Verdict returns the worst verdict of all checks: OK if there is none.
func (r Report) Verdict() Verdict {
	worst := OK
	for _, c := range r.Checks {
		worst = max(worst, c.Verdict)
	}
	return worst
}

// The defaults of [Config].
const (
	defaultTimeout         = 5 * time.Second
	defaultJanitorInterval = time.Minute
	defaultOldTransaction  = time.Minute
)

// Config configures [Run]. The zero value of each field selects its default.
type Config struct {
	// Only are the names of the checks to run. Default: all.
	Only []string
	// Skip are the names of checks to leave out. Default: none.
	Skip []string
	// Timeout limits each check, on the server too. A check that takes longer is a Warn
	// that says so. Range: 10 milliseconds to 10 minutes. Default: 5 seconds.
	Timeout time.Duration
	// JanitorInterval is the Config.Interval of the janitors. Check janitor warns if the
	// last sweep is older than five of them. Range: 1 millisecond to 24 hours. Default: 1
	// minute.
	JanitorInterval time.Duration
	// OldTransaction is the age from which check snapshots reports a transaction. It
	// fails from sixty times that age on. Range: 1 millisecond to 24 hours. Default: 1
	// minute.
	OldTransaction time.Duration
	// Now returns this program's time, which check clock compares with the database's.
	// It is for tests. Default: time.Now.
	Now func() time.Time
}

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
		{"decision", checkDecision, self, []string{"primary", "tables", "migrations", "grants", "schemas"}},
		{"locks", checkLocks, admin, theTables},
		{"isolation", checkIsolation, self, nil},
		{"timeouts", checkTimeouts, self, nil},
		{"connections", checkConnections, self, nil},
		{"durability", checkDurability, admin, nil},
		{"replicas", checkReplicas, admin, nil},
		{"unlogged", checkUnlogged, owner, theTables},
		{"clock", checkClock, self, nil},
		{"future", checkFuture, self, theRows},
		{"janitor", checkJanitor, self, theRows},
		{"snapshots", checkSnapshots, admin, nil},
		{"autovacuum", checkAutovacuum, owner, theTables},
		{"hot", checkHOT, owner, theTables},
		{"bloat", checkBloat, owner, theTables},
		{"policies", checkPolicies, self, theRows},
		{"programs", checkPrograms, self, append(theRows, "policies")},
	}
}

// Names returns the names of all checks, in the order of the report.
func Names() []string {
	var names []string
	for _, c := range all {
		names = append(names, c.name)
	}
	return names
}

// Validate returns the limiter.ErrInvalid that [Run] would return for a field out of bounds.
// c may be nil.
func (c *Config) Validate() error {
	_, err := c.complete()
	return err
}

// complete returns a copy of c with defaults for zero fields; c may be nil.
func (c *Config) complete() (Config, error) {
	var full Config
	if c != nil {
		full = *c
	}
	for _, d := range []struct {
		field                string
		value                *time.Duration
		least, most, usually time.Duration
	}{
		{"Timeout", &full.Timeout, 10 * time.Millisecond, 10 * time.Minute, defaultTimeout},
		{"JanitorInterval", &full.JanitorInterval, time.Millisecond, 24 * time.Hour, defaultJanitorInterval},
		{"OldTransaction", &full.OldTransaction, time.Millisecond, 24 * time.Hour, defaultOldTransaction},
	} {
		*d.value = cmp.Or(*d.value, d.usually)
		if *d.value < d.least || *d.value > d.most {
			return full, store.Invalid("doctor.Config."+d.field, d.value.String(), fmt.Sprintf("must be from %v to %v, or 0 for %v", d.least, d.most, d.usually))
		}
	}
	for _, list := range []struct {
		field string
		names []string
	}{{"Only", full.Only}, {"Skip", full.Skip}} {
		for _, n := range list.names {
			if !slices.Contains(Names(), n) {
				return full, store.Invalid("doctor.Config."+list.field, store.Quote(n), "must be a check: "+strings.Join(Names(), ", "))
			}
		}
	}
	if full.Now == nil {
		full.Now = time.Now
	}
	return full, nil
}

// Run makes the checks and returns what they found. A nil config means the defaults.
//
// Run opens up to two connections with pool's settings, so that it also works while all of
// pool's connections are in use, and closes them at the end. Only check pooler borrows two
// connections of pool. The tables are those of the search_path. A check that fails itself,
// takes too long or lacks a right is a line in the report.
//
// Run returns limiter.ErrInvalid for a nil pool or a field of config that is out of bounds,
// and an error if the database cannot be reached, or if ctx ends.
func Run(ctx context.Context, pool *pgxpool.Pool, config *Config) (Report, error) {
	if pool == nil {
		return Report{}, store.Invalid("pool", "nil", "open one with pgxpool.New")
	}
	full, err := config.complete()
	if err != nil {
		return Report{}, err
	}
	c := pool.Config()
	c.ConnConfig.DefaultQueryExecMode = pooler.Mode(pool)
	c.MinConns, c.MinIdleConns, c.MaxConns = 0, 0, 2
	if c.ConnConfig.ConnectTimeout == 0 || c.ConnConfig.ConnectTimeout > full.Timeout {
		c.ConnConfig.ConnectTimeout = full.Timeout
	}
	second, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return Report{}, fmt.Errorf("pglimit: doctor: %w", err)
	}
	defer second.Close()
	own, db := stdlib.OpenDBFromPool(pool), stdlib.OpenDBFromPool(second)
	defer own.Close()
	defer db.Close()
	return run(ctx, &patient{config: full, own: own, db: db, size: int64(pool.Config().MaxConns), opened: int64(pool.Stat().TotalConns()), mode: pool.Config().ConnConfig.DefaultQueryExecMode})
}

// RunSQL is [Run] for database/sql, with any PostgreSQL driver. It uses connections of db,
// one at a time, and two for check pooler. So it waits, up to Config.Timeout for each check,
// while all of them are in use. Check pooler can only judge pgx's driver.
func RunSQL(ctx context.Context, db *sql.DB, config *Config) (Report, error) {
	if db == nil {
		return Report{}, store.Invalid("db", "nil", "open one with sql.Open")
	}
	full, err := config.complete()
	if err != nil {
		return Report{}, err
	}
	s := db.Stats()
	return run(ctx, &patient{config: full, own: db, db: db, size: int64(s.MaxOpenConnections), opened: int64(s.OpenConnections)})
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
	found, err := c.find(within, p)
	if err != nil {
		if caused, ok := p.cause(ctx, c); ok {
			found = caused
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
	case ctx.Err() != nil, code == "57014":
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

// patient is the database that is checked.
type patient struct {
	config Config
	own    *sql.DB // the caller's connections
	db     *sql.DB // of pgx: the doctor's own, in a mode that works through any pooler
	// size is the most connections that the caller's pool opens, 0 if it has no bound, and
	// opened those that are open.
	size, opened int64
	mode         pgx.QueryExecMode // of the caller's pool of pgx

	settings  map[string]setting
	role      string // as SQL has it, and its name
	roleName  string
	superuser bool
	database  string // quoted
	home      string // the schema of the tables, quoted; empty: there is none
	owner     string // of the tables, quoted, and its oid; empty: there are no tables
	ownerOID  uint32
	owns      bool // the role may do what the owner may
	path      []string
	tables    []table // pglimit's, in home
	version   int     // server_version_num
	standby   bool
	seesAll   bool // may see the statistics of other roles' sessions

	found map[string]Check // by the name of a check that was made
}

// setting is a row of pg_settings.
type setting struct {
	value  string // in the setting's base unit
	source string
}

// table is one of pglimit's tables.
type table struct {
	name    string // without the schema
	quoted  string // with it
	oid     uint32
	kind    string // relpersistence
	options []string
	rows    float64 // by the planner's statistics; negative if unknown
}

// admit connects, and reads what several checks need.
func (p *patient) admit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()
	return p.readBasics(ctx)
}

// begin calls read in a read-only transaction in which statements and waits for locks end
// in time, and only pg_catalog's objects are found.
func (p *patient) begin(ctx context.Context, read func(db.DBTX) error) error {
	return p.transaction(ctx, func(tx db.DBTX) error {
		if err := p.bound(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('search_path'::text, 'pg_catalog, pg_temp'::text, true)`); err != nil {
			return err
		}
		return read(tx)
	})
}

// atHome is begin with the tables' schema in the search_path, for statements that programs use.
func (p *patient) atHome(ctx context.Context, read func(db.DBTX) error) error {
	return p.begin(ctx, func(tx db.DBTX) error {
		if _, err := tx.Exec(ctx, "SET LOCAL search_path TO pg_catalog, "+p.home+", pg_temp"); err != nil {
			return err
		}
		return read(tx)
	})
}

// bound ends a transaction's statements and waits for locks in time.
func (p *patient) bound(ctx context.Context, tx db.DBTX) error {
	wait := max(1, min(p.config.Timeout, time.Second).Milliseconds())
	_, err := tx.Exec(ctx, fmt.Sprintf(`SELECT pg_catalog.set_config('statement_timeout'::text, '%d'::text, true), pg_catalog.set_config('lock_timeout'::text, '%d'::text, true)`,
		p.config.Timeout.Milliseconds(), wait))
	return err
}

// transaction calls read in a read-only transaction.
func (p *patient) transaction(ctx context.Context, read func(db.DBTX) error) error {
	tx, err := p.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted, ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	return read(sqldb.Tx(tx))
}

// rows collects the rows of a query.
func rows[R any](ctx context.Context, p *patient, sql string, args ...any) (all []R, err error) {
	err = p.begin(ctx, func(tx db.DBTX) error {
		found, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(found, pgx.RowToStructByPos[R])
		return err
	})
	return all, err
}
