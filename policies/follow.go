package policies

import (
	"context"
	"crypto/rand"
	"math"
	randv2 "math/rand/v2"
	"strings"
	"time"
)

// follower looks for changes.
type follower struct {
	// every is the time between two looks while notifications are not known to arrive.
	every time.Duration
	// pool reads through the pool.
	pool backend
	// connect opens the connection for notifications; nil: there is none. Its Wait and its
	// reads call notified with the payload of each notification.
	connect func(ctx context.Context, notified func(payload string)) (conn, error)
	// notify sends a notification through the pool.
	notify func(ctx context.Context, payload string) error
	// load loads from a backend of that version, if the version is not this process's.
	load func(ctx context.Context, s backend, version int64) error
	// failed gets each error.
	failed func(ctx context.Context, err error)
}

// conn is a connection that gets notifications, and reads.
type conn interface {
	backend
	Listen(ctx context.Context) error
	// Wait returns nil after a notification.
	Wait(ctx context.Context) error
	IsClosed() bool
	Close(ctx context.Context) error
}

// Bounds of the waits.
const (
	answerIn    = 5 * time.Second        // for the server to answer
	loadIn      = time.Minute            // for it to send all policies and overrides
	firstRetry  = 100 * time.Millisecond // of connect
	longestWait = 10 * time.Second       // between two connects
	probeEvery  = time.Minute            // while notifications do not arrive
	lookGap     = 10 * time.Millisecond  // the least time between two looks after notifications, which any role may send
	flood       = 20                     // notifications since the last look: the server may send its answer late, after more
	floodGap    = 500 * time.Millisecond // between two looks during a flood, through the pool
	aliveEvery  = 2 * time.Second        // between two looks while notifications arrive: the connection may end in silence
	aliveIn     = 2 * time.Second        // for its server to answer
	probePrefix = "probe "               // no schema's name that pglimit would have
)

// run looks for changes until ctx ends.
//
// Notifications arrive only if the connection's session is that of a server process. A
// pooler in transaction mode accepts LISTEN and delivers nothing. So Run sends a probe from
// another session, and believes in notifications once the probe has arrived.
func (f *follower) run(ctx context.Context) {
	c := &channel{follower: f, backoff: firstRetry}
	defer c.close()
	for ctx.Err() == nil {
		if c.conn == nil && f.connect != nil && !time.Now().Before(c.next) {
			c.open(ctx)
		}
		pause := jitter(f.every)
		if err := c.look(ctx); err == nil && c.arrives {
			pause = jitter(aliveEvery)
		} else if err != nil && ctx.Err() == nil {
			f.failed(ctx, err)
		}
		if c.conn == nil && f.connect != nil {
			pause = min(pause, time.Until(c.next))
		}
		c.wait(ctx, pause)
	}
}

// channel is the connection for notifications, while there is one.
type channel struct {
	*follower
	conn    conn
	probe   string    // the payload of the last probe
	arrives bool      // notifications do
	changed bool      // one has come since the last look began
	count   int       // that have come since then
	next    time.Time // of connect, or of the next probe
	looked  time.Time // the last time
	backoff time.Duration
}

// notified notes a notification. Payloads are not kept: any role may send them.
func (c *channel) notified(payload string) {
	c.count++
	if payload == c.probe {
		c.arrives, c.changed = true, true // so that the next wait is that of a connection where they do
	}
	c.changed = c.changed || c.count > flood || !strings.HasPrefix(payload, probePrefix)
}

func (c *channel) close() {
	if c.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Close(ctx)
	c.conn, c.arrives = nil, false
}

// open connects and listens.
func (c *channel) open(ctx context.Context) {
	within, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	conn, err := c.connect(within, c.notified)
	if err == nil {
		c.conn = conn
		err = conn.Listen(within)
	}
	if err != nil {
		c.lost(ctx, err)
		return
	}
	c.backoff, c.next = firstRetry, time.Time{}
}

// lost gives the connection up. The next one is opened after a jittered, growing wait.
func (c *channel) lost(ctx context.Context, err error) {
	c.close()
	c.next = time.Now().Add(c.backoff/2 + randv2.N(c.backoff))
	c.backoff = min(2*c.backoff, longestWait)
	if ctx.Err() == nil {
		c.failed(ctx, err)
	}
}

// look looks for changes, and probes if that is due.
func (c *channel) look(ctx context.Context) (err error) {
	defer func() { c.looked = time.Now() }()
	flooded := c.count > flood
	c.changed, c.count = false, 0
	if c.conn == nil || flooded {
		return c.read(ctx, c.pool, answerIn)
	}
	if err = c.read(ctx, c.conn, aliveIn); c.conn.IsClosed() {
		c.lost(ctx, err)
		return nil
	}
	if err == nil && !c.arrives && !time.Now().Before(c.next) {
		c.probe, c.next = probePrefix+rand.Text(), time.Now().Add(probeEvery)
		within, cancel := context.WithTimeout(ctx, answerIn)
		defer cancel()
		err = c.notify(within, c.probe)
	}
	return err
}

// read looks at a backend, whose version must arrive in time.
func (c *channel) read(ctx context.Context, s backend, in time.Duration) error {
	soon, cancel := context.WithTimeout(ctx, in)
	defer cancel()
	version, err := s.Version(soon)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, loadIn)
	defer cancel()
	return c.load(within, s, version)
}

// wait returns after a pause, or earlier if there is something to look at. Until then it reads
// all notifications. Those within lookGap of the last look, or floodGap in a flood, make one look.
func (c *channel) wait(ctx context.Context, pause time.Duration) {
	end := time.Now().Add(pause)
	for ctx.Err() == nil {
		until := end
		if c.changed {
			gap := lookGap
			if c.count > flood {
				gap = floodGap
			}
			if shared := c.looked.Add(gap); shared.Before(end) {
				until = shared
			}
		}
		if !time.Now().Before(until) {
			return
		}
		within, cancel := context.WithDeadline(ctx, until)
		var err error
		if c.conn == nil {
			<-within.Done()
		} else {
			err = c.conn.Wait(within)
		}
		ended := within.Err() != nil
		cancel()
		if err != nil && !ended {
			c.lost(ctx, err)
			return
		}
	}
}

// jitter returns a wait near d, so that processes do not look at the same moment.
func jitter(d time.Duration) time.Duration {
	d = min(d, math.MaxInt64/2) // the sum must not overflow
	return d - d/10 + randv2.N(d/5+1)
}
