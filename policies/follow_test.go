package policies

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a conn and the server behind it.
type fake struct {
	backend       // nil
	notifications chan string
	notified      func(string)
	gone          chan struct{} // closed: the connection is
	silent        atomic.Bool   // the server does not answer
	closed        atomic.Bool
}

func (f *fake) Listen(context.Context) error { return nil }
func (f *fake) IsClosed() bool               { return f.closed.Load() }

func (f *fake) Version(ctx context.Context) (int64, error) {
	if f.silent.Load() {
		<-ctx.Done()
		f.closed.Store(true)
	}
	return 1, ctx.Err()
}

func (f *fake) Close(context.Context) error {
	f.closed.Store(true)
	return nil
}

func (f *fake) Wait(ctx context.Context) error {
	select {
	case n := <-f.notifications:
		f.notified(n)
		return nil
	case <-f.gone:
		f.closed.Store(true)
		return errors.New("connection lost")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// polled is the backend through the pool.
type polled struct{ backend }

func (polled) Version(context.Context) (int64, error) { return 1, nil }

// followed runs a follower in a bubble and counts.
type followed struct {
	*follower
	looks, probes, connects, failures count
	polls                             count       // looks through the pool
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
	f.follower = &follower{
		every: time.Second, pool: polled{},
		connect: func(_ context.Context, notified func(string)) (conn, error) {
			if f.connects.add(); f.refuse.Load() {
				return nil, errors.New("refused")
			}
			conn := &fake{notifications: make(chan string, 10), gone: make(chan struct{}), notified: notified}
			f.conn.Store(conn)
			return conn, nil
		},
		notify: func(_ context.Context, payload string) error {
			if f.probes.add(); f.deliver.Load() {
				f.conn.Load().notifications <- payload
			}
			return nil
		},
		load: func(_ context.Context, s backend, _ int64) error {
			if s == f.pool {
				f.polls.add()
			}
			if f.looks.add(); f.broken.Load() {
				return errors.New("broken")
			}
			return nil
		},
		failed: func(context.Context, error) { f.failures.add() },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); f.run(ctx) }()
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
		between(t, "looks in ten minutes", f.looks.get(), 270, 335)
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
// last one. If there are very many, looks are few and through the pool.
func TestFollowFlood(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		payload                                   string
		burst, least, most, leastPolls, mostPolls int // burst is sent each millisecond
	}{
		"quick":  {"public", 1, 50, 110, 0, 0},
		"flood":  {"public", 10, 1, 4, 1, 4},
		"probes": {probePrefix + "of another", 10, 1, 4, 1, 4},
	} {
		t.Run(name, func(t *testing.T) {
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
					for range c.burst {
						f.conn.Load().notifications <- c.payload
					}
				}
				between(t, "looks in a second", f.looks.get()-before, c.least, c.most)
				time.Sleep(floodGap)
				synctest.Wait()
				if f.looks.get() == last {
					t.Error("it did not look after the last notification")
				}
				between(t, "looks through the pool", f.polls.get(), c.leastPolls, c.mostPolls)
				stop()
			})
		})
	}
}

// TestFollowSilence: a connection that died in silence is replaced, and looked at, within 5
// seconds.
func TestFollowSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &followed{}
		f.deliver.Store(true)
		stop := follow(t, f)
		time.Sleep(time.Minute)
		synctest.Wait()
		looks := f.looks.get()
		f.conn.Load().silent.Store(true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if f.connects.get() != 2 || f.looks.get() == looks || f.failures.get() != 1 {
			t.Errorf("%d connections, %d looks, %d failures", f.connects.get(), f.looks.get()-looks, f.failures.get())
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
		between(t, "looks once a probe has arrived", f.looks.get()-looks, 270, 335)
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
		between(t, "looks in a minute without a connection", f.looks.get(), 50, 80)
		between(t, "connections tried", f.connects.get(), 5, 20)
		between(t, "failures", f.failures.get(), f.connects.get()-1, f.connects.get())
		f.refuse.Store(false)
		time.Sleep(2 * longestWait)
		looks := f.looks.get()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		between(t, "looks in ten minutes with a connection", f.looks.get()-looks, 270, 335)
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
		between(t, "looks in ten minutes after that", f.looks.get()-looks, 270, 335)
		if f.connects.get() != 1 {
			t.Errorf("%d connections", f.connects.get())
		}
		stop()
	})
}

// TestJitter: a wait is within a tenth of what was set, and never negative: that would not
// wait at all.
func TestJitter(t *testing.T) {
	for _, d := range []time.Duration{0, 1, time.Minute, 1<<63 - 1} {
		for range 100 {
			if got, least := jitter(d), min(d, 1<<62)-d/10; got < least-1 || got > d+d/10 && d < 1<<62 {
				t.Fatalf("%v of %v", got, d)
			}
		}
	}
}
