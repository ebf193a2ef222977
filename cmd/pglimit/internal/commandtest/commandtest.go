// Package commandtest runs command lines in a test's own process, for the tests
// of the subcommands.
package commandtest

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Call runs a command line, given without the program's name.
func Call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = commands.Run(t.Context(), args, strings.NewReader(""), &out, &err)
	return code, out.String(), err.String()
}

// Decode runs a command line and decodes its JSON into into, which must have all
// its fields.
func Decode(t *testing.T, into any, args ...string) {
	t.Helper()
	code, stdout, stderr := Call(t, args...)
	d := json.NewDecoder(strings.NewReader(stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil || code != 0 {
		t.Fatalf("%q: exit code %d, %v: stdout %q, stderr %q", args, code, err, stdout, stderr)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("%q: more than one JSON value: %q", args, stdout)
	}
}

// Golden compares got with a file below the test package's testdata directory.
// With -update it writes the file instead.
func Golden(t *testing.T, got string, path ...string) {
	t.Helper()
	file := filepath.Join(append([]string{"testdata"}, path...)...)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; create it with go test -update in this directory", err)
	}
	if got != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("%s differs; if this is intended, run go test -update in this directory. Got:\n%s", file, got)
	}
}
