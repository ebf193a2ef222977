package limiter

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestWaitAllCancelledLater: a cancelled WaitAll gives back by the clock of the
// decisions, without the units that have leaked since.
func TestWaitAllCancelledLater(t *testing.T) {
	t.Parallel()
	queue := Policy{Name: "queue", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 5}
	bucket := Policy{Name: "bucket", Algorithm: TokenBucket, Limit: 10, Period: time.Hour}
	now, advance := manualClock()
	answered := make(chan struct{}, 10)
	l := NewMemory(&Config{Now: now, Observe: func(context.Context, Observation) { answered <- struct{}{} }})
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
