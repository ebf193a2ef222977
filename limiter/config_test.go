package limiter

import (
	"context"
	"errors"
	"testing"
	"time"
)

// tardy is a context whose deadline is over before it has ended.
type tardy struct {
	context.Context
	deadline time.Time
}

func (t tardy) Deadline() (time.Time, bool) { return t.deadline, true }

// TestDeadlineThatTheConnectionMeetsFirst is the caller's all the same: no failure
// of the database, which a policy could fail open for.
func TestDeadlineThatTheConnectionMeetsFirst(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	config := Config{Timeout: -1}
	_, err := config.bounded(tardy{ctx, time.Now()}, func(context.Context) (outcome, error) {
		time.AfterFunc(10*time.Millisecond, end)
		return outcome{}, translate(errors.New("i/o timeout"), false)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
