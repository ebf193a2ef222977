package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// sleepUntil sleeps until a moment, to some 60 µs. Go's timers are up to a millisecond late
// in a process that is idle, which would be most of what is measured.
func sleepUntil(t time.Time) {
	for left := time.Until(t); left > 0; left = time.Until(t) {
		d := unix.NsecToTimespec(int64(left))
		_ = unix.Nanosleep(&d, nil) // after a signal for the rest
	}
}
