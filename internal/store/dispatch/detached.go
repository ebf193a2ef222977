package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// detached is the context of a statement: no caller can cancel it. It costs less than one of
// the standard library: all of them have one timer, and what waits for the end of one, as pgx
// does, needs no goroutine.
type detached struct {
	ends    time.Time // zero: never
	callers int       // that wait for it; Dispatcher.mu guards it

	mu   sync.Mutex
	done chan struct{} // made when it is asked for
	err  error
	sent bool      // it has a connection
	then []*func() // after the end
}

// detach returns the context of a statement. The sender calls cancel when that has ended.
// d.mu is locked.
func (d *Dispatcher) detach() *detached {
	f := new(detached)
	if d.Timeout > 0 {
		f.ends = time.Now().Add(d.Timeout)
		d.contexts.add(f)
	}
	return f
}

// fly marks a request as sent by the statement. Dispatcher.mu is locked.
func (f *detached) fly(w *waiter) {
	w.state, w.statement = sent, f
	f.callers++
}

func (f *detached) cancel() { f.end(context.Canceled) }

// timed returns the error of a statement, with the timeout if that ended it.
func (d *Dispatcher) timed(f *detached, err error) error {
	if err == nil || err == store.ErrLocked {
		return err
	}
	store.AwaitEnd(f, err)
	if f.Err() != nil {
		err = store.TimedOut(err, d.Timeout)
	}
	return err
}

// Deadline implements context.Context, as the other methods do.
func (f *detached) Deadline() (time.Time, bool) { return f.ends, !f.ends.IsZero() }

func (f *detached) Done() <-chan struct{} {
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

func (f *detached) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *detached) Value(key any) any {
	switch {
	case key == store.FlightKey:
		return f
	case key == store.TimeoutKey && f.Err() == context.DeadlineExceeded:
		return true
	}
	return nil
}

// Sends implements store.Flight, as Sent does.
func (f *detached) Sends() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = f.sent || f.err == nil
	return f.sent
}

func (f *detached) Sent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

// giveUp is called for a caller whose time is over. If it was the last one and the statement
// has no connection yet, it cancels the statement and reports that nothing was or will be sent.
// That is no timeout of the database: a connection may come free before the pool's error is
// looked at.
func (f *detached) giveUp() bool {
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
func (f *detached) AfterFunc(then func()) (stop func() bool) {
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

// end ends the context unless it has ended.
func (f *detached) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finish(err)
}

// finish is end with f.mu locked.
func (f *detached) finish(err error) {
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

func (f *detached) ended() bool { return f.Err() != nil }

func (f *detached) due() time.Time { return f.ends }

func (f *detached) expire() { f.end(context.DeadlineExceeded) }
