package localpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// fakeServer creates a directory with programs that print a version.
func fakeServer(t *testing.T, version string) string {
	t.Helper()
	dir := reachable(t) // root lets the server's user ask for the version
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	for _, program := range []string{"initdb", "postgres"} {
		writeProgram(t, filepath.Join(dir, program), script)
	}
	return dir
}

// writeProgram writes a script while nothing is forked: a process forked meanwhile by
// another test would hold the file open for writing, and it could not be run.
func writeProgram(t *testing.T, path, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	must.Succeed(t, os.WriteFile(path, []byte(script), 0o755))
}

func TestNewestServerIsTaken(t *testing.T) {
	t.Parallel()
	old, late, beta := fakeServer(t, "9.6.24"), fakeServer(t, "17.10 (Debian 17.10-1)"), fakeServer(t, "17.9")
	dirs := []string{"", t.TempDir(), old, beta, late}
	for major, want := range map[string]string{"": late, "17": late, "9": old} {
		dir, version, err := newest(dirs, major)
		if err != nil || dir != want {
			t.Errorf("major %q: %s (%s), %v; want %s", major, dir, version, err, want)
		}
	}
	if _, version, _ := newest(dirs, ""); version != "17.10" {
		t.Errorf("version %q, want 17.10", version)
	}
}

func TestFindErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"", "17"} {
		_, _, err := newest([]string{t.TempDir(), "/does/not/exist"}, major)
		if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "install one") || !strings.Contains(err.Error(), major) {
			t.Errorf("major %q: %v; want ErrNotFound and how to install one", major, err)
		}
	}
}

func TestPGBIN(t *testing.T) {
	dir := fakeServer(t, "16.3")
	t.Setenv("PGBIN", dir)
	if got, version, err := Find(""); got != dir || version != "16.3" || err != nil {
		t.Errorf("Find() = %s, %s, %v; want what PGBIN names", got, version, err)
	}
	t.Setenv("PGBIN", t.TempDir())
	if _, _, err := Find(""); err == nil || !strings.Contains(err.Error(), "PGBIN") {
		t.Errorf("an empty PGBIN directory: %v; want an error that names PGBIN", err)
	}
}

func TestFindWith(t *testing.T) {
	dir := reachable(t)
	bindir := filepath.Join(dir, "bin")
	must.Succeed(t, errors.Join(os.Mkdir(bindir, 0o755), os.MkdirAll(filepath.Join(dir, "lib", "postgresql"), 0o755)))
	for _, program := range []string{"initdb", "postgres"} {
		writeProgram(t, filepath.Join(bindir, program), "#!/bin/sh\necho 'postgres (PostgreSQL) 16.3'\n")
	}
	t.Setenv("PGBIN", bindir)
	if _, _, err := FindWith("extra"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "extra") {
		t.Errorf("without the library: %v, want ErrNotFound that names it", err)
	}
	for _, library := range []string{"lib/extra.so", "lib/postgresql/extra.dylib"} {
		path := filepath.Join(dir, library)
		must.Succeed(t, os.WriteFile(path, nil, 0o644))
		if got, version, err := FindWith("extra"); got != bindir || version != "16.3" || err != nil {
			t.Errorf("with %s: %s, %s, %v", library, got, version, err)
		}
		must.Succeed(t, os.Remove(path))
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"17.5": "17", "18beta1": "18", "9.6.24": "9", "19devel": "19"} {
		if got := majorOf(version); got != want {
			t.Errorf("majorOf(%q) = %q, want %q", version, got, want)
		}
	}
	for _, order := range [][2]string{{"9.6.24", "13.1"}, {"17.9", "17.10"}, {"17.10", "18beta1"}} {
		if rank(order[0]) >= rank(order[1]) {
			t.Errorf("%s ranks above %s", order[0], order[1])
		}
	}
}
