//go:build unix

package processor

import (
	"syscall"
	"time"
)

// Self is the Clock of this process, all threads included.
func Self() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, err
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}
