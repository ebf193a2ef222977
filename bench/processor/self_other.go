//go:build !unix

package processor

import (
	"errors"
	"time"
)

// Self is the Clock of this process, all threads included. This system has no getrusage.
func Self() (time.Duration, error) { return 0, errors.ErrUnsupported }
