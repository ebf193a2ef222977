package migrate

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Print writes all migrations to w as plain SQL, without goose's annotations. If down is
// true, it writes the SQL that undoes them, the last first. The SQL has no BEGIN or COMMIT,
// so that it can be part of a transaction. Print returns the errors of w.
func (s *Set) Print(w io.Writer, down bool) error {
	all := s.list()
	if down {
		slices.Reverse(all)
	}
	for i, f := range all {
		separator := ""
		if i > 0 {
			separator = "\n"
		}
		if _, err := fmt.Fprintf(w, "%s-- pglimit %s\n%s", separator, strings.TrimSuffix(path.Base(f.path), ".sql"), s.plain(f, down)); err != nil {
			return fmt.Errorf("pglimit: print %s: %w", f.path, err)
		}
	}
	return nil
}

// plain returns one direction of a migration, without goose's annotations. The comment
// above the first annotation explains the file and belongs to up.
func (s *Set) plain(f file, down bool) string {
	text, err := fs.ReadFile(s.files, f.path)
	if err != nil {
		panic(err) // it is embedded
	}
	var b strings.Builder
	ours := !down
	for line := range strings.Lines(string(text)) {
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
