//go:build unix && !linux

package process

import "syscall"

// endWithParent does nothing: here only the reaper ends an orphaned server.
func endWithParent(*syscall.SysProcAttr) {}
