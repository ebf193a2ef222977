package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
)

// timestamp is goose's format of a version that is a time, in UTC.
const timestamp = "20060102150405"

// Export copies the migrations into dir, the folder of an application's goose
// migrations, so that they run with the application's and in its version table. Run it
// again after each update of pglimit: it skips a migration if dir has a file
// *_pglimit_<name>.sql with any number.
//
// Files are called NNNNN_pglimit_<name>.sql and continue the numbers in dir. The first
// number is
//
//   - 00001 if dir has no migrations;
//   - one more than the highest, with as many digits; or
//   - if the highest is a time of 14 digits, the present in UTC, or one second after the
//     highest if that is later.
//
// Export returns the paths of the files that it wrote, in order. It never overwrites a
// file. On an error, it returns the files written before, and they stay.
func (s *Set) Export(dir string) ([]string, error) { return s.export(dir, time.Now()) }

func (s *Set) export(dir string, now time.Time) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("pglimit: export into %s: %w: pass the existing folder of your goose migrations", dir, err)
	}
	var highest string // the number as written
	var version int64
	there := map[string]bool{} // names of our migrations in dir
	for _, e := range entries {
		number, rest, _ := strings.Cut(e.Name(), "_")
		v, err := goose.NumericComponent(e.Name())
		if err != nil || e.IsDir() || strings.HasSuffix(rest, "_test.go") {
			continue // goose skips it too
		}
		if name, ok := strings.CutPrefix(rest, "pglimit_"); ok {
			there[strings.TrimSuffix(name, ".sql")] = true
		}
		if v > version {
			highest, version = number, v
		}
	}
	if version > math.MaxInt64-int64(len(s.list())) {
		return nil, fmt.Errorf("pglimit: export into %s: no numbers are left after %d: give that migration a smaller one", dir, version)
	}
	next := numbering(highest, version, now)
	var written []string
	for _, f := range s.list() {
		if there[f.name] {
			continue
		}
		sql, err := fs.ReadFile(s.files, f.path)
		if err != nil {
			return written, fmt.Errorf("pglimit: export %s: %w", f.path, err)
		}
		to := filepath.Join(dir, next()+"_pglimit_"+f.name+".sql")
		if err := create(to, sql); err != nil {
			return written, fmt.Errorf("pglimit: export %s: %w: free disk space or allow writing there, then export again", to, err)
		}
		written = append(written, to)
	}
	return written, nil
}

// numbering returns a function that returns the numbers after version, in the style of
// highest, its text.
func numbering(highest string, version int64, now time.Time) func() string {
	if at, err := time.Parse(timestamp, highest); err == nil {
		at = at.Add(time.Second)
		if now = now.UTC().Truncate(time.Second); now.After(at) {
			at = now
		}
		return func() string {
			n := at.Format(timestamp)
			at = at.Add(time.Second)
			return n
		}
	}
	digits := len(highest)
	if highest == "" {
		digits = 5
	}
	return func() string {
		version++
		n := strconv.FormatInt(version, 10)
		return strings.Repeat("0", max(0, digits-len(n))) + n
	}
}

// create writes a new file, and removes it if that fails.
func create(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
