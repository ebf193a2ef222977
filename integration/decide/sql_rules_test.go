package decide

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
)

// forbidden lists what a decision must not use, and why.
var forbidden = map[string]*regexp.Regexp{
	"a sub-select reads the snapshot from before the lock, and some databases refuse it": regexp.MustCompile(`\bselect\b`),
	"now() and its kin stand still in a transaction":                                     regexp.MustCompile(`\b(now|statement_timestamp|transaction_timestamp|timeofday)\s*\(|\bcurrent_timestamp\b|\blocaltimestamp\b|\bcurrent_date\b`),
	"the clock is read once, in the inserted row":                                        regexp.MustCompile(`\bclock_timestamp\b`),
	"timestamps and intervals are not IMMUTABLE to add":                                  regexp.MustCompile(`\btimestamptz?\b|\binterval\b|\bto_timestamp\b|\bextract\b|\bdate_trunc\b`),
	"physical row identity is not portable":                                              regexp.MustCompile(`\bctid\b|\bxmax\b|\bxmin\b`),
	"advisory locks are stubs elsewhere":                                                 regexp.MustCompile(`advisory`),
	"a random value is not IMMUTABLE":                                                    regexp.MustCompile(`\brandom\b|\bgen_random|\bnextval\b`),
}

var (
	sqlCall = regexp.MustCompile(`\b([a-z_][a-z0-9_]*)\s*\(`)
)

// TestDecideStatementsFollowTheRules reads every decision: one upsert, the clock read once
// before the lock, and only IMMUTABLE expressions after it.
func TestDecideStatementsFollowTheRules(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	decisions := 0
	for name, text := range bed.Statements(t) {
		many := strings.HasSuffix(name, "TakeMany")
		if !many && !strings.HasSuffix(name, "Take") || name == "LeaseTake" {
			if n := strings.Count(text, "clock_timestamp"); n > 1 {
				t.Errorf("%s reads the clock %d times", name, n)
			}
			continue
		}
		decisions++
		if strings.Count(text, "insert into") != 1 || strings.HasPrefix(strings.TrimSpace(text), "with") != many {
			t.Errorf("%s is not one plain upsert", name)
		}
		if n := strings.Count(text, "clock_timestamp"); n != 1 {
			t.Errorf("%s reads the clock %d times", name, n)
		}
		if many && (!strings.Contains(text, "with c as materialized") || !strings.Contains(text, "order by a.policy collate \"c\", a.key collate \"c\"\non conflict")) {
			t.Errorf("%s does not read the clock once before its rows, or locks them in no order", name)
		}
		_, locked, found := strings.Cut(text, "do update set")
		if !found {
			t.Errorf("%s has no DO UPDATE", name)
		}
		for why, pattern := range forbidden {
			if hit := pattern.FindString(locked); hit != "" {
				t.Errorf("%s uses %q after the lock: %s", name, hit, why)
			}
		}
		for _, call := range sqlCall.FindAllStringSubmatch(locked, -1) {
			if !immutable(t, pool, call[1]) {
				t.Errorf("%s calls %s, which is not IMMUTABLE", name, call[1])
			}
		}
	}
	if decisions != 14 {
		t.Errorf("read %d decisions", decisions)
	}
}

// syntax lists words that look like a call and are not.
var syntax = map[string]bool{
	"greatest": true, "least": true, "coalesce": true, "arg": true, "narg": true,
	"case": true, "when": true, "then": true, "else": true, "and": true, "array": true,
}

// immutable looks up every function of that name in the catalogue.
func immutable(t *testing.T, pool *pgxpool.Pool, function string) bool {
	t.Helper()
	if syntax[function] {
		return true
	}
	var all *bool
	err := pool.QueryRow(context.Background(), "SELECT bool_and(provolatile = 'i') FROM pg_proc WHERE proname = $1", function).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all != nil && *all
}

var (
	failing       = regexp.MustCompile(`\(case when t\.granted > 0::float8 then t\.granted else \('pglimit: nothing is taken, since a key granted '::text \|\| t\.granted::text\)::float8 end\)::float8 as granted`)
	failingPeriod = regexp.MustCompile(`where case when (.*) then true else \('pglimit: nothing is taken, since the clock is in another period than expected: '::text \|\| a\.now_us::text\)::bool end`)
)

// TestTakeAllIsATakeMany: a TakeAll is the TakeMany of its algorithm, except that it fails
// where that returns a denial or no row.
func TestTakeAllIsATakeMany(t *testing.T) {
	t.Parallel()
	statements := bed.Statements(t)
	words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	found := 0
	for name, text := range statements {
		algorithm, is := strings.CutSuffix(name, "TakeAll")
		if !is {
			continue
		}
		found++
		many, all := words(statements[algorithm+"TakeMany"]), words(text)
		if !failing.MatchString(all) {
			t.Errorf("%s does not fail if a key has no room", name)
		}
		all = failingPeriod.ReplaceAllString(failing.ReplaceAllString(all, "t.granted"), "where ($1)")
		if all != many {
			t.Errorf("%s:\n%s\nis not %sTakeMany:\n%s", name, all, algorithm, many)
		}
	}
	if found != 7 {
		t.Errorf("%d statements, want 7", found)
	}
}
