package waiting

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// fake is a database.
type fake struct {
	answers int64
	crowded bool
	refusal error
}

func (f *fake) Answers() int64 { return f.answers }
func (f *fake) Crowded() bool  { return f.crowded }
func (f *fake) Refuses() error { return f.refusal }

// TestRoomTellsWhyItIsLate: only a database that answered nobody is away.
func TestRoomTellsWhyItIsLate(t *testing.T) {
	for _, c := range []struct {
		name    string
		state   State
		answers int64 // while the request waits
		crowded bool
		want    error
		away    bool
	}{
		{"not sent, others were answered", Queued, 1, false, store.ErrOverloaded, false},
		{"not sent, nobody was answered", Queued, 0, false, store.ErrUnavailable, true},
		{"in flight, others were answered", Sent, 1, false, store.ErrAnswering, false},
		{"in flight, nobody was answered", Sent, 0, false, store.ErrUnavailable, true},
		{"all connections are in use by others, and it may still be sent", Sent, 0, true, store.ErrCrowded, false},
		{"behind those, not sent", Queued, 0, true, store.ErrBusy, false},
		{"the row is locked", Locked, 1, false, store.ErrLocked, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{answers: 7, crowded: c.crowded}
			r := NewRoom(10, time.Second, f)
			ticket, start, mu := NewTicket(), time.Now(), new(sync.Mutex)
			mu.Lock()
			NewWatch(r, mu).Begin(ticket)
			ticket.State = c.state
			f.answers += c.answers
			mu.Unlock()
			err := ticket.Wait(t.Context())
			away := errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrLocked) && !errors.Is(err, store.ErrAnswering) && !errors.Is(err, store.ErrCrowded)
			if !errors.Is(err, c.want) || away != c.away || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %v", c.name, err, time.Since(start))
			}
		})
	}
}

// TestRoomIsBusy: ErrBusy says that nothing was sent. So the statement of the last caller
// who gets it is never sent, and who shares a statement with a caller that waits on does not
// get it.
func TestRoomIsBusy(t *testing.T) {
	const callers = 2
	for _, c := range []struct {
		name string
		sent bool
		want [callers]error
	}{
		{"no connection came", false, [...]error{store.ErrCrowded, store.ErrBusy}},
		{"one came", true, [...]error{store.ErrCrowded, store.ErrCrowded}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, mu := &fake{crowded: true}, new(sync.Mutex)
			r := NewRoom(10, time.Second, f)
			watch, tickets := NewWatch(r, mu), [callers]*Ticket{NewTicket(), NewTicket()}
			for _, ticket := range tickets {
				mu.Lock()
				watch.Begin(ticket)
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
			ctx, cancel := r.Detached()
			defer cancel()
			mu.Lock()
			for _, ticket := range tickets {
				ticket.Fly(ctx)
			}
			mu.Unlock()
			if c.sent && (!store.Sends(ctx) || store.NotSent(ctx)) {
				t.Errorf("%s: it was not sent", c.name)
			}
			for i, ticket := range tickets {
				if err := ticket.Wait(t.Context()); !errors.Is(err, c.want[i]) {
					t.Errorf("%s: caller %d: %v", c.name, i, err)
				}
			}
			if store.Sends(ctx) != c.sent || store.NotSent(ctx) == c.sent {
				t.Errorf("%s: sends %v, not sent %v, %v", c.name, store.Sends(ctx), store.NotSent(ctx), ctx.Err())
			}
		})
	}
}

// TestRoomBounds: so many callers wait, and a quarter of them for one key; 64 in any case.
func TestRoomBounds(t *testing.T) {
	for _, c := range []struct{ most, share int }{{1, 1}, {64, 64}, {100, 64}, {16_384, 4096}} {
		r := NewRoom(c.most, 0, new(fake))
		for i := range c.most {
			if err := r.Enter(0); err != nil {
				t.Fatalf("caller %d of %d: %v", i, c.most, err)
			}
		}
		if err := r.Enter(0); !errors.Is(err, store.ErrOverloaded) || r.Callers() != c.most {
			t.Errorf("one too many of %d: %v", c.most, err)
		}
		r.Exit()
		if err := r.Enter(c.share); !errors.Is(err, store.ErrOverloaded) {
			t.Errorf("past the share of %d: %v", c.share, err)
		}
		if err := r.Enter(c.share - 1); err != nil {
			t.Errorf("within the share of %d: %v", c.share, err)
		}
	}
	refusal := errors.New("the breaker is open")
	if err := NewRoom(10, 0, &fake{refusal: refusal}).Enter(0); err != refusal {
		t.Error(err)
	}
}
