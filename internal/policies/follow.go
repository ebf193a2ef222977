package policies

import (
	"context"
	"crypto/rand"
	randv2 "math/rand/v2"
	"strings"
	"time"
)

// Follower looks for changes.
type Follower struct {
	// Every is the time between two looks while notifications are not known to arrive, and
	// Net that while they are.
	Every, Net time.Duration
	// Connect opens the connection for notifications; nil: there is none.
	Connect func(ctx context.Context) (Conn, error)
	// Version reads the version through the pool, and Probe sends a notification.
	Version func(ctx context.Context) (int64, error)
	Probe   func(ctx context.Context, payload string) error
	// Look calls version, which is Version or Conn's, and loads what is newer.
	Look func(ctx context.Context, version func(context.Context) (int64, error)) error
	// Failed gets each error.
	Failed func(ctx context.Context, err error)
}

// Conn is a connection that gets notifications.
type Conn interface {
	Listen(ctx context.Context) error
	Version(ctx context.Context) (int64, error)
	// Wait returns the payload of the next notification.
	Wait(ctx context.Context) (payload string, err error)
	IsClosed() bool
	Close(ctx context.Context) error
}

// Bounds of the waits.
const (
	answerIn    = 5 * time.Second        // for the server to answer
	loadIn      = time.Minute            // for it to send all policies and overrides
	firstRetry  = 100 * time.Millisecond // of Connect
	longestWait = 10 * time.Second       // between two Connects
	probeEvery  = time.Minute            // while notifications do not arrive
	lookGap     = 10 * time.Millisecond  // the least time between two looks after notifications, which any role may send
	probePrefix = "probe "               // no schema's name that pglimit would have
)

// Run looks for changes until ctx ends.
//
// Notifications arrive only if the connection's session is that of a server process. A
// pooler in transaction mode accepts LISTEN and delivers nothing. So Run sends a probe from
// another session, and believes in notifications once the probe has arrived.
func (f *Follower) Run(ctx context.Context) {
	c := &channel{Follower: f, backoff: firstRetry}
	defer c.close()
	for ctx.Err() == nil {
		if c.conn == nil && f.Connect != nil && !time.Now().Before(c.next) {
			c.open(ctx)
		}
		pause := f.Every
		if err := c.look(ctx); err == nil && c.arrives {
			pause = f.Net
		} else if err != nil && ctx.Err() == nil {
			f.Failed(ctx, err)
		}
		c.wait(ctx, jitter(pause))
	}
}

// channel is the connection for notifications, while there is one.
type channel struct {
	*Follower
	conn    Conn
	probe   string    // the payload of the last probe
	arrives bool      // notifications do
	next    time.Time // of Connect, or of the next probe
	looked  time.Time // the last time
	backoff time.Duration
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
	conn, err := c.Connect(within)
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

// soon runs f, which waits for one answer of the server.
func soon(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	return f(ctx)
}

// lost gives the connection up. The next one is opened after a jittered, growing wait.
func (c *channel) lost(ctx context.Context, err error) {
	c.close()
	c.next = time.Now().Add(c.backoff/2 + randv2.N(c.backoff))
	c.backoff = min(2*c.backoff, longestWait)
	if ctx.Err() == nil {
		c.Failed(ctx, err)
	}
}

// look probes, if that is due, and looks for changes.
func (c *channel) look(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, loadIn)
	defer cancel()
	defer func() { c.looked = time.Now() }()
	if c.conn != nil && !c.arrives && !time.Now().Before(c.next) {
		c.probe, c.next = probePrefix+rand.Text(), time.Now().Add(probeEvery)
		if err := soon(within, func(ctx context.Context) error { return c.Probe(ctx, c.probe) }); err != nil {
			return err
		}
	}
	read := c.Version
	if c.conn != nil {
		read = c.conn.Version
	}
	err := c.Look(within, func(ctx context.Context) (version int64, err error) {
		err = soon(ctx, func(ctx context.Context) error {
			version, err = read(ctx)
			return err
		})
		return version, err
	})
	if c.conn != nil && c.conn.IsClosed() {
		c.lost(ctx, err)
		return nil
	}
	return err
}

// wait returns after a pause, or earlier if there is something to look at. Notifications
// soon after a look share the next one.
func (c *channel) wait(ctx context.Context, pause time.Duration) {
	within, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if c.conn == nil {
		<-within.Done()
		return
	}
	for shared := false; ; {
		payload, err := c.conn.Wait(within)
		switch {
		case err != nil && c.conn.IsClosed():
			c.lost(ctx, err)
			return
		case err != nil:
			return
		case payload == c.probe:
			c.arrives = true
		case strings.HasPrefix(payload, probePrefix): // of another process
		case time.Since(c.looked) >= lookGap:
			return
		case !shared:
			shared = true
			within, cancel = context.WithTimeout(within, lookGap-time.Since(c.looked))
			defer cancel()
		}
	}
}

// jitter returns a wait near d, so that processes do not look at the same moment.
func jitter(d time.Duration) time.Duration { return d - d/10 + randv2.N(d/5+1) }
