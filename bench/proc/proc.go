// Package proc reads the processor time and the memory that this process and a server use.
// Noise of the machine moves processor time less than it moves throughput.
package proc

import "time"

// A Clock returns the processor time used so far, in user and system mode together. Its
// error is errors.ErrUnsupported where the system does not report it.
type Clock func() (time.Duration, error)

// Tree returns the Clock of a process and its children, those that have ended included.
func Tree(root int) Clock {
	return func() (time.Duration, error) { return tree(root) }
}

// Memory is bytes in use.
type Memory struct {
	// Resident is the part of a process in main memory, in bytes.
	Resident int64
	// Share counts an n-th of what n processes share. Own is neither file-backed nor shared.
	Share, Own int64
}
