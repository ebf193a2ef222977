package limiter

import (
	"context"
	"errors"
	"testing"
	"time"
)

// tardy is a context whose deadline is over before it has ended, which it does when
// somebody waits for that.
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

// TestDeadlineThatTheConnectionMeetsFirst is the caller's all the same: no failure
// of the database, which a policy could fail open for.
func TestDeadlineThatTheConnectionMeetsFirst(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	config := Config{Timeout: -1}
	_, err := config.bounded(tardy{ctx, time.Now(), end}, func(context.Context) (outcome, error) {
		return outcome{}, translate(errors.New("i/o timeout"), false)
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
