package migrations

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
)

// timestamp is how goose writes a version that is a time, in UTC.
const timestamp = "20060102150405"

// Export copies the migrations into dir, the folder of an application's own
// goose migrations, so that they run with the application's and in the
// application's version table. They are called NNNNN_pglimit_<name>.sql and
// come after the highest number in dir, in its style: one more than it, with
// as many digits, or, if it is a time of 14 digits, the present time in UTC,
// or a second after the highest if that is later. An empty folder starts at
// 00001.
//
// A migration of which a file *_pglimit_<name>.sql lies in dir already is left
// out, whatever its number: run Export again after each update of pglimit.
//
// It returns the paths of the files that it wrote, in order; no file is ever
// overwritten. If one cannot be written, those before it are returned and stay.
func Export(dir string) ([]string, error) { return Tables.Export(dir) }

// Export is the package's [Export] for this set.
func (s *Set) Export(dir string) ([]string, error) { return s.export(dir, time.Now()) }

func (s *Set) export(dir string, now time.Time) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("pglimit: export into %s: %w: name the existing folder of your goose migrations", dir, err)
	}
	var highest string // the number as written
	var version int64
	there := map[string]bool{} // names of ours
	for _, e := range entries {
		number, rest, _ := strings.Cut(e.Name(), "_")
		v, err := goose.NumericComponent(e.Name())
		if err != nil || e.IsDir() || strings.HasSuffix(rest, "_test.go") {
			continue // goose passes it over too
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
		sql, err := s.files.ReadFile(f.path)
		if err != nil {
			return written, fmt.Errorf("pglimit: export %s: %w", f.path, err)
		}
		to := filepath.Join(dir, next()+"_pglimit_"+f.name+".sql")
		if err := create(to, sql); err != nil {
			return written, fmt.Errorf("pglimit: export %s: %w: make room or give the right to write there, then export again", to, err)
		}
		written = append(written, to)
	}
	return written, nil
}

// numbering gives the numbers that follow version, which was written as highest.
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

// create writes a new file, and leaves nothing behind if it cannot.
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
