package exec

import (
	"testing"
	"time"
)

// TestIdle: a transaction may be idle for twice the caller's timeout, within bounds.
func TestIdle(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		-1: 30 * time.Second, 0: 30 * time.Second, 1: time.Second, 500 * time.Millisecond: time.Second, 501 * time.Millisecond: 1002 * time.Millisecond,
		time.Second: 2 * time.Second, 15 * time.Second: 30 * time.Second, 15*time.Second + 1: 30 * time.Second, 1<<63 - 1: 30 * time.Second,
	} {
		if got := Idle(timeout); got != want {
			t.Errorf("Idle(%v) = %v, want %v", timeout, got, want)
		}
	}
}
