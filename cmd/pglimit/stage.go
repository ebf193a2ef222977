package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/pglimit/pglimit/limiter"
)

// stage is where the demo is drawn: on a terminal each line is drawn anew as it
// changes, elsewhere it is written once it is whole. It remembers its first
// error.
type stage struct {
	w    io.Writer
	live bool
	err  error
}

// stageError is a stage that cannot be written to.
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

// draw shows a burst that goes on.
func (s *stage) draw(b demoBurst) error {
	if s.live {
		s.printf("%s%s", clearLine, burstLine(b))
	}
	return s.err
}

// drawn shows a burst that is over.
func (s *stage) drawn(b demoBurst) error {
	if s.live {
		s.printf("%s", clearLine)
	}
	s.printf("%s  %d allowed, %d delayed, %d denied\n", burstLine(b), b.Allowed, b.Delayed, b.Denied)
	return s.err
}

// burstLine is a burst in a line: the level as a bar, and a mark for each ask,
// with a gap after those that came at once.
func burstLine(b demoBurst) string {
	var marks strings.Builder
	var level float64
	for i, r := range b.Results {
		if i == demoBurstAsks {
			marks.WriteByte(' ')
		}
		marks.WriteByte(mark(r))
		level = r.Level
	}
	full := min(demoLimit, max(0, int(math.Ceil(level-1e-6))))
	bar := strings.Repeat("#", full) + strings.Repeat(".", demoLimit-full)
	return fmt.Sprintf("  %-22s [%s] %4.1f  %-*s", b.Algorithm, bar, level, demoBurstAsks+1+demoLaterAsks, marks.String())
}

func mark(r limiter.Result) byte {
	switch {
	case !r.Allowed:
		return '-'
	case r.Delay > 0:
		return '~'
	}
	return '+'
}
