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
	looks, probes, connects, failures int
	refuse                            bool // connections
	broken                            bool // looks fail
	conn                              *fake
	deliver                           bool // probes
}

func follow(t *testing.T, f *followed) (stop func()) {
	t.Helper()
	f.Follower = &Follower{
		Every: time.Second, Net: time.Minute,
		Version: func(context.Context) (int64, error) { return 1, nil },
		Connect: func(context.Context) (Conn, error) {
			if f.connects++; f.refuse {
				return nil, errors.New("refused")
			}
			f.conn = newFake()
			return f.conn, nil
		},
		Probe: func(_ context.Context, payload string) error {
			if f.probes++; f.deliver {
				f.conn.notifications <- payload
			}
			return nil
		},
		Look: func(context.Context, func(context.Context) (int64, error)) error {
			if f.looks++; f.broken {
				return errors.New("broken")
			}
			return nil
		},
		Failed: func(context.Context, error) { f.failures++ },
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
		f := &followed{deliver: true}
		stop := follow(t, f)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes", f.looks, 9, 14)
		if f.probes != 1 || f.connects != 1 || f.failures != 0 {
			t.Errorf("%+v", f)
		}
		looks := f.looks
		f.conn.notifications <- probePrefix + "of another"
		synctest.Wait()
		if f.looks != looks {
			t.Error("it looked after the probe of another process")
		}
		f.conn.notifications <- "public"
		synctest.Wait()
		if f.looks != looks+1 {
			t.Error("it did not look after a notification")
		}
		stop()
		if !f.conn.IsClosed() {
			t.Error("the connection is open after the end")
		}
	})
}

// TestFollowFlood: notifications in quick succession share looks, and a look follows the
// last one.
func TestFollowFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{deliver: true}
		stop := follow(t, f)
		time.Sleep(5 * time.Second)
		before, last := f.looks, 0
		for range 1000 {
			time.Sleep(time.Millisecond)
			last = f.looks
			f.conn.notifications <- "public"
		}
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		between(t, "looks after 1,000 notifications in a second", f.looks-before, 50, 110)
		if f.looks == last {
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
		between(t, "looks in ten minutes", f.looks, 540, 670)
		between(t, "probes in ten minutes", f.probes, 10, 11)
		f.deliver = true
		time.Sleep(time.Minute + 2*time.Second)
		looks := f.looks
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks once a probe has arrived", f.looks-looks, 9, 12)
		stop()
	})
}

// TestFollowReconnects: it polls while it has no connection, and listens again once it has.
func TestFollowReconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{deliver: true}
		stop := follow(t, f)
		synctest.Wait()
		f.refuse = true
		close(f.conn.gone)
		time.Sleep(time.Minute)
		synctest.Wait()
		between(t, "looks in a minute without a connection", f.looks, 50, 70)
		between(t, "connections tried", f.connects, 5, 20)
		between(t, "failures", f.failures, f.connects-1, f.connects)
		f.refuse = false
		time.Sleep(2 * longestWait)
		looks := f.looks
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes with a connection", f.looks-looks, 9, 12)
		if f.probes != 2 {
			t.Errorf("%d probes", f.probes)
		}
		stop()
	})
}

// TestFollowRetries: after a failed look the next one comes soon, also where notifications
// arrive.
func TestFollowRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{deliver: true}
		stop := follow(t, f)
		time.Sleep(10 * time.Second)
		f.broken = true
		f.conn.notifications <- "public"
		time.Sleep(10 * time.Second)
		f.broken = false
		time.Sleep(2 * time.Second)
		looks := f.looks
		between(t, "failures", f.failures, 9, 12)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes after that", f.looks-looks, 9, 12)
		if f.connects != 1 {
			t.Errorf("%d connections", f.connects)
		}
		stop()
	})
}
