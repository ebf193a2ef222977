//go:build !linux

package proc

import (
	"errors"
	"time"
)

// Self is the Clock of this process. Like all of this package, it needs Linux.
func Self() (time.Duration, error) { return 0, errors.ErrUnsupported }

func tree(int) (time.Duration, error) { return Self() }

// ReadMemory reports nothing.
func ReadMemory(int) (Memory, error) { return Memory{}, errors.ErrUnsupported }

// Parent returns 0.
func Parent(int) int { return 0 }
