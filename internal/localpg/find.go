package localpg

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/pglimit/pglimit/internal/localpg/process"
)

// ErrNotFound is in the error of Find and Start if this machine has no PostgreSQL
// server. The error's text says how to install one.
var ErrNotFound = errors.New("no PostgreSQL server found")

// Find returns the directory of the PostgreSQL server programs to use, and their version,
// such as "17.5". major is their major version, such as "17"; if it is empty, any will do.
// The directory is that in PGBIN, if set, with any version. Otherwise it is the newest of
// pg_config, the usual directories and PATH that has both initdb and postgres.
func Find(major string) (bindir, version string, err error) {
	if dir := os.Getenv("PGBIN"); dir != "" {
		version, err := serverVersion(dir)
		if err != nil {
			return "", "", fmt.Errorf("%w: PGBIN is %s: %w; set it to the directory of initdb and postgres, or unset it and %s", ErrNotFound, dir, err, installHint(major))
		}
		return dir, version, nil
	}
	return newest(candidates(), major)
}

// FindWith is Find for a server that has the named library, such as an extension's.
func FindWith(library string) (bindir, version string, err error) {
	dirs := candidates()
	if dir := os.Getenv("PGBIN"); dir != "" {
		dirs = []string{dir}
	}
	dirs = slices.DeleteFunc(dirs, func(bindir string) bool { return !hasLibrary(bindir, library) })
	if len(dirs) == 0 {
		return "", "", fmt.Errorf("%w with %s", ErrNotFound, library)
	}
	return newest(dirs, "")
}

// hasLibrary reports whether the server of bindir has a library in one of the places of
// Debian, Red Hat and PostgreSQL's own make install.
func hasLibrary(bindir, library string) bool {
	for _, dir := range []string{"lib", "lib/postgresql"} {
		if found, _ := filepath.Glob(filepath.Join(bindir, "..", dir, library+".*")); found != nil { // only a bad pattern fails
			return true
		}
	}
	return false
}

// candidates returns directories that may have a server, most likely first.
func candidates() []string {
	var dirs []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",       // Debian, Ubuntu
		"/usr/pgsql-*/bin",                // Red Hat, from the PostgreSQL project
		"/usr/libexec/postgresql*",        // Alpine
		"/opt/homebrew/opt/postgres*/bin", // Homebrew, Apple silicon
		"/usr/local/opt/postgres*/bin",    // Homebrew, Intel
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		`C:\Program Files\PostgreSQL\*\bin`,
	} {
		found, _ := filepath.Glob(pattern) // fails only on a bad pattern
		dirs = append(dirs, found...)
	}
	return append(dirs, filepath.SplitList(os.Getenv("PATH"))...)
}

// newest returns the directory with the newest server of the wanted major version, and
// the first one if several are equal.
func newest(dirs []string, major string) (bindir, version string, err error) {
	best := -1
	for _, dir := range dirs {
		v, err := serverVersion(dir)
		if err != nil || major != "" && majorOf(v) != major {
			continue
		}
		if n := rank(v); n > best {
			best, bindir, version = n, dir, v
		}
	}
	if best < 0 {
		what := ""
		if major != "" {
			what = " of version " + major
		}
		return "", "", fmt.Errorf("%w%s; %s, or set PGBIN to the directory of initdb and postgres", ErrNotFound, what, installHint(major))
	}
	return bindir, version, nil
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+[0-9a-z.]*)`)

// serverVersion returns the version of the server in dir.
func serverVersion(dir string) (string, error) {
	if dir == "" {
		return "", errors.New("no directory")
	}
	for _, program := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(executable(dir, program)); err != nil {
			return "", fmt.Errorf("no %s there: %w", program, err)
		}
	}
	// The server does not run as root, and neither does its question for the version.
	account, err := process.RunAs("", true)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(executable(dir, "postgres"), "--version")
	cmd.Dir = filepath.Dir(dir)
	account.Apply(cmd)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("read the version: %w", err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("unknown version %q", strings.TrimSpace(string(out)))
	}
	return string(m[1]), nil
}

// executable returns the path of a program in dir.
func executable(dir, program string) string {
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	return filepath.Join(dir, program)
}

// majorOf returns the major version: "17" for "17.5" and "17beta1".
func majorOf(version string) string { return strconv.Itoa(rank(version) / 1000) }

// rank returns a number that is larger for later versions. A beta ranks with the first
// release of its version.
func rank(version string) int {
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor) // a beta has no minor version
	return major*1000 + minor
}

// installHint returns how to install a server of a major version (any if empty) on this
// system.
func installHint(major string) string {
	if runtime.GOOS == "windows" {
		return "install one: winget install PostgreSQL.PostgreSQL." + cmp.Or(major, "17")
	}
	suffix := ""
	if major != "" {
		suffix = "-" + major
	}
	for _, manager := range []struct{ program, line string }{
		{"apt-get", "sudo apt-get install postgresql" + suffix},
		{"dnf", "sudo dnf install postgresql-server"},
		{"apk", "sudo apk add postgresql" + cmp.Or(major, "17")},
		{"pacman", "sudo pacman -S postgresql"},
		{"zypper", "sudo zypper install postgresql-server"},
		{"brew", "brew install postgresql@" + cmp.Or(major, "17")},
	} {
		if _, err := exec.LookPath(manager.program); err == nil {
			return "install one: " + manager.line
		}
	}
	return "install one (https://www.postgresql.org/download/)"
}
