package cli

import (
	"os"

	"golang.org/x/term"
)

// OnTerminal reports whether w is a terminal.
func OnTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
