package policies

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a Conn and the server behind it.
type fake struct {
	notifications chan string
	gone          chan struct{} // closed: the connection is
	closed        atomic.Bool
}

func newFake() *fake {
	return &fake{notifications: make(chan string, 10), gone: make(chan struct{})}
}

func (f *fake) Listen(context.Context) error           { return nil }
func (f *fake) Version(context.Context) (int64, error) { return 1, nil }
func (f *fake) IsClosed() bool                         { return f.closed.Load() }

func (f *fake) Close(context.Context) error {
	f.closed.Store(true)
	return nil
}

func (f *fake) Wait(ctx context.Context) (string, error) {
	select {
	case n := <-f.notifications:
		return n, nil
	case <-f.gone:
		f.closed.Store(true)
		return "", errors.New("connection lost")
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// followed runs a Follower in a bubble and counts.
type followed struct {
	*Follower
	looks, probes, connects, failures count
	refuse                            atomic.Bool // connections
	broken                            atomic.Bool // looks fail
	conn                              atomic.Pointer[fake]
	deliver                           atomic.Bool // probes
}

// count is a number of calls.
type count struct{ calls atomic.Int64 }

func (c *count) add()     { c.calls.Add(1) }
func (c *count) get() int { return int(c.calls.Load()) }

func follow(t *testing.T, f *followed) (stop func()) {
	t.Helper()
	f.Follower = &Follower{
		Every: time.Second, Net: time.Minute,
		Version: func(context.Context) (int64, error) { return 1, nil },
		Connect: func(context.Context) (Conn, error) {
			if f.connects.add(); f.refuse.Load() {
				return nil, errors.New("refused")
			}
			conn := newFake()
			f.conn.Store(conn)
			return conn, nil
		},
		Probe: func(_ context.Context, payload string) error {
			if f.probes.add(); f.deliver.Load() {
				f.conn.Load().notifications <- payload
			}
			return nil
		},
		Look: func(context.Context, func(context.Context) (int64, error)) error {
			if f.looks.add(); f.broken.Load() {
				return errors.New("broken")
			}
			return nil
		},
		Failed: func(context.Context, error) { f.failures.add() },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.Run(ctx) }()
	return func() { cancel(); <-ended }
}

// between expects a count within bounds, as waits have jitter.
func between(t *testing.T, what string, n, least, most int) {
	t.Helper()
	if n < least || n > most {
		t.Errorf("%d %s, want %d to %d", n, what, least, most)
	}
}

func TestFollowListens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{}
		f.deliver.Store(true)
		stop := follow(t, f)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes", f.looks.get(), 9, 14)
		if f.probes.get() != 1 || f.connects.get() != 1 || f.failures.get() != 0 {
			t.Errorf("%+v", f)
		}
		looks := f.looks.get()
		f.conn.Load().notifications <- probePrefix + "of another"
		synctest.Wait()
		if f.looks.get() != looks {
			t.Error("it looked after the probe of another process")
		}
		f.conn.Load().notifications <- "public"
		synctest.Wait()
		if f.looks.get() != looks+1 {
			t.Error("it did not look after a notification")
		}
		stop()
		if !f.conn.Load().IsClosed() {
			t.Error("the connection is open after the end")
		}
	})
}

// TestFollowFlood: notifications in quick succession share looks, and a look follows the
// last one.
func TestFollowFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{}
		f.deliver.Store(true)
		stop := follow(t, f)
		time.Sleep(5 * time.Second)
		before, last := f.looks.get(), 0
		for range 1000 {
			time.Sleep(time.Millisecond)
			last = f.looks.get()
			f.conn.Load().notifications <- "public"
		}
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		between(t, "looks after 1,000 notifications in a second", f.looks.get()-before, 50, 110)
		if f.looks.get() == last {
			t.Error("it did not look after the last notification")
		}
		stop()
	})
}

// TestFollowPolls: where probes do not arrive, it polls and probes again once a minute.
func TestFollowPolls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{}
		stop := follow(t, f)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes", f.looks.get(), 540, 670)
		between(t, "probes in ten minutes", f.probes.get(), 10, 11)
		f.deliver.Store(true)
		time.Sleep(time.Minute + 2*time.Second)
		looks := f.looks.get()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks once a probe has arrived", f.looks.get()-looks, 9, 12)
		stop()
	})
}

// TestFollowReconnects: it polls while it has no connection, and listens again once it has.
func TestFollowReconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{}
		f.deliver.Store(true)
		stop := follow(t, f)
		synctest.Wait()
		f.refuse.Store(true)
		close(f.conn.Load().gone)
		time.Sleep(time.Minute)
		synctest.Wait()
		between(t, "looks in a minute without a connection", f.looks.get(), 50, 70)
		between(t, "connections tried", f.connects.get(), 5, 20)
		between(t, "failures", f.failures.get(), f.connects.get()-1, f.connects.get())
		f.refuse.Store(false)
		time.Sleep(2 * longestWait)
		looks := f.looks.get()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes with a connection", f.looks.get()-looks, 9, 12)
		if f.probes.get() != 2 {
			t.Errorf("%d probes", f.probes.get())
		}
		stop()
	})
}

// TestFollowRetries: after a failed look the next one comes soon, also where notifications
// arrive.
func TestFollowRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{}
		f.deliver.Store(true)
		stop := follow(t, f)
		time.Sleep(10 * time.Second)
		f.broken.Store(true)
		f.conn.Load().notifications <- "public"
		time.Sleep(10 * time.Second)
		f.broken.Store(false)
		time.Sleep(2 * time.Second)
		looks := f.looks.get()
		between(t, "failures", f.failures.get(), 9, 12)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes after that", f.looks.get()-looks, 9, 12)
		if f.connects.get() != 1 {
			t.Errorf("%d connections", f.connects.get())
		}
		stop()
	})
}
