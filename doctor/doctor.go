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
// lock that a decision could wait for. Only checks decision and policies write: new rows under
// random keys and names, which they roll back. [RunSQL] is for database/sql. `pglimit doctor` prints the same report.
package doctor

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/internal/pooler"
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
