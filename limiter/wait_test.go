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

// TestCloseDuringWait: a Wait that Close did not wait for returns ErrClosed, and FailOpen
// does not apply.
func TestCloseDuringWait(t *testing.T) {
	t.Parallel()
	p := Policy{Name: "queue", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Second, OnError: FailOpen}
	for name, wait := range map[string]func(context.Context, *Limiter) (bool, error){
		"DoWait": func(ctx context.Context, l *Limiter) (bool, error) {
			r, err := l.DoWait(ctx, p.Request("k", 1))
			return r.Allowed, err
		},
		"WaitAll": func(ctx context.Context, l *Limiter) (bool, error) {
			r, err := l.WaitAll(ctx, p.Request("k", 1))
			return r.Allowed, err
		},
	} {
		l := NewMemory(nil)
		if allowed, err := wait(closing{t.Context(), l}, l); allowed || !errors.Is(err, ErrClosed) {
			t.Errorf("%s: got %v, %v", name, allowed, err)
		}
	}
}

// TestWaitAllCancelledLater: a cancelled WaitAll gives back by the clock of the
// decisions, without the units that have leaked since.
func TestWaitAllCancelledLater(t *testing.T) {
	t.Parallel()
	queue := Policy{Name: "queue", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 5}
	bucket := Policy{Name: "bucket", Algorithm: TokenBucket, Limit: 10, Period: time.Hour}
	now, advance := manualClock()
	answered := make(chan struct{}, 10)
	l := NewMemory(&Config{Now: now, Observe: func(context.Context, Request, Result, error) { answered <- struct{}{} }})
	allow := func(request Request) {
		t.Helper()
		if r, err := l.Do(t.Context(), request); err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
		<-answered
	}
	allow(queue.Request("k", 1))
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := l.WaitAll(ctx, bucket.Request("k", 10), queue.Request("k", 1)); gone <- err }()
	<-answered
	<-answered
	advance(30 * time.Minute)
	allow(bucket.Request("k", 5))
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if r, err := l.Check(t.Context(), bucket, "k", 0); err != nil || r.Level < 4.999 || r.Level > 5.001 {
		t.Errorf("the level is %v, want the 5 of the later request: %v", r.Level, err)
	}
}
