package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// TestAnswered: which errors count as an answer of the server.
func TestAnswered(t *testing.T) {
	for code, want := range map[string]bool{
		"57P01": false, "57P02": false, "57P03": false, "57P05": false, "53300": false,
		"57014": true, "42P01": true, "40001": true, "53200": true, "42501": true, "25006": true, "26000": true,
	} {
		if err := fmt.Errorf("request: %w", &pgconn.PgError{Code: code}); answered(err) != want {
			t.Errorf("SQLSTATE %s: got %v", code, !want)
		}
	}
	for _, err := range []error{io.ErrUnexpectedEOF, context.DeadlineExceeded, errors.New("closed pool")} {
		if answered(err) {
			t.Errorf("%v counted as an answer", err)
		}
	}
	if !answered(&pgconn.PgError{Code: "57P01", SeverityUnlocalized: "ERROR"}) {
		t.Error("a node of a cluster that shuts down counted as the server")
	}
	if !answered(nil) {
		t.Error("a nil error did not count as an answer")
	}
}

// TestBreakerRefusedLogin: a refused login opens the breaker, which then spares the server
// connections. The error stays the login's, not that of an outage.
func TestBreakerRefusedLogin(t *testing.T) {
	now := int64(0)
	s := &scripted{refuses: fmt.Errorf("connect: %w", &pgconn.PgError{Severity: "FATAL", Code: "58P01"})}
	b := NewBreaker(3, time.Second, func() int64 { return now })
	p := NewPool(s, NewCache(nil)).Guard(b, nil)
	for i := range 10 {
		err := Translate(p.Run(t.Context(), Mode(i%2 == 0), nil), false)
		if !errors.Is(err, store.ErrMisconfigured) || errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
	}
	if err := Translate(b.Refuses(), false); len(s.sent) != 3 || !errors.Is(err, store.ErrMisconfigured) {
		t.Errorf("%d connections; refuses with %v", len(s.sent), err)
	}
}

// try has an outcome noted if the breaker admits a statement.
func (b *Breaker) try(t *testing.T, err error) error {
	t.Helper()
	if refused := b.admit(); refused != nil {
		return refused
	}
	b.note(t.Context(), err)
	return err
}

// TestBreakerWaitsForConnections: a wait for a connection of the pool is no failure of the
// database, and neither is a locked row or a statement that another goroutine continues.
func TestBreakerWaitsForConnections(t *testing.T) {
	b := NewBreaker(1, time.Second, func() int64 { return 0 })
	for _, fails := range []error{&noConnection{context.DeadlineExceeded, true}, &noConnection{context.DeadlineExceeded, false}, store.ErrLocked, store.ErrElsewhere} {
		for range 3 {
			if err := b.try(t, fails); err != fails {
				t.Error(err)
			}
		}
		if err := b.Refuses(); err != nil {
			t.Errorf("%v opened it: %v", fails, err)
		}
	}
	if b.Answers() != 3 { // those of the locked row
		t.Errorf("%d answers", b.Answers())
	}
}

// TestBreakerCounts failures in a row: any answer restarts the count, even an error. A clock
// that was set back does not delay the probe.
func TestBreakerCounts(t *testing.T) {
	now := int64(0)
	b := NewBreaker(2, time.Second, func() int64 { return now })
	for _, answer := range []error{nil, &pgconn.PgError{Code: "42P01"}} {
		_ = b.try(t, io.ErrUnexpectedEOF)
		_ = b.try(t, answer)
	}
	for i := range 2 {
		if err := b.Refuses(); err != nil {
			t.Errorf("after %d failures: %v", i, err)
		}
		_ = b.try(t, io.ErrUnexpectedEOF)
	}
	if b.Refuses() == nil {
		t.Error("after two failures in a row it is not open")
	}
	now = -1
	if err := b.Refuses(); err != nil {
		t.Errorf("by a clock that was set back: %v", err)
	}
}

// TestBreakerOfABusyProcess: a timeout counts, but not of a process that is too busy to read.
func TestBreakerOfABusyProcess(t *testing.T) {
	var mu sync.Mutex
	all := sending.NewDeadlines[*sending.Context](&mu)
	c := new(sending.Context)
	mu.Lock()
	c.Begin(time.Millisecond, &all)
	mu.Unlock()
	<-c.Done()
	b := NewBreaker(10, time.Second, func() int64 { return 0 })
	var busy sync.WaitGroup
	var idle atomic.Bool
	var started atomic.Int64
	working := make(chan struct{})
	for range 20 * runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			if started.Add(1) == int64(2*runtime.GOMAXPROCS(0)) {
				close(working)
			}
			for !idle.Load() {
			}
		})
	}
	<-working
	b.note(c, c.Err())
	idle.Store(true)
	busy.Wait()
	while := b.failures.Load()
	if b.note(c, c.Err()); while != 0 || b.failures.Load() != 1 {
		t.Errorf("%d failures while it is busy, then %d", while, b.failures.Load())
	}
}

// TestBreakerProbes: callers are refused until a probe is due.
func TestBreakerProbes(t *testing.T) {
	now := int64(0)
	b := NewBreaker(1, time.Second, func() int64 { return now })
	_ = b.try(t, io.ErrUnexpectedEOF)
	if b.Refuses() == nil {
		t.Error("it is not open")
	}
	now += time.Second.Microseconds()
	if err := b.Refuses(); err != nil {
		t.Errorf("it refuses its probe: %v", err)
	}
	own := new(sending.Context)
	own.Own()
	if err := NewPool(&scripted{}, NewCache(nil)).Guard(b, nil).Run(own, Statement, nil); err != store.ErrElsewhere {
		t.Errorf("a caller that may leave probes: %v", err)
	}
	if err := b.try(t, nil); err != nil || b.Refuses() != nil {
		t.Errorf("after the probe: %v, %v", err, b.Refuses())
	}
}
