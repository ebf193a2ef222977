//go:build !unix

package main

import "os"

// terminalSent is always true: a console signals all its processes itself.
func terminalSent(os.Signal) bool { return true }
