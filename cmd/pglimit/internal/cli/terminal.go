package cli

import (
	"os"

	"golang.org/x/term"
)

// OnTerminal reports whether w is a terminal. A reader of Interruptible is one if what it
// reads is.
func OnTerminal(w any) bool {
	if r, ok := w.(*interruptibleReader); ok {
		w = r.in
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
