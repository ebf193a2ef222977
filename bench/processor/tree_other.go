//go:build !linux

package processor

import (
	"errors"
	"time"
)

// tree needs /proc.
func tree(int) (time.Duration, error) { return 0, errors.ErrUnsupported }

// Parent returns a process's parent. It needs /proc.
func Parent(int) (int, error) { return 0, errors.ErrUnsupported }
