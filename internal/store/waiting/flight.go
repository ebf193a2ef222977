package waiting

import (
	"context"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// flight is the context of a statement: no caller can cancel it. It costs less than one of
// the standard library: all flights of a room have one timer, and what waits for the end of
// one, as pgx does, needs no goroutine.
type flight struct {
	ends    time.Time // zero: never
	callers int       // that wait for it; their owner guards it

	mu   sync.Mutex
	done chan struct{} // made when it is asked for
	err  error
	sent bool      // it has a connection
	then []*func() // after the end
}

// Detached returns a context for a statement, which no caller can cancel. The statement's
// sender calls cancel when it has ended.
func (r *Room) Detached() (ctx context.Context, cancel context.CancelFunc) {
	f := new(flight)
	if r.timeout > 0 {
		f.ends = time.Now().Add(r.timeout)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.flights.add(f)
	}
	return f, func() { f.end(context.Canceled) }
}

// Late returns the error of a statement whose context is ctx, with the timeout if that
// ended it.
func (r *Room) Late(ctx context.Context, err error) error {
	if err == nil || err == store.ErrLocked {
		return err
	}
	store.AwaitEnd(ctx, err)
	if ctx.Err() != nil {
		err = store.TimedOut(err, r.timeout)
	}
	return err
}

// Deadline implements context.Context, as the other methods do.
func (f *flight) Deadline() (time.Time, bool) { return f.ends, !f.ends.IsZero() }

func (f *flight) Done() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.err != nil {
			close(f.done)
		}
	}
	return f.done
}

func (f *flight) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *flight) Value(key any) any {
	switch {
	case key == store.FlightKey:
		return f
	case key == store.TimeoutKey && f.Err() == context.DeadlineExceeded:
		return true
	}
	return nil
}

// Sends implements store.Flight, as Sent does.
func (f *flight) Sends() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = f.sent || f.err == nil
	return f.sent
}

func (f *flight) Sent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

// giveUp is called for a caller whose time is over. If it was the last one and the flight
// has no connection yet, it cancels the flight and reports that nothing was or will be sent.
// That is no timeout of the database: a connection may come free before the pool's error is
// looked at.
func (f *flight) giveUp() bool {
	f.callers--
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sent || f.err == nil && f.callers > 0 {
		return false
	}
	f.finish(context.Canceled)
	return true
}

// AfterFunc makes context.AfterFunc and derived contexts work without a goroutine.
func (f *flight) AfterFunc(then func()) (stop func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		go then()
		return func() bool { return false }
	}
	f.then = append(f.then, &then)
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i, t := range f.then {
			if t == &then {
				f.then = append(f.then[:i], f.then[i+1:]...)
				return true
			}
		}
		return false
	}
}

// end ends the flight unless it has ended.
func (f *flight) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finish(err)
}

// finish is end with f.mu locked.
func (f *flight) finish(err error) {
	if f.err != nil {
		return
	}
	f.err = err
	if f.done != nil {
		close(f.done)
	}
	for _, then := range f.then {
		go (*then)()
	}
	f.then = nil
}

func (f *flight) ended() bool { return f.Err() != nil }

func (f *flight) due() time.Time { return f.ends }

func (f *flight) expire() { f.end(context.DeadlineExceeded) }
