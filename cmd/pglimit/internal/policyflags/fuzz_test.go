package policyflags

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FuzzFromFile: FILE#NAME selects the policy of that name from the file of that name, which
// may have a # too; any other name is in the error. A text without # is a policy in the
// database.
func FuzzFromFile(f *testing.F) {
	const name = "login"
	path := filepath.Join(f.TempDir(), "a#b.yaml")
	if err := os.WriteFile(path, []byte("- {name: "+name+", algorithm: gcra, limit: 3, period: 1s}\n"), 0o600); err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{"", name, "Login", "login ", "\x00", "#", name + "#", "\xff", "a#" + name} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		given := func(policy string) *Flags {
			var flags Flags
			cmd := &cobra.Command{}
			flags.RegisterPolicy(cmd)
			if err := cmd.ParseFlags([]string{"--policy=" + policy}); err != nil {
				t.Fatal(err)
			}
			return &flags
		}
		if named := given(text).Named(); named != text && !strings.Contains(text, "#") || named != "" && strings.Contains(text, "#") {
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

// FuzzFlags: a policy of flags is valid, and --policy takes no other flag of a policy.
func FuzzFlags(f *testing.F) {
	path := filepath.Join(f.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte("- {name: login, algorithm: gcra, limit: 3, period: 1s}\n"), 0o600); err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{
		"--limit=5", "--limit=5 --period=1d", "--limit=0", "--limit=-1", "--limit=NaN", "--limit=5 --period=0s", "--limit=5 --period=1ns", "--limit=5 --burst=-1", "", "--period=1s",
		"--limit=5 --tick=1s", "--limit=5 --tick=1h", "--limit=5 --aligned", "--limit=5 --aligned --tick=1s", "--limit=5 --calendar=month", "--limit=5 --calendar=year", "--limit=5 --calendar=day --period=1m",
		"--limit=5 --time-zone=UTC", "--limit=5 --calendar=day --time-zone=Local", "--limit=5 --name=", "--limit=5 --name=a:b", "--limit=5 --algorithm=log", "--limit=5 --block-for=-1s",
		"--limit=5 --durability=relaxed", "--limit=5 --durability=", "--limit=5 --durability=often", "--policy=FILE#login", "--policy=FILE#other", "--policy=FILE#login --limit=5", "--policy=FILE#login --durability=durable", "--policy=FILE#login --name=login",
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
			if cmd.Flags().Changed("policy") && flag.Value.String() != "" && flag.Name != "policy" && flag.Name != "cost" {
				t.Errorf("%q gives %+v, without --%s", text, p, flag.Name)
			}
			if flag.Name == "durability" && flag.Value.String() != "" && flag.Value.String() != p.Durability.String() {
				t.Errorf("%q gives %+v", text, p)
			}
		})
	})
}
