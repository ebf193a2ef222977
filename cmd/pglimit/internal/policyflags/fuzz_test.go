package policyflags

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
