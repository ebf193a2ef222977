package limiter

import (
	"context"
	"errors"
	"testing"
	"time"
)

// closing is a context that closes a limiter when a Wait has begun.
type closing struct {
	context.Context
	limiter *Limiter
}

func (c closing) Done() <-chan struct{} {
	_ = c.limiter.Close()
	return c.Context.Done()
}

// TestCloseDuringWait: a Wait that a Close has not seen is refused, and FailOpen is
// for a database that does not answer.
func TestCloseDuringWait(t *testing.T) {
	t.Parallel()
	p := Policy{Name: "queue", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Second, OnError: FailOpen}
	for name, wait := range map[string]func(context.Context, *Limiter) (bool, error){
		"DoWait": func(ctx context.Context, l *Limiter) (bool, error) {
			r, err := l.DoWait(ctx, p.Ask("k", 1))
			return r.Allowed, err
		},
		"WaitAll": func(ctx context.Context, l *Limiter) (bool, error) {
			r, err := l.WaitAll(ctx, p.Ask("k", 1))
			return r.Allowed, err
		},
	} {
		l := NewMemory(nil)
		if allowed, err := wait(closing{t.Context(), l}, l); allowed || !errors.Is(err, ErrClosed) {
			t.Errorf("%s: got %v, %v", name, allowed, err)
		}
	}
}
