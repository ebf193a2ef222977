package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// tardy is a context that ends after its deadline, when something waits for its end.
type tardy struct {
	context.Context
	deadline time.Time
	end      context.CancelFunc
}

func (t tardy) Deadline() (time.Time, bool) { return t.deadline, true }

func (t tardy) Done() <-chan struct{} {
	t.end()
	return t.Context.Done()
}

// TestBoundByTheCaller: if the connection meets the caller's deadline first, the error is
// still the caller's, not one for which a policy could fail open.
func TestBoundByTheCaller(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	late := fmt.Errorf("%w: i/o timeout", ErrUnavailable)
	err := Bound(Refuse(late), -1).Do(tardy{ctx, time.Now(), end}, new(Op))
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// TestBoundTimeout: the timeout's error names it and is not the caller's error.
func TestBoundTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := Since(t.Context(), start, 3*time.Second, func(ctx context.Context) error {
			<-ctx.Done()
			if context.Cause(ctx) != ErrTimeout {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		})
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "Config.Timeout is 3s") || time.Since(start) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// TestBoundSendsNothingLate: a method whose context has ended is not called.
func TestBoundSendsNothingLate(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := Bound(nil, time.Second) // would panic
	if err := s.Do(ctx, new(Op)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
