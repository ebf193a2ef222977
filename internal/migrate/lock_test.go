package migrate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// TestLockEnds: a wait for the lock of migrations ends, and the error names the holder.
func TestLockEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := Await(t.Context(), "up", func() (string, error) { tries++; return "process 7", nil })
		if err == nil || !strings.Contains(err.Error(), "up: ") || !strings.Contains(err.Error(), "process 7") || tries != 301 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = Await(ctx, "up", func() (string, error) { cancel(); return "process 7", nil })
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "process 7") {
			t.Errorf("cancelled: %v", err)
		}
		tries = 0
		err = Await(t.Context(), "up", func() (string, error) { tries++; return map[bool]string{true: "process 7"}[tries < 3], nil })
		if err != nil || tries != 3 {
			t.Errorf("after %d tries: %v", tries, err)
		}
	})
}
