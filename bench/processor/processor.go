// Package processor reads the processor time that this process and the servers have used.
// Noise of the machine moves it less than it moves throughput.
package processor

import "time"

// A Clock returns the processor time used so far, in user and system mode together. Its
// error is errors.ErrUnsupported where the system does not report it.
type Clock func() (time.Duration, error)

// Tree returns the Clock of a process and its children, those that have ended included.
func Tree(root int) Clock {
	return func() (time.Duration, error) { return tree(root) }
}
