package migrate

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// folder makes a folder with the named files.
func folder(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, f), []byte("-- +goose Up\nSELECT 1;\n"), 0o600))
	}
	return dir
}

func TestExportNumbering(t *testing.T) {
	t.Parallel()
	now := time.Date(2025, 3, 1, 23, 59, 59, 999, time.FixedZone("", 3600))
	for _, c := range []struct {
		name  string
		there []string
		want  []string // the first numbers: tables, storage and views
	}{
		{"empty", nil, []string{"00001", "00002", "00003"}},
		{"only files that goose skips", []string{"README.md", "x.sql", "00000_zero.sql", "00009_a_test.go", "00009.sql", "-5_x.sql"},
			[]string{"00001", "00002", "00003"}},
		{"sequence", []string{"00001_users.sql", "00041_orders.sql"}, []string{"00042", "00043", "00044"}},
		{"sequence with Go files", []string{"00001_users.sql", "00007_fill.go"}, []string{"00008", "00009", "00010"}},
		{"three digits", []string{"008_users.sql"}, []string{"009", "010", "011"}},
		{"no leading zeros", []string{"9_users.sql"}, []string{"10", "11", "12"}},
		{"one digit more", []string{"99998_users.sql"}, []string{"99999", "100000", "100001"}},
		{"times", []string{"20240102030405_users.sql"}, []string{"20250301225959", "20250301230000", "20250301230001"}},
		{"times of the present", []string{"20250301225959_users.sql"}, []string{"20250301230000", "20250301230001", "20250301230002"}},
		{"times in the future", []string{"20991231235959_users.sql"}, []string{"21000101000000", "21000101000001", "21000101000002"}},
		{"times after a sequence", []string{"00001_users.sql", "20240102030405_orders.sql"},
			[]string{"20250301225959", "20250301230000", "20250301230001"}},
		{"14 digits that are no time", []string{"20249999999999_users.sql"}, []string{"20250000000000", "20250000000001", "20250000000002"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t, c.there...)
			got := must.OK(tables.export(dir, now))(t)
			var want []string
			for i, name := range []string{"tables", "storage", "views"} {
				want = append(want, filepath.Join(dir, c.want[i]+"_pglimit_"+name+".sql"))
			}
			if len(got) != len(tables.list()) || !slices.Equal(got[:len(want)], want) {
				t.Fatalf("got %q, want %q first", got, want)
			}
			for i, f := range tables.list() {
				ours, _ := fs.ReadFile(tables.files, f.path)
				theirs, err := os.ReadFile(got[i])
				if err != nil || string(ours) != string(theirs) {
					t.Errorf("%s is not a copy: %v", got[i], err)
				}
			}
			if again, err := tables.export(dir, now); err != nil || len(again) != 0 {
				t.Errorf("the second export: %q, %v", again, err)
			}
		})
	}
}

func TestExportWhatIsNotThere(t *testing.T) {
	t.Parallel()
	// goose fix and people renumber files, so only the name counts.
	there := []string{"00005_users.sql", "00007_my_pglimit_storage.sql"}
	for i, f := range tables.list() {
		if f.name != "storage" {
			there = append(there, fmt.Sprintf("%03d_pglimit_%s.sql", 50-i, f.name))
		}
	}
	dir := folder(t, there...)
	got, err := tables.Export(dir)
	if want := []string{filepath.Join(dir, "051_pglimit_storage.sql")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestExportErrors(t *testing.T) {
	t.Parallel()
	file := filepath.Join(folder(t, "00001_users.sql"), "00001_users.sql")
	missing := filepath.Join(t.TempDir(), "none")
	full := folder(t, "9223372036854775806_users.sql")
	for _, dir := range []string{file, missing, full, ""} {
		got, err := tables.Export(dir)
		if err == nil || len(got) > 0 {
			t.Errorf("export into %q: got %q, %v, want only an error", dir, got, err)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, "pglimit: ") || !strings.Contains(text, dir) {
			t.Errorf("export into %q: the error does not name the folder: %v", dir, err)
		}
	}
	if _, err := os.Stat(missing); !os.IsNotExist(err) {
		t.Errorf("the missing folder was made: %v", err)
	}
}
