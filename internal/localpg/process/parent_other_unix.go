//go:build unix && !linux

package process

import "syscall"

// endWithParent does nothing: the reaper alone ends an orphaned server here.
func endWithParent(*syscall.SysProcAttr) {}
