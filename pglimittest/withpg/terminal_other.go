//go:build !unix

package main

import "os"

// terminalSent always returns true: a console signals all its processes.
func terminalSent(os.Signal) bool { return true }
