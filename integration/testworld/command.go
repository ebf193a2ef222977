package testworld

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/pglimit/pglimit/internal/repository"
)

var binaryDir string // set by BuildCommand, removed by Main

// BuildCommand builds the command, once for all tests, and returns its path.
var BuildCommand = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pglimit-command-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	return repository.BuildCommand(dir)
})

func removeBinary() error {
	if binaryDir == "" {
		return nil
	}
	return os.RemoveAll(binaryDir)
}

// asCommand is set in the environment of a test binary that is to be the command.
const asCommand = "PGLIMIT_TEST_AS_COMMAND"

// BeCommand makes Command start the running test binary instead of a built command, which
// saves the build. There BeCommand calls main and does not return. Call it first in TestMain, in
// a package that links the command.
func BeCommand(main func()) {
	if os.Getenv(asCommand) != "" {
		main()
		os.Exit(0)
	}
	BuildCommand = os.Executable
}

// Command prepares the built command over a database, which DATABASE_URL names.
func Command(t *testing.T, database string, args ...string) *osexec.Cmd {
	t.Helper()
	path, err := BuildCommand()
	if err != nil {
		t.Fatalf("build the command: %v", err)
	}
	cmd := osexec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL="+database)
	return cmd
}

// Pglimit runs the command and returns its exit code and what it wrote.
func Pglimit(t *testing.T, database string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return RunCommand(t, Command(t, database, args...))
}

// RunCommand runs a prepared command to its end.
func RunCommand(t *testing.T, cmd *osexec.Cmd) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *osexec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// PglimitJSON runs the command with --json, decodes what it wrote and expects
// exit code 0.
func PglimitJSON(t *testing.T, into any, database string, args ...string) {
	t.Helper()
	code, stdout, stderr := Pglimit(t, database, append(args, "--json")...)
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || code != 0 {
		t.Fatalf("%q: exit code %d, %v: stdout %q, stderr %q", args, code, err, stdout, stderr)
	}
}

// MigrateResult is what pglimit migrate --json prints.
type MigrateResult struct {
	Direction  string
	Migrations []struct {
		Version  int64
		Name     string
		Took     string
		Repaired []string
	}
	Warnings []string
}

// String renders it as "up: 1 tables 2 storage".
func (m MigrateResult) String() string {
	text := m.Direction + ":"
	for _, s := range m.Migrations {
		text += fmt.Sprint(" ", s.Version, " ", s.Name)
	}
	return text
}
