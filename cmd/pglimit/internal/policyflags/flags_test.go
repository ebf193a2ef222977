package policyflags

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestFlagsImplyAlgorithm: --calendar, --aligned and --tick select the algorithm
// that supports them, unless --algorithm is given.
func TestFlagsImplyAlgorithm(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]limiter.Algorithm{
		"":                               limiter.TokenBucket,
		"--burst 20":                     limiter.TokenBucket,
		"--calendar month":               limiter.FixedWindow,
		"--aligned":                      limiter.FixedWindow,
		"--aligned=false":                limiter.TokenBucket,
		"--tick 1s":                      limiter.LeakyBucket,
		"--algorithm gcra":               limiter.GCRA,
		"--algorithm token_bucket":       limiter.TokenBucket,
		"--algorithm leaky_bucket":       limiter.LeakyBucket,
		"--algorithm fixed_window":       limiter.FixedWindow,
		"--tick 0s --calendar=":          limiter.TokenBucket,
		"--algorithm gcra --tick=0s":     limiter.GCRA,
		"--calendar day --time-zone UTC": limiter.FixedWindow,
	} {
		var flags Flags
		cmd := &cobra.Command{}
		flags.RegisterRequest(cmd)
		must.Succeed(t, cmd.ParseFlags(append([]string{"--limit", "10"}, strings.Fields(args)...)))
		p, err := flags.Policy()
		if err != nil || p.Algorithm != want {
			t.Errorf("%s: %v, %v; want %s", args, p.Algorithm, err, want)
		}
	}
	for _, args := range []string{"--calendar month", "--aligned", "--tick 1s"} {
		var flags Flags
		cmd := &cobra.Command{}
		flags.RegisterRequest(cmd)
		must.Succeed(t, cmd.ParseFlags(append([]string{"--limit", "10", "--algorithm", "token_bucket"}, strings.Fields(args)...)))
		if p, err := flags.Policy(); err == nil {
			t.Errorf("%s with --algorithm token_bucket: got %v, want an error", args, p)
		}
	}
}

// TestPatch: a flag that is not given leaves its field as it is.
func TestPatch(t *testing.T) {
	t.Parallel()
	login := policies.Stored{Policy: limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 5, Period: time.Hour, Burst: 10,
		BlockFor: time.Minute, OnError: limiter.FailOpen, Durability: limiter.Relaxed, Shadow: true}, Note: "old", Askers: true, MaxTTL: time.Hour}
	window := policies.Stored{Policy: limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Burst: 5, Calendar: limiter.Month, TimeZone: "Europe/Vienna", Anchor: "2024-01-31"}}
	local := login
	local.OnError, local.LocalShare = limiter.FailLocal, 0.5
	attempts := policies.Stored{Policy: limiter.Policy{Name: "p", Algorithm: limiter.Attempts, Limit: 3, Period: time.Hour, BlockFor: time.Minute, BlockGrowth: 3, BlockMax: time.Hour}, MaxTTL: time.Hour}
	change := func(p policies.Stored, f func(*policies.Stored)) policies.Stored {
		p.Note = "" // that of an earlier change
		f(&p)
		return p
	}
	for _, c := range []struct {
		before *policies.Stored
		args   string
		want   policies.Stored
	}{
		{nil, "--limit 5 --period 1m --shadow", policies.Stored{Policy: limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute, Shadow: true}, MaxTTL: 24 * time.Hour}},
		{nil, "--limit 5 --calendar day --note n --askers --max-ttl 2h", policies.Stored{
			Policy: limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 5, Calendar: limiter.Day}, Note: "n", Askers: true, MaxTTL: 2 * time.Hour}},
		{&login, "", change(login, func(*policies.Stored) {})},
		{&login, "--limit 6", change(login, func(p *policies.Stored) { p.Limit = 6 })},
		{&login, "--note n", change(login, func(p *policies.Stored) { p.Note = "n" })},
		{&login, "--note=", change(login, func(p *policies.Stored) { p.Note = "" })},
		{&login, "--shadow=false --askers=false", change(login, func(p *policies.Stored) { p.Shadow, p.Askers = false, false })},
		{&login, "--on-error fail_closed --durability durable", change(login, func(p *policies.Stored) {
			p.OnError, p.Durability = limiter.FailClosed, limiter.Durable
		})},
		{&login, "--on-error fail_local --local-share 0.25", change(login, func(p *policies.Stored) { p.OnError, p.LocalShare = limiter.FailLocal, 0.25 })},
		{&local, "--limit 6", change(local, func(p *policies.Stored) { p.Limit = 6 })},
		{&local, "--on-error fail_open", change(local, func(p *policies.Stored) { p.OnError, p.LocalShare = limiter.FailOpen, 0 })},
		{&login, "--period 1s --burst 0 --block-for 0s", change(login, func(p *policies.Stored) { p.Period, p.Burst, p.BlockFor = time.Second, 0, 0 })},
		{nil, "--algorithm attempts --limit 3 --period 24h --block-for 1m --block-growth 3 --block-max 12h --burst 2", policies.Stored{Policy: limiter.Policy{Name: "p", Algorithm: limiter.Attempts,
			Limit: 3, Period: 24 * time.Hour, Burst: 2, BlockFor: time.Minute, BlockGrowth: 3, BlockMax: 12 * time.Hour}, MaxTTL: 24 * time.Hour}},
		{&attempts, "--block-max 0s --block-growth 1.5", change(attempts, func(p *policies.Stored) { p.BlockGrowth, p.BlockMax = 1.5, 0 })},
		{&window, "--limit 6", change(window, func(p *policies.Stored) { p.Limit, p.Burst = 6, 0 })},
		{&window, "--period 1s", change(window, func(p *policies.Stored) {
			p.Period, p.Burst, p.Calendar, p.TimeZone, p.Anchor = time.Second, 0, "", "", ""
		})},
		{&window, "--anchor 2024-04-06T09:30 --calendar year", change(window, func(p *policies.Stored) { p.Calendar, p.Anchor, p.Burst = limiter.Year, "2024-04-06T09:30", 0 })},
		{&window, "--anchor=", change(window, func(p *policies.Stored) { p.Anchor, p.Burst = "", 0 })},
		{&window, "--calendar day", change(window, func(p *policies.Stored) { p.Calendar, p.Burst = limiter.Day, 0 })},
	} {
		var flags Stored
		cmd := &cobra.Command{}
		flags.Register(cmd)
		must.Succeed(t, cmd.ParseFlags(strings.Fields(c.args)))
		if got, err := flags.Patch("p", c.before); err != nil || got != c.want {
			t.Errorf("%+v %s:\ngot  %+v, %v\nwant %+v", c.before, c.args, got, err, c.want)
		}
	}
	for args, want := range map[string]string{
		"":                          "a new one needs --limit, and --period or --calendar: such as `pglimit policy set p --limit 50 --period 1h`",
		"--limit 5":                 "a new one needs --period or --calendar: such as `pglimit policy set p --limit 5 --period 1h`",
		"--period 1m --burst 5":     "a new one needs --limit: such as",
		"--limit 5 --tick 1s":       "a new one needs --period or --calendar",
		"--limit 5 --on-error open": "use fail_closed or fail_open",
		"--limit -1 --period 1m":    "Limit -1",
		"--limit 5 --period 1m --local-share 0.5": "LocalShare 0.5: is for FailLocal only",
		"--limit 5 --durability strong":           "use durable or relaxed",
		"--limit 5 --period 1m --block-growth 3":  "BlockGrowth 3: is for attempts only",
		"--limit 5 --period 1m --block-max 3m":    "BlockMax 3m: is for attempts only",
	} {
		var flags Stored
		cmd := &cobra.Command{}
		flags.Register(cmd)
		err := cmd.ParseFlags(strings.Fields(args))
		if err == nil {
			_, err = flags.Patch("p", nil)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
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
		"--policy " + file + "#login --limit 5":   "leave --limit out",
		"--policy " + file + "#login --period 1s": "leave --period out",
		"--policy login --limit 5":                "leave --limit out for the policy of that name in the database, or add --period or --calendar for one of these flags",
		"--policy login --period 1s --burst 5":    "leave --burst, --period out for the policy of that name in the database, or add --limit",
		"--policy /nowhere#login":                 "/nowhere",
		"":                                        "--limit is missing",
	} {
		var flags Flags
		cmd := &cobra.Command{}
		flags.RegisterRequest(cmd)
		must.Succeed(t, cmd.ParseFlags(strings.Fields(args)))
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
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
}

// FuzzFromFile: FILE#NAME selects policy NAME of FILE, whose name may have a # too; any other
// name is in the error. A text without # is a policy in the database.
func FuzzFromFile(f *testing.F) {
	const name = "login"
	path := filepath.Join(f.TempDir(), "a#b.yaml")
	must.Succeed(f, os.WriteFile(path, []byte("- {name: "+name+", algorithm: gcra, limit: 3, period: 1s}\n"), 0o600))
	for _, text := range []string{"", name, "Login", "login ", "\x00", "#", name + "#", "\xff", "a#" + name} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		given := func(policy string) *Flags {
			var flags Flags
			cmd := &cobra.Command{}
			flags.RegisterPolicy(cmd)
			must.Succeed(t, cmd.ParseFlags([]string{"--policy=" + policy}))
			return &flags
		}
		if named := string(given(text).Named()); named != text && !strings.Contains(text, "#") || named != "" && strings.Contains(text, "#") {
			t.Errorf("%q selects %q in the database", text, named)
		}
		p, err := given(path + "#" + text).Policy()
		switch {
		case text == name:
			if err != nil || p.Name != name || p.Limit != 3 {
				t.Errorf("%q: %+v, %v", text, p, err)
			}
		case err == nil:
			t.Errorf("%q selects %+v", text, p)
		case !strings.Contains(text, "#") && !strings.Contains(err.Error(), fmt.Sprintf("%q", text)):
			t.Errorf("%q is not in the error: %v", text, err)
		}
	})
}

// FuzzFlags: a policy of flags is valid, and FILE#NAME takes no other flag of a policy.
func FuzzFlags(f *testing.F) {
	path := filepath.Join(f.TempDir(), "a.yaml")
	must.Succeed(f, os.WriteFile(path, []byte("- {name: login, algorithm: gcra, limit: 3, period: 1s}\n"), 0o600))
	for _, text := range []string{
		"--limit=5", "--limit=5 --period=1d", "--limit=0", "--limit=-1", "--limit=NaN", "--limit=5 --period=0s", "--limit=5 --period=1ns", "--limit=5 --burst=-1", "", "--period=1s",
		"--limit=5 --tick=1s", "--limit=5 --tick=1h", "--limit=5 --aligned", "--limit=5 --aligned --tick=1s", "--limit=5 --calendar=month", "--limit=5 --calendar=year", "--limit=5 --calendar=day --period=1m",
		"--limit=5 --time-zone=UTC", "--limit=5 --calendar=day --time-zone=Local", "--limit=5 --policy=", "--limit=5 --policy=a:b", "--limit=5 --algorithm=log", "--limit=5 --block-for=-1s",
		"--limit=5 --durability=relaxed", "--limit=5 --durability=", "--limit=5 --durability=often", "--policy=FILE#login", "--policy=FILE#other", "--policy=FILE#login --limit=5", "--policy=FILE#login --durability=durable", "--policy=FILE#login --policy=login",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var flags Flags
		cmd := &cobra.Command{}
		flags.RegisterRequest(cmd)
		if cmd.ParseFlags(strings.Fields(strings.ReplaceAll(text, "FILE", path))) != nil || flags.Named() != "" {
			return
		}
		p, err := flags.Policy()
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Errorf("%q gives %+v: %v", text, p, err)
		}
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if flags.from.InFile() && flag.Value.String() != "" && flag.Name != "policy" && flag.Name != "cost" {
				t.Errorf("%q gives %+v, without --%s", text, p, flag.Name)
			}
			if flag.Name == "durability" && flag.Value.String() != "" && flag.Value.String() != p.Durability.String() {
				t.Errorf("%q gives %+v", text, p)
			}
		})
	})
}
