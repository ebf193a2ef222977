package functions

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// moving returns the only block of SQL in docs/moving.md that contains part.
func moving(t *testing.T, part string) string {
	t.Helper()
	text := must.OK(os.ReadFile("../testdata/repository/docs/moving.md"))(t)
	var found []string
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(block[1], part) {
			found = append(found, block[1])
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d blocks of docs/moving.md contain %q, want 1", len(found), part)
	}
	return found[0]
}

const (
	takeCounts = "INSERT INTO pglimit_fixed_window"
	takeLog    = "charge_with"
)

var daily = limiter.Policy{Name: "api", Algorithm: limiter.FixedWindow, Limit: 1000, Calendar: limiter.Day}

// movingPool returns a database with the tables of the page, and with counts of days.
func movingPool(t *testing.T, counts map[string]string) *pgxpool.Pool {
	t.Helper()
	pool := testworld.FunctionsPool(t)
	for _, part := range []string{"CREATE TABLE api_usage", "ADD COLUMN taken", "CREATE TABLE searches"} {
		testworld.Exec(t, pool, moving(t, part))
	}
	testworld.Exec(t, pool, `GRANT ALL ON api_usage, searches TO PUBLIC`) // where the tests' role owns nothing
	for client, rows := range counts {
		for row := range strings.FieldsSeq(rows) {
			day, requests, _ := strings.Cut(row, ":")
			testworld.Exec(t, pool, `INSERT INTO api_usage VALUES ($1, $2::text::date, $3::text::bigint)`, client, day, requests)
		}
	}
	return pool
}

// at returns the statement with now as its clock.
func at(sql string, now time.Time) string {
	return strings.ReplaceAll(sql, "statement_timestamp()", "'"+now.UTC().Format(time.RFC3339Nano)+"'::timestamptz")
}

// run runs the statement and returns the number of rows that it wrote or returned.
func run(t *testing.T, pool *pgxpool.Pool, sql string) int64 {
	t.Helper()
	tag := must.OK(pool.Exec(t.Context(), sql))(t)
	return tag.RowsAffected()
}

// moment is a time in UTC.
func moment(t *testing.T, text string) time.Time {
	t.Helper()
	now := must.OK(time.Parse(time.RFC3339Nano, text))(t)
	return now
}

// TestMovingCounts: the statement of docs/moving.md that takes a table's counts over counts
// each once, in the window of the policy, up to its last microsecond, and no bad ones. What
// the page says to change for a month and a zone is right.
func TestMovingCounts(t *testing.T) {
	t.Parallel()
	month := strings.NewReplacer("'day'", "'month'", "'1 day'", "'1 month'")
	vienna := strings.NewReplacer("'UTC'", "'Europe/Vienna'")
	monthly, local := daily, daily
	monthly.Calendar = limiter.Month
	local.TimeZone = "Europe/Vienna"
	for name, c := range map[string]struct {
		policy limiter.Policy
		change *strings.Replacer
		now    string
		day    string // of the counts that count
		ends   string
	}{
		"day":              {daily, strings.NewReplacer(), "2026-05-17T12:00:00Z", "2026-05-17", "2026-05-18T00:00:00Z"},
		"first moment":     {daily, strings.NewReplacer(), "2026-05-17T00:00:00Z", "2026-05-17", "2026-05-18T00:00:00Z"},
		"last microsecond": {daily, strings.NewReplacer(), "2026-05-17T23:59:59.999999Z", "2026-05-17", "2026-05-18T00:00:00Z"},
		"month":            {monthly, month, "2026-02-17T12:00:00Z", "2026-02-01", "2026-03-01T00:00:00Z"},
		"zone":             {local, vienna, "2026-05-16T22:30:00Z", "2026-05-17", "2026-05-17T22:00:00Z"},
		"23 hours":         {local, vienna, "2026-03-28T23:00:00Z", "2026-03-29", "2026-03-29T22:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := moment(t, c.now)
			before, after := "2026-01-01:500 ", " 2027-01-01:500"
			pool := movingPool(t, map[string]string{
				"alice": before + c.day + ":60" + after, "full": c.day + ":1000", "over": c.day + ":1200", "last": c.day + ":999",
				"negative": c.day + ":-5", "zero": c.day + ":0", "earlier": before + after,
			})
			sql := c.change.Replace(at(moving(t, takeCounts), now))
			if n := run(t, pool, sql); n != 4 {
				t.Errorf("took %d counts over, want 4", n)
			}
			if n := run(t, pool, sql); n != 0 {
				t.Errorf("took %d counts over again", n)
			}
			l := testworld.NewLimiter(t, pool, &limiter.Config{Now: func() time.Time { return now }, DisableDenyCache: true})
			for client, level := range map[string]float64{"alice": 60, "full": 1000, "over": 1200, "last": 999, "negative": 0, "zero": 0, "earlier": 0} {
				r, err := l.Allow(t.Context(), c.policy, client)
				if want := level < 1000; err != nil || r.Allowed != want || want && r.Level != level+1 || !want && r.Level != level || r.Remaining != max(0, 1000-r.Level) {
					t.Errorf("%s: %+v, %v; the table had %v", client, r, err, level)
				}
				if r.Allowed {
					continue
				}
				if ends := now.Add(r.RetryAfter); !ends.Equal(moment(t, c.ends)) {
					t.Errorf("%s: denied until %v, want %s", client, ends, c.ends)
				}
			}
			now = moment(t, c.ends)
			if r, err := l.Allow(t.Context(), c.policy, "over"); err != nil || !r.Allowed || r.Level != 1 {
				t.Errorf("in the next window %+v, %v", r, err)
			}
		})
	}
}

// TestMovingCountsMeetDecisions: where pglimit has decided, the counts are added to those of the
// same window, replace those of an ended one, and leave those of a later one; blocks stay.
func TestMovingCountsMeetDecisions(t *testing.T) {
	t.Parallel()
	now := moment(t, "2026-05-17T12:00:00Z")
	for name, c := range map[string]struct {
		decided time.Time
		want    float64 // the level at the later of the two times
	}{
		"same window":  {now.Add(-time.Hour), 67},
		"later clock":  {now.Add(time.Hour), 67},
		"ended window": {now.AddDate(0, 0, -1), 60},
		"next window":  {now.AddDate(0, 0, 1), 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := movingPool(t, map[string]string{"alice": "2026-05-17:60"})
			clock := c.decided
			l := testworld.NewLimiter(t, pool, &limiter.Config{Now: func() time.Time { return clock }, DisableDenyCache: true})
			testworld.Must(t)(l.AllowN(t.Context(), daily, "alice", 7))
			must.Succeed(t, l.Block(t.Context(), daily, "alice", 72*time.Hour))
			run(t, pool, at(moving(t, takeCounts), now))
			if clock.Before(now) {
				clock = now
			}
			if us := testworld.Value[int64](t, pool, `SELECT updated_at_us FROM pglimit_fixed_window`); us != clock.UnixMicro() {
				t.Errorf("the row's clock is %v, want %v", time.UnixMicro(us), clock)
			}
			r, err := l.Check(t.Context(), daily, "alice", 1)
			if err != nil || r.Level != c.want || r.Reason != limiter.ReasonBlocked {
				t.Errorf("%+v, %v; want a blocked key at level %v", r, err, c.want)
			}
		})
	}
}

// TestMovingCountsByTheClock runs the statement as it is, by the server's clock.
func TestMovingCountsByTheClock(t *testing.T) {
	t.Parallel()
	pool := movingPool(t, nil)
	l := testworld.NewLimiter(t, pool, nil)
	for {
		const today = `SELECT ((statement_timestamp() AT TIME ZONE 'UTC')::date)::text`
		day := testworld.Value[string](t, pool, today)
		client := "alice of " + day
		for range 2 {
			testworld.Exec(t, pool, strings.ReplaceAll(moving(t, "INSERT INTO api_usage"), "alice", client))
		}
		run(t, pool, moving(t, takeCounts))
		r, err := l.Check(t.Context(), daily, client, 0)
		if day != testworld.Value[string](t, pool, today) {
			continue // it was midnight
		}
		if err != nil || r.Level != 2 {
			t.Errorf("%+v, %v; want 2 in use", r, err)
		}
		return
	}
}

// TestMovingCountsUnderTraffic: while old processes count in their table, new ones decide, and
// several runs of the statement meet, each request counts once. After the last run no request
// passes above the limit.
func TestMovingCountsUnderTraffic(t *testing.T) {
	t.Parallel()
	const clients, requests = 5, 40
	now := moment(t, "2026-05-17T12:00:00Z")
	counts := map[string]string{}
	for i := range clients {
		counts[fmt.Sprint("client", i)] = fmt.Sprintf("2026-05-17:%d", 100*i)
	}
	pool := movingPool(t, counts)
	l := testworld.NewLimiter(t, pool, testworld.WithPatience(&limiter.Config{Now: func() time.Time { return now }}))
	sql := at(moving(t, takeCounts), now)
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for i := range clients * requests {
				client := fmt.Sprint("client", i%clients)
				if r, err := l.Allow(t.Context(), daily, client); err != nil || !r.Allowed {
					t.Errorf("%+v, %v", r, err)
				}
			}
		})
		work.Go(func() {
			for i := range clients * requests {
				if _, err := pool.Exec(t.Context(), `UPDATE api_usage SET requests = requests + 1 WHERE client = $1`, fmt.Sprint("client", i%clients)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		work.Go(func() {
			for range requests {
				if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeExec); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	run(t, pool, sql)
	for i := range clients {
		client := fmt.Sprint("client", i)
		want := float64(100*i + 8*requests)
		if r, err := l.Check(t.Context(), daily, client, 0); err != nil || r.Level != want {
			t.Errorf("%s: %+v, %v; %v requests were made", client, r, err, want)
		}
		var passed atomic.Int64
		for range 4 {
			work.Go(func() {
				for range 2 * requests {
					r, err := l.AllowN(t.Context(), daily, client, 10)
					if err != nil {
						t.Error(err)
					}
					if r.Allowed {
						passed.Add(10)
					}
				}
			})
		}
		work.Wait()
		if left := int64(1000 - want); passed.Load() != left {
			t.Errorf("%s: %d passed, %d were left", client, passed.Load(), left)
		}
	}
}

// TestMovingLog: a log's requests that still count are taken over once, with their own times,
// also above the limit; older ones are left. Where pglimit has decided, none is lost.
func TestMovingLog(t *testing.T) {
	t.Parallel()
	now := moment(t, "2026-05-17T12:00:00Z")
	pool := movingPool(t, nil)
	id := 0
	insert := func(client string, minutes ...int) {
		for _, m := range minutes {
			id++
			testworld.Exec(t, pool, `INSERT INTO searches VALUES ($1, $2, $3)`, id, client, now.Add(-time.Duration(m)*time.Minute))
		}
	}
	insert("alice", 10, 50, 61, 60, 30)
	insert("over", 40, 30, 20, 10, 5)
	insert("decided", 40)
	p := limiter.Policy{Name: "searches", Algorithm: limiter.SlidingWindowLog, Limit: 3, Period: time.Hour}
	clock := now.Add(-time.Minute)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Now: func() time.Time { return clock }, DisableDenyCache: true})
	testworld.Must(t)(l.Allow(t.Context(), p, "decided"))
	for i, want := range []int64{9, 0} {
		if n := testworld.Value[int64](t, pool, at(moving(t, takeLog), now)); n != want {
			t.Errorf("run %d took %d requests over, want %d", i, n, want)
		}
	}
	clock = now
	for client, want := range map[string]struct {
		level float64
		after time.Duration // until one request fits
	}{"alice": {3, 10 * time.Minute}, "over": {5, 40 * time.Minute}, "decided": {2, 0}} {
		if r, err := l.Check(t.Context(), p, client, 1); err != nil || r.Level != want.level || r.RetryAfter != want.after {
			t.Errorf("%s: %+v, %v; want %+v", client, r, err, want)
		}
	}
	clock = now.Add(30 * time.Minute) // of decided, the request from before 40 minutes counts from the decision on
	if r, err := l.Check(t.Context(), p, "decided", 1); err != nil || r.Level != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestMovingPolicies: the policies that docs/moving.md stores decide as the page says, by the
// queries in its JavaScript and Ruby.
func TestMovingPolicies(t *testing.T) {
	t.Parallel()
	text := must.OK(os.ReadFile("../testdata/repository/docs/moving.md"))(t)
	query := func(before string) string {
		m := regexp.MustCompile("(?s)" + regexp.QuoteMeta(before) + "\\s*`?(SELECT .*?)(?:`|\n +SQL)").FindStringSubmatch(string(text))
		if m == nil {
			t.Fatalf("no query after %q", before)
		}
		return `SELECT allowed FROM (` + m[1] + `) AS answer`
	}
	express := testworld.FunctionsPool(t)
	testworld.Exec(t, express, moving(t, "'fixed_window', 100, 900"))
	for i := range 101 {
		if got := testworld.Value[bool](t, express, query("new (require('pg').Pool)()"), "192.0.2.7"); got != (i < 100) {
			t.Errorf("express: request %d: allowed %v", i, got)
		}
	}
	rack := testworld.FunctionsPool(t)
	testworld.Exec(t, rack, moving(t, "true, 3600"))
	sql := query("[req.ip])[0]")
	for i, verb := range []string{"check", "allow", "allow", "allow", "allow", "check", "allow", "allow", "check"} {
		if got := testworld.Value[bool](t, rack, strings.ReplaceAll(sql, "#{login}", verb), "192.0.2.7"); got != (i < 7) {
			t.Errorf("rack: request %d, %s: allowed %v", i, verb, got)
		}
	}
}
