package policyflags

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/limiter"
)

// TestPatch: a flag that is not given leaves its field as it is.
func TestPatch(t *testing.T) {
	t.Parallel()
	login := limiter.StoredPolicy{Policy: limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 5, Period: time.Hour, Burst: 10,
		BlockFor: time.Minute, OnError: limiter.FailOpen, Durability: limiter.Relaxed, Shadow: true}, Note: "old", Askers: true, MaxTTL: time.Hour}
	window := limiter.StoredPolicy{Policy: limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Burst: 5, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}}
	change := func(p limiter.StoredPolicy, f func(*limiter.StoredPolicy)) limiter.StoredPolicy {
		p.Note = ""
		f(&p)
		return p
	}
	for _, c := range []struct {
		before *limiter.StoredPolicy
		args   string
		want   limiter.StoredPolicy
	}{
		{nil, "--limit 5 --shadow", limiter.StoredPolicy{Policy: limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Shadow: true}}},
		{nil, "--limit 5 --calendar day --note n --askers --max-ttl 2h", limiter.StoredPolicy{
			Policy: limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Calendar: limiter.Day}, Note: "n", Askers: true, MaxTTL: 2 * time.Hour}},
		{&login, "", change(login, func(*limiter.StoredPolicy) {})},
		{&login, "--limit 6", change(login, func(p *limiter.StoredPolicy) { p.Limit = 6 })},
		{&login, "--note n", change(login, func(p *limiter.StoredPolicy) { p.Note = "n" })},
		{&login, "--shadow=false --askers=false", change(login, func(p *limiter.StoredPolicy) { p.Shadow, p.Askers = false, false })},
		{&login, "--on-error fail_closed --durability durable", change(login, func(p *limiter.StoredPolicy) {
			p.OnError, p.Durability = limiter.FailClosed, limiter.Durable
		})},
		{&login, "--period 1s --burst 0 --block-for 0s", change(login, func(p *limiter.StoredPolicy) { p.Period, p.Burst, p.BlockFor = time.Second, 0, 0 })},
		{&window, "--limit 6", change(window, func(p *limiter.StoredPolicy) { p.Limit, p.Burst = 6, 0 })},
		{&window, "--period 1s", change(window, func(p *limiter.StoredPolicy) { p.Period, p.Burst, p.Calendar, p.TimeZone = time.Second, 0, "", "" })},
		{&window, "--calendar day", change(window, func(p *limiter.StoredPolicy) { p.Calendar, p.Burst = limiter.Day, 0 })},
	} {
		var flags Stored
		cmd := &cobra.Command{}
		flags.Register(cmd)
		if err := cmd.ParseFlags(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		if got, err := flags.Patch("p", c.before); err != nil || got != c.want {
			t.Errorf("%+v %s:\ngot  %+v, %v\nwant %+v", c.before, c.args, got, err, c.want)
		}
	}
	for args, want := range map[string]string{
		"":                              "set --limit",
		"--limit 5 --on-error open":     "use fail_closed or fail_open",
		"--limit -1":                    "Limit -1",
		"--limit 5 --durability strong": "use durable or relaxed",
	} {
		var flags Stored
		cmd := &cobra.Command{}
		flags.Register(cmd)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if _, err := flags.Patch("p", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
	}
}

// TestPolicyOfFile: --policy FILE#NAME takes a policy from a file, and no other flag of a
// policy with it.
func TestPolicyOfFile(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/a#b.yaml"
	writeFile(t, file, "policies:\n- {name: login, algorithm: gcra, limit: 5, period: 1m}\n")
	for args, want := range map[string]string{
		"--policy " + file + "#login":             "",
		"--policy " + file + "#logn":              `has no policy "logn": it has login`,
		"--policy " + file + "#login --limit 5":   "--policy and --limit are both given",
		"--policy " + file + "#login --period 1s": "--period",
		"--policy /nowhere#login":                 "/nowhere",
		"":                                        "--limit is missing",
	} {
		var flags Flags
		cmd := &cobra.Command{}
		flags.RegisterRequest(cmd)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		p, err := flags.Policy()
		if want == "" && (err != nil || p.Limit != 5 || p.Algorithm != limiter.GCRA || flags.Named() != "") {
			t.Errorf("%s: got %+v, %v", args, p, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
