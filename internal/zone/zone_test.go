package zone

import (
	"archive/zip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	_ "time/tzdata"

	"github.com/pglimit/pglimit/internal/must"
)

// TestLoadEveryName: each name in the toolchain's database is accepted, listed or not.
func TestLoadEveryName(t *testing.T) {
	t.Parallel()
	root := must.OK(exec.Command("go", "env", "GOROOT").Output())(t)
	files := must.OK(zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip")))(t)
	defer files.Close()
	loaded := 0
	for _, f := range files.File {
		if strings.HasSuffix(f.Name, "/") || f.Name == "Factory" {
			continue
		}
		location, err := Load(f.Name)
		if err != nil || location.String() != f.Name {
			t.Errorf("%s: got %v, %v", f.Name, location, err)
		}
		loaded++
	}
	if loaded < 500 || len(names) < 500 {
		t.Errorf("%d names of the toolchain and %d listed", loaded, len(names))
	}
}

// TestNames: the list is in the order that listed searches. It has no name twice, and
// none that the pattern does not match.
func TestNames(t *testing.T) {
	t.Parallel()
	for i, name := range names {
		if i > 0 && compareFolded(names[i-1], name) >= 0 {
			t.Errorf("%s is not after %s", name, names[i-1])
		}
		if !pattern().MatchString(name) || len(name) > maxName {
			t.Errorf("%s does not match", name)
		}
	}
	for _, name := range []string{"UTC", "Etc/GMT+5", "America/Argentina/Buenos_Aires", "US/Pacific", "EST5EDT", "GB-Eire"} {
		if !slices.Contains(names[:], name) {
			t.Errorf("%s is not listed", name)
		}
	}
}

// TestLoadRefuses: each zone has one spelling, whatever files the system keeps and
// however it compares their names.
func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"Local":                            "differs from machine to machine",
		"Factory":                          "stands for a zone that is not set",
		"europe/PARIS":                     "is spelled Europe/Paris: use that",
		"utc":                              "is spelled UTC",
		"us/pacific":                       "is spelled US/Pacific",
		"Europe/Wien":                      "is not known here",
		"Europe":                           "is not known here", // a folder
		"./Europe/Paris":                   "is not a name of the IANA",
		"Europe//Paris":                    "is not a name of the IANA",
		"Europe/./Paris":                   "is not a name of the IANA",
		"Europe/../Europe/Oslo":            "is not a name of the IANA",
		"Europe/Paris/":                    "is not a name of the IANA",
		"/Europe/Paris":                    "is not a name of the IANA",
		`Europe\Paris`:                     "is not a name of the IANA",
		"Europe/Paris\n":                   "is not a name of the IANA",
		" Europe/Paris":                    "is not a name of the IANA",
		"posix/Europe/Paris":               "is not a name of the IANA",
		"right/Europe/Paris":               "is not a name of the IANA",
		"localtime":                        "is not a name of the IANA",
		"posixrules":                       "is not a name of the IANA",
		"tzdata.zi":                        "is not a name of the IANA",
		"A/B/C/D":                          "is not a name of the IANA",
		"X" + strings.Repeat("x", maxName): "is not a name of the IANA",
	} {
		if location, err := Load(name); err == nil || location != nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, %v, want %q", name, location, err, want)
		}
	}
	if location, err := Load(""); err != nil || location.String() != "UTC" {
		t.Errorf("empty: %v, %v", location, err)
	}
}
