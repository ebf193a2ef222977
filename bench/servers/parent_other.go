//go:build !linux

package servers

import "os/exec"

// endWithParent does nothing here: only Close ends the server.
func endWithParent(*exec.Cmd) {}
