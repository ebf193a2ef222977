package decide

import (
	"context"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// forbidden lists what a decision must not use, and why.
var forbidden = map[string]*regexp.Regexp{
	"a table is read in the snapshot from before the lock": regexp.MustCompile(`\bfrom\s+[^(\s]|\bjoin\b|\blateral\b`),
	"the clock is read in the inserted row":                regexp.MustCompile(`\b(clock_timestamp|statement_timestamp)\b|now_us`),
	"timestamps and intervals are not IMMUTABLE to add":    regexp.MustCompile(`\btimestamptz?\b|\binterval\b|\bto_timestamp\b|\bextract\b|\bdate_trunc\b`),
	"physical row identity is not portable":                regexp.MustCompile(`\bctid\b|\bxmax\b|\bxmin\b`),
	"advisory locks are stubs elsewhere":                   regexp.MustCompile(`advisory`),
	"a random value is not IMMUTABLE":                      regexp.MustCompile(`\brandom\b|\bgen_random|\bnextval\b`),
}

var (
	aliased = regexp.MustCompile(`^insert into \w+ as\b|\bt\.`)
	sqlCall = regexp.MustCompile(`\b([a-z_][a-z0-9_]*)\s*\(`)
	// standing lists the clocks that stand still in a transaction.
	standing = regexp.MustCompile(`\b(now|transaction_timestamp|timeofday)\s*\(|\bcurrent_timestamp\b|\blocaltimestamp\b|\bcurrent_date\b`)
	// oneTable matches the name of a statement on an algorithm's table.
	oneTable = regexp.MustCompile(`^(LeakyBucket|LeakyBucketQueue|TokenBucket|FixedWindow|SlidingWindowCounter|SlidingWindowLog|Balance)(Calendar)?([A-Z][a-z]+(Many|All|Once)?(Marked)?)$`)
)

// TestDecideStatementsFollowTheRules reads every decision: one upsert, one reading of the
// clock before the lock, and only IMMUTABLE expressions after it.
func TestDecideStatementsFollowTheRules(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	decisions := 0
	for name, text := range testworld.Statements(t) {
		if !oneTable.MatchString(name) {
			continue
		}
		many := strings.HasSuffix(name, "TakeMany") || strings.HasSuffix(name, "TakeAll")
		if !many && !strings.HasSuffix(name, "Take") {
			continue
		}
		decisions++
		if strings.Count(text, "insert into") != 1 || strings.HasPrefix(strings.TrimSpace(text), "with") != many {
			t.Errorf("%s is not one plain upsert", name)
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
	if decisions != 22 {
		t.Errorf("read %d decisions", decisions)
	}
}

// TestStatementsReadOneClock: a statement about one key may name the clock for several
// columns, so it reads statement_timestamp, which has one value for all of them.
// Others read clock_timestamp, once.
func TestStatementsReadOneClock(t *testing.T) {
	t.Parallel()
	for name, text := range testworld.Statements(t) {
		key := oneTable.MatchString(name) || strings.HasPrefix(name, "Attempt") || strings.HasPrefix(name, "Slot") || name == "ReservationEstimate" || name == "EventEnd"
		if hit := standing.FindString(text); hit != "" {
			t.Errorf("%s uses %q, which stands still in a transaction", name, hit)
		}
		once, still := strings.Count(text, "clock_timestamp"), strings.Count(text, "statement_timestamp")
		switch {
		case key && once > 0:
			t.Errorf("%s reads clock_timestamp", name)
		case (strings.HasSuffix(name, "TakeMany") || strings.HasSuffix(name, "TakeAll")) && still != 1:
			t.Errorf("%s names the clock %d times", name, still)
		case !key && (once > 1 || still > 0):
			t.Errorf("%s reads the clock %d times", name, once+still)
		}
	}
}

// TestStatementsAreRoutable reads every statement for a single key. A router of shards has
// to find the policy and the key, so they are bare parameters of VALUES or WHERE, and no
// sub-select stands before SET. Some refuse an alias of INSERT's table. Citus evaluates each
// branch of a CASE that is a whole value of VALUES.
func TestStatementsAreRoutable(t *testing.T) {
	t.Parallel()
	const bare = "where t.policy = sqlc.arg(policy) and t.key = sqlc.arg(key)"
	read := map[string]int{}
	for name, text := range testworld.Statements(t) {
		match := oneTable.FindStringSubmatch(name)
		if strings.HasPrefix(name, "Reservation") && strings.Contains(text, "sqlc.arg(key)") {
			if !strings.Contains(text, "where h.policy = sqlc.arg(policy) and h.key = sqlc.arg(key) and ") && !strings.Contains(text, "\nvalues (sqlc.arg(policy), sqlc.arg(key), ") {
				t.Errorf("%s has no bare policy and key", name)
			}
			read["Reservation"]++
		}
		if match == nil {
			continue
		}
		text = strings.TrimSpace(text)
		sets := true
		switch verb := match[3]; verb {
		case "Take", "Charge", "Grant", "Block", "Adjust":
			sets = verb != "Adjust" // the statement before it does
			if !strings.HasPrefix(text, "insert into") || !strings.Contains(text, "\nvalues (sqlc.arg(policy), sqlc.arg(key), ") ||
				!strings.Contains(text, ")\non conflict (policy, key) do update set") || !strings.Contains(text, "excluded.updated_at_us") {
				t.Errorf("%s is not INSERT VALUES with a bare policy and key", name)
			}
			if before, _, _ := strings.Cut(text, "do update set"); strings.Contains(before, "select") {
				t.Errorf("%s has a sub-select before its SET", name)
			}
			if aliased.MatchString(text) {
				t.Errorf("%s has an alias", name)
			}
			if sets && verb != "Block" && !strings.Contains(text, " -(case when case when sqlc.arg(lock_timeout)") {
				t.Errorf("%s has its settings outside an operator", name)
			}
		case "Leave", "Unblock", "Delete":
			if !strings.HasPrefix(text, "update") && !strings.HasPrefix(text, "delete from") || strings.Contains(text, "\nfrom") || !strings.Contains(text, bare) {
				t.Errorf("%s is not UPDATE with a bare policy and key", name)
			}
		case "Refund", "Undo":
			if !strings.HasPrefix(text, "with c as materialized (") || !strings.Contains(text, "\n), back as (\nupdate") || !strings.Contains(text, "\nfrom c\n"+bare) {
				t.Errorf("%s is not UPDATE with a bare policy and key", name)
			}
		case "Get", "Usage":
			sets = false
			if !strings.Contains(text, "\n"+bare) || verb == "Get" && (!strings.HasPrefix(text, "select") || strings.Contains(text, "join")) {
				t.Errorf("%s is not SELECT with a bare policy and key", name)
			}
		case "Reset":
			if !strings.Contains(text, "t.policy = sqlc.arg(policy) and t.key = sqlc.arg(key)") ||
				!strings.Contains(text, "where h.policy = sqlc.arg(policy) and h.key = sqlc.arg(key)") {
				t.Errorf("%s is not DELETE with a bare policy and key", name)
			}
		case "Reserve":
			before, _, _ := strings.Cut(text, "do update set")
			if !strings.Contains(text, "\nselect sqlc.arg(policy)::text, sqlc.arg(key)::text, ") || strings.Contains(before, "from (") ||
				!strings.Contains(text, "h.policy = sqlc.arg(policy) and h.key = sqlc.arg(key) ") {
				t.Errorf("%s is not INSERT SELECT of parameters", name)
			}
		default:
			continue
		}
		read[match[3]]++
		want := 0
		if sets {
			want = 1
		}
		for _, setting := range []string{"lock_timeout", "synchronous_commit"} {
			if n := strings.Count(text, "set_config('"+setting+"'"); n != want {
				t.Errorf("%s sets %s %d times", name, setting, n)
			}
		}
	}
	want := map[string]int{"Reservation": 10, "Take": 8, "Charge": 8, "Grant": 1, "Block": 7, "Leave": 1, "Unblock": 7, "Refund": 6, "Undo": 6, "Get": 7, "Usage": 7, "Reset": 7, "Reserve": 7, "Adjust": 5, "Delete": 7}
	if !maps.Equal(read, want) {
		t.Errorf("read %v, want %v", read, want)
	}
}

// syntax lists words that look like a call and are not.
var syntax = map[string]bool{
	"greatest": true, "least": true, "coalesce": true, "arg": true, "narg": true,
	"case": true, "when": true, "then": true, "else": true, "and": true, "array": true, "row": true, "from": true,
}

// immutable reports whether the catalogue has every form of function as immutable.
func immutable(t *testing.T, pool *pgxpool.Pool, function string) bool {
	t.Helper()
	if syntax[function] {
		return true
	}
	var all *bool
	must.Succeed(t, pool.QueryRow(context.Background(), "SELECT bool_and(provolatile = 'i') FROM pg_proc WHERE proname = $1", function).Scan(&all))
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
	statements := testworld.Statements(t)
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
