// Package systemd tests deploy/systemd by systemd-analyze and by the command.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
)

// read returns a file of deploy/systemd.
func read(t *testing.T, name string) string {
	t.Helper()
	return string(must.OK(os.ReadFile(filepath.Join(must.OK(repository.Root())(t), "deploy/systemd", name)))(t))
}

// setting returns the values that a text gives a name.
func setting(text, name string) (values []string) {
	for _, found := range regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(text, -1) {
		values = append(values, found[1])
	}
	return values
}

// TestUnitVerifies holds that systemd has nothing to say about the unit, and that the service
// could do little harm: 20 is an exposure of 2.0 of 10.
func TestUnitVerifies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pglimit.service")
	text := strings.Replace(read(t, "pglimit.service"), "ExecStart=/usr/bin/pglimit ", "ExecStart="+must.OK(os.Executable())(t)+" ", 1)
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	for _, args := range [][]string{{"verify", "--man=no", path}, {"security", "--no-pager", "--offline=true", "--threshold=20", path}} {
		out, err := exec.Command("systemd-analyze", args...).CombinedOutput()
		if err != nil || args[0] == "verify" && len(out) > 0 {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

// TestUnitStarts holds that the command has the flags of the unit and of its environment, that
// each credential is used and each secret is one, and that the end has time for the drain.
func TestUnitStarts(t *testing.T) {
	unit := read(t, "pglimit.service")
	line := setting(unit, "ExecStart")[0]
	flags := setting(read(t, "serve.env"), "PGLIMIT_FLAGS")[0]
	args := strings.Fields(strings.Replace(line, "$PGLIMIT_FLAGS", flags, 1))[1:]
	if code, _, stderr := commandtest.Call(t, append(slices.Clone(args), "--help")...); code != 0 {
		t.Errorf("pglimit %v: %s", args, stderr)
	}
	for _, credential := range setting(unit, "LoadCredential") {
		name, _, _ := strings.Cut(credential, ":")
		if !strings.Contains(line+strings.Join(setting(unit, "Environment"), " "), "=%d/"+name) {
			t.Errorf("nothing uses credential %s", name)
		}
	}
	// The command reads the file that the variable names, and says which one is missing.
	for _, variable := range setting(unit, "Environment") {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasSuffix(name, "_FILE") || !strings.HasPrefix(value, "%d/") {
			t.Errorf("%s is no credential", variable)
		}
		t.Setenv(name, strings.Replace(value, "%d", filepath.Join(t.TempDir(), "absent"), 1))
		if code, _, stderr := commandtest.Call(t, "migrate", "status"); code == 0 || !strings.Contains(stderr, name) {
			t.Errorf("without the file of %s: %d %s", name, code, stderr)
		}
	}
	var drain time.Duration
	for _, arg := range args {
		if name, value, _ := strings.Cut(arg, "="); name == "--drain-delay" || name == "--drain-timeout" {
			drain += must.OK(time.ParseDuration(value))(t)
		}
	}
	if stop := must.OK(time.ParseDuration(setting(unit, "TimeoutStopSec")[0]))(t); drain == 0 || stop < drain+10*time.Second {
		t.Errorf("the end has %v for a drain of %v", stop, drain)
	}
}
