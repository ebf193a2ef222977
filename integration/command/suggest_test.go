package command

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// suggestJSON is what `policy suggest --json` prints, as far as the tests read it.
type suggestJSON struct {
	Denials, Keys  int64
	KeysDenied     int64 `json:"keys_denied"`
	KeysOverridden int64 `json:"keys_overridden"`
	WithoutKey     int64 `json:"denials_without_key"`
	Policy         struct{ Name string }
	Suggestion     *struct {
		First, Last time.Time
		Window      string
		Denied      struct{ P50, P999, Max float64 }
		Granted     float64
		Limit       float64
		Command     string
	}
}

// suggestRoom is a database with a function that runs pglimit on it.
func suggestRoom(t *testing.T) (*pgxpool.Pool, func(wantCode int, args ...string) string, func(name string) suggestJSON) {
	t.Helper()
	pool := bed.NewPool(t)
	address := pool.Config().ConnString()
	run := func(wantCode int, args ...string) string {
		t.Helper()
		code, stdout, stderr := bed.Pglimit(t, address, args...)
		if code != wantCode {
			t.Fatalf("%q: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
		return stdout
	}
	return pool, run, func(name string) (got suggestJSON) {
		t.Helper()
		out := run(0, "policy", "suggest", name, "--json")
		if err := json.Unmarshal([]byte(out), &got); err != nil || got.Suggestion == nil {
			t.Fatalf("%v: %s", err, out)
		}
		return got
	}
}

// denials inserts denials of one key: minutes since 2026-06-01 12:00 UTC and units.
func denials(t *testing.T, pool *pgxpool.Pool, policy, algorithm, key string, shadowed bool, slots map[int]float64) {
	t.Helper()
	for minute, units := range slots {
		at := time.Date(2026, 6, 1, 12, minute, 0, 0, time.UTC).UnixMicro()
		bed.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
			VALUES (10, CASE WHEN $1 THEN 10 ELSE 0 END, $2, $3, $3, $4, $5, $6)`, shadowed, units, at, policy, key, algorithm)
	}
}

// TestPolicySuggest: a program tries a shadow policy and keeps its denials, and the command
// that suggest prints can be run as it is.
func TestPolicySuggest(t *testing.T) {
	t.Parallel()
	pool, run, suggest := suggestRoom(t)
	if out := run(1, "policy", "suggest", "login"); !strings.Contains(out, `there is no policy "login"`) {
		t.Error(out)
	}
	run(0, "policy", "set", "login", "--algorithm", "fixed_window", "--limit", "10", "--period", "1h", "--shadow")
	if out := run(1, "policy", "suggest", "login"); !strings.Contains(out, "no shadowed denials of policy login are on record") || !strings.Contains(out, "limiter.Config.DenialLog") {
		t.Error(out)
	}
	if out := run(1, "policy", "suggest", "login", "--json"); !strings.Contains(out, `"suggestion": null`) {
		t.Error(out)
	}

	policies := bed.OK(limiter.OpenPolicies(t.Context(), pool, &limiter.PoliciesConfig{DisableListen: true}))(t)
	defer policies.Close()
	log := bed.OK(limiter.NewDenialLog(pool, nil))(t)
	l := bed.NewLimiter(t, pool, &limiter.Config{Policies: policies, DenialLog: log})
	login := bed.OK(policies.Get("login"))(t)
	for key, n := range map[string]float64{"alice": 16, "bob": 12, "carol": 10} {
		for range int(n) {
			bed.Must(t)(l.Allow(t.Context(), login, key))
		}
	}
	if err := log.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := suggest("login")
	if s := got.Suggestion; got.Denials != 8 || got.KeysDenied != 2 || got.Keys != 3 || got.Policy.Name != "login" || s.Window != "1h0m0s" ||
		s.Denied.P50 != 2 || s.Denied.P999 != 6 || s.Denied.Max != 6 || s.Granted != 10 || s.Limit != 20 {
		t.Errorf("%+v, %+v", got, s)
	}
	run(0, strings.Fields(got.Suggestion.Command)[1:]...)
	if out := run(0, "policy", "get", "login"); !strings.Contains(out, "limit: 20\n") {
		t.Error(out)
	}
}

// TestPolicySuggestWindows: denials are added up by ten minutes, by longer periods and by
// calendar periods.
func TestPolicySuggestWindows(t *testing.T) {
	t.Parallel()
	pool, run, suggest := suggestRoom(t)
	set := func(name string, flags ...string) {
		t.Helper()
		run(0, append([]string{"policy", "set", name, "--algorithm", "fixed_window", "--limit", "10"}, flags...)...)
	}
	set("minute", "--period", "1m")
	set("half", "--period", "30m")
	set("day", "--calendar", "day", "--time-zone", "Asia/Kathmandu")                                 // 5:45 ahead of UTC
	slots := map[int]float64{0: 1, 10: 2, 20: 4, 40: 8, 360: 16, 370: 32, 380: 64, 8 * 24 * 60: 100} // Kathmandu's midnight is at 375: the slot at 370 is of the day before
	for _, policy := range []string{"minute", "half", "day"} {
		denials(t, pool, policy, "fixed_window", "k", false, slots)
		denials(t, pool, policy, "gcra", "k", false, map[int]float64{0: 1e6}) // of an earlier algorithm
	}
	for policy, want := range map[string]float64{"minute": 100, "half": 112, "day": 100} {
		if s := suggest(policy).Suggestion; s.Denied.Max != want {
			t.Errorf("%s: %+v, want %v", policy, s, want)
		}
	}
	bed.Exec(t, pool, `DELETE FROM pglimit_denial WHERE units = 100`)
	for policy, want := range map[string]float64{"minute": 64, "half": 112, "day": 64} {
		s := suggest(policy).Suggestion
		if s.Denied.Max != want || !s.First.Equal(time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)) || !s.Last.Equal(time.Date(2026, 6, 1, 18, 30, 0, 0, time.UTC)) {
			t.Errorf("%s: %+v, want %v", policy, s, want)
		}
	}
	bed.Exec(t, pool, `DELETE FROM pglimit_denial WHERE slot_us >= extract(epoch FROM '2026-06-01 18:20+00'::timestamptz)::bigint * 1000000`)
	if s := suggest("day").Suggestion; s.Denied.Max != 1+2+4+8+16+32 {
		t.Errorf("before midnight: %+v", s)
	}
}

// TestPolicySuggestCounts: quantiles are over the denied keys; a shadow counts only what it
// let pass; keys with another limit and denials without a key are left out.
func TestPolicySuggestCounts(t *testing.T) {
	t.Parallel()
	pool, run, suggest := suggestRoom(t)
	run(0, "policy", "set", "p", "--limit", "10", "--period", "10m")
	denials(t, pool, "p", "token_bucket", "", false, map[int]float64{0: 1e6})
	denials(t, pool, "p", "token_bucket", "vip", false, map[int]float64{0: 1e6, 10: 1e6})
	denials(t, pool, "p", "token_bucket", "tried", true, map[int]float64{0: 5})
	denials(t, pool, "other", "token_bucket", "k", false, map[int]float64{0: 1e6})
	run(0, "override", "set", "p", "vip", "--limit", "50")
	run(0, "override", "set", "p", "tried", "--shadow")
	bed.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
		SELECT 4, 1, n, 0, 0, 'p', 'k' || n, 'token_bucket' FROM generate_series(1, 2000) AS n`)
	got := suggest("p")
	if s := got.Suggestion; got.KeysDenied != 2001 || got.Denials != 8010 || got.KeysOverridden != 1 || got.WithoutKey != 10 || got.Keys != 0 ||
		s.Denied.P50 != 1000 || s.Denied.P999 != 1998 || s.Denied.Max != 2000 || s.Limit != 3000 {
		t.Errorf("%+v, %+v", got, s)
	}
	run(0, "policy", "set", "p", "--shadow")
	got = suggest("p") // a quarter of the units, and only shadowed denials
	if s := got.Suggestion; got.KeysDenied != 2001 || got.Denials != 2010 || got.KeysOverridden != 0 || got.WithoutKey != 0 || s.Denied.P999 != 1998/4.0 {
		t.Errorf("a shadow: %+v, %+v", got, s)
	}
}
