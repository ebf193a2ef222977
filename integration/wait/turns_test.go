package wait

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestWaitTakesAnAbandonedTurn: the database reports that a place could not go back,
// because another has queued behind it. A later Wait of the same Limiter gets its turn.
func TestWaitTakesAnAbandonedTurn(t *testing.T) {
	t.Parallel()
	answers := make(chan limiter.Result, 1)
	config := limiter.Config{Observe: func(_ context.Context, o limiter.Observation) { answers <- o.Result }}
	l := testworld.NewLimiter(t, testworld.NewPool(t), &config)
	wait := func() (r limiter.Result, leave func()) {
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- l.Wait(ctx, lane, "k", 2) }()
		r = <-answers
		return r, func() {
			t.Helper()
			cancel()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
	}
	allow := func() {
		t.Helper()
		if r, err := l.Allow(t.Context(), lane, "k"); err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
		<-answers
	}
	allow()
	if r, leave := wait(); !r.Allowed || r.Delay < 999*time.Hour {
		t.Fatalf("%+v", r)
	} else {
		allow() // behind it: the queue is full
		leave()
	}
	for range 2 { // the turn is abandoned again, and taken again
		r, leave := wait()
		if !r.Allowed || r.Granted != 2 || r.Delay < 999*time.Hour || r.Delay > 1000*time.Hour || !testworld.Near(r.Level, 4) {
			t.Fatalf("got %+v, want the abandoned turn", r)
		}
		var denied *limiter.DeniedError
		if err := l.Wait(t.Context(), lane, "k", 2); !errors.As(err, &denied) {
			t.Errorf("the turn is taken twice: %v", err)
		}
		<-answers
		leave()
	}
	// A place that nobody has queued behind goes back, and is no turn to take besides.
	must.Succeed(t, l.Reset(t.Context(), lane, "k"))
	<-answers
	allow()
	_, leave := wait()
	leave()
	allow()
	if r, err := l.AllowN(t.Context(), lane, "k", 2); err != nil || !r.Allowed {
		t.Fatalf("%+v, %v", r, err)
	}
	<-answers
	var denied *limiter.DeniedError
	if err := l.Wait(t.Context(), lane, "k", 2); !errors.As(err, &denied) {
		t.Errorf("a place that went back was taken besides: %v", err)
	}
	<-answers
}
