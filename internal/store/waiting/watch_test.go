package waiting

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// bench is a Watch with its lock.
type bench struct {
	sync.Mutex
	*Watch
}

func newBench(timeout time.Duration) *bench {
	b := new(bench)
	b.Watch = NewWatch(NewRoom(1_000, timeout, new(fake)), &b.Mutex)
	return b
}

func (b *bench) begin(t *Ticket) {
	b.Lock()
	defer b.Unlock()
	b.Begin(t)
}

// TestWatchEndsEachInItsTime: each wait ends exactly when its own time is over.
func TestWatchEndsEachInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(time.Second)
		var wg sync.WaitGroup
		for range 500 {
			time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
			wg.Go(func() {
				ticket, start := NewTicket(), time.Now()
				b.begin(ticket)
				if err := ticket.Wait(t.Context()); !errors.Is(err, store.ErrUnavailable) || time.Since(start) != time.Second || !ticket.Gone() {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		}
		wg.Wait()
	})
}

// TestWatchLeavesTheAnswered: a wait that was answered does not end again, and nor does the
// next one of its ticket before its own time.
func TestWatchLeavesTheAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ticket := newBench(time.Second), NewTicket()
		for range 3 {
			b.begin(ticket)
			time.Sleep(900 * time.Millisecond)
			if !ticket.Answer() {
				t.Error("the caller has gone")
			}
			if err := ticket.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}
		b.begin(ticket)
		start := time.Now()
		if err := ticket.Wait(t.Context()); !errors.Is(err, store.ErrUnavailable) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestWatchRests: it has no timer while no caller waits, and remembers no wait that has ended.
func TestWatchRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(time.Second)
		tickets := make([]*Ticket, 10)
		for i := range 10_000 {
			ticket := tickets[i%len(tickets)]
			if ticket == nil {
				ticket = NewTicket()
				tickets[i%len(tickets)] = ticket
			} else if !ticket.Answer() || ticket.Wait(t.Context()) != nil {
				t.Fatal("a wait was lost")
			}
			b.begin(ticket)
		}
		if b.Lock(); len(b.waits.begun) > 2*fewBegun || !b.waits.armed {
			t.Errorf("it remembers %d waits", len(b.waits.begun))
		}
		b.Unlock()
		for _, ticket := range tickets {
			ticket.Answer()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if b.Lock(); len(b.waits.begun) > 0 || b.waits.armed {
			t.Errorf("it remembers %d waits, and looks again: %v", len(b.waits.begun), b.waits.armed)
		}
		b.Unlock()
	})
}

// TestWaitEndsOnce: of an answer, the end of the caller's context and that of its time, one
// ends the wait, and an answer that came first is not lost.
func TestWaitEndsOnce(t *testing.T) {
	b := newBench(time.Minute)
	for range 2_000 {
		ticket := NewTicket()
		b.begin(ticket)
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan bool, 1)
		go func() { answered <- ticket.Answer() }()
		go cancel()
		err := ticket.Wait(ctx)
		if was := <-answered; was != (err == nil) || was == ticket.Gone() || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("answered %v, and the caller got %v", was, err)
		}
	}
}
