package demo

import (
	"fmt"
	"io"
)

// stage is where the demo is drawn. A terminal shows each line as it grows;
// elsewhere a line is written once it is finished. A stage keeps its first error.
type stage struct {
	w    io.Writer
	live bool
	err  error
}

// stageError is the error of a stage that cannot be written to.
type stageError struct{ error }

func (e stageError) Unwrap() error { return e.error }

func (s *stage) printf(format string, args ...any) {
	if s.err != nil {
		return
	}
	if _, err := fmt.Fprintf(s.w, format, args...); err != nil {
		s.err = stageError{err}
	}
}

// clearLine goes back to the line's start and deletes it.
const clearLine = "\r\x1b[K"

// draw replaces the current line by one that may still change.
func (s *stage) draw(line string) error {
	if s.live {
		s.printf("%s%s", clearLine, line)
	}
	return s.err
}

// finish replaces the current line by its final form.
func (s *stage) finish(line string) error {
	if s.live {
		s.printf("%s", clearLine)
	}
	s.printf("%s\n", line)
	return s.err
}
