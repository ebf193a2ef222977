package main

import (
	"os"

	"golang.org/x/term"
)

// onTerminal tells whether a person watches what is written to w.
func onTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
