package migrations

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Print writes all migrations to w as plain SQL, without goose's annotations:
// in order, or, if down is true, what undoes them, the last first. It is for
// psql and for tools that keep their own record of what has run:
//
//	pglimit migrate print | psql -1 -v ON_ERROR_STOP=1 "$DATABASE_URL"
//
// There is no BEGIN and no COMMIT in it, so that it can be part of a
// transaction. Errors are w's.
func Print(w io.Writer, down bool) error { return Tables.Print(w, down) }

// Print is the package's [Print] for this set.
func (s *Set) Print(w io.Writer, down bool) error {
	all := s.list()
	if down {
		slices.Reverse(all)
	}
	for i, f := range all {
		text, err := s.files.ReadFile(f.path)
		if err != nil {
			return fmt.Errorf("pglimit: print %s: %w", f.path, err)
		}
		separator := ""
		if i > 0 {
			separator = "\n"
		}
		if _, err := fmt.Fprintf(w, "%s-- pglimit %s\n%s", separator, strings.TrimSuffix(path.Base(f.path), ".sql"), plain(string(text), down)); err != nil {
			return fmt.Errorf("pglimit: print %s: %w", f.path, err)
		}
	}
	return nil
}

// plain takes one direction out of a migration, without goose's annotations.
// What stands above the first annotation explains the file; it goes with up.
func plain(text string, down bool) string {
	var b strings.Builder
	ours := !down
	for line := range strings.Lines(text) {
		annotation, ok := strings.CutPrefix(strings.TrimSpace(line), "-- +goose ")
		switch {
		case ok && annotation == "Up":
			ours = !down
		case ok && annotation == "Down":
			ours = down
		case !ok && ours:
			b.WriteString(line)
		}
	}
	return strings.Trim(b.String(), "\n") + "\n"
}
