package demo

import (
	"fmt"
	"io"
)

// stage draws the demo. On a terminal it redraws the current line as it changes;
// elsewhere it writes each line once it is finished. It keeps its first error.
type stage struct {
	w    io.Writer
	live bool
	err  error
}

// stageError is an error of writing to a stage.
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

// clearLine returns to the start of the line and clears it.
const clearLine = "\r\x1b[K"

// draw replaces the current line with one that may still change.
func (s *stage) draw(line string) error {
	if s.live {
		s.printf("%s%s", clearLine, line)
	}
	return s.err
}

// finish replaces the current line with its final form.
func (s *stage) finish(line string) error {
	if s.live {
		s.printf("%s", clearLine)
	}
	s.printf("%s\n", line)
	return s.err
}
