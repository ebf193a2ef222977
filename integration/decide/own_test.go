package decide

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// gate is a network to the server. It records which goroutine sends, and can stop an answer
// after some of its bytes.
type gate struct {
	mu      sync.Mutex
	open    sync.Cond
	passes  int           // bytes of the answer; negative: all
	stopped chan struct{} // closed when an answer has stopped
	frames  []string      // of the last write, from the network up
}

func newGate() *gate {
	g := &gate{passes: -1}
	g.open.L = &g.mu
	return g
}

func (g *gate) guard(config *pgxpool.Config) {
	config.MaxConns = 1
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		server, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		client, inner := net.Pipe()
		go func() { _, _ = io.Copy(server, inner); _ = server.Close() }()
		go func() { _, _ = io.Copy(gated{inner, g}, server); _ = inner.Close() }()
		return recorded{client, g}, nil
	}
}

// stopAfter stops the next answer after the number of bytes. The channel is closed when it has
// stopped.
func (g *gate) stopAfter(bytes int) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passes, g.stopped = bytes, make(chan struct{})
	return g.stopped
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passes = -1
	g.open.Broadcast()
}

// gated is the end of the network that the server's answers are written to.
type gated struct {
	net.Conn
	g *gate
}

func (c gated) Write(p []byte) (n int, err error) {
	g := c.g
	for n < len(p) && err == nil {
		g.mu.Lock()
		for g.passes == 0 {
			if g.stopped != nil {
				close(g.stopped)
				g.stopped = nil
			}
			g.open.Wait()
		}
		part := p[n:]
		if g.passes > 0 {
			part = part[:min(len(part), g.passes)]
			g.passes -= len(part)
		}
		g.mu.Unlock()
		var m int
		m, err = c.Conn.Write(part)
		n += m
	}
	return n, err
}

// recorded is the limiter's end.
type recorded struct {
	net.Conn
	g *gate
}

func (c recorded) Write(p []byte) (int, error) {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var names []string
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		names = append(names, f.Function)
	}
	c.g.mu.Lock()
	c.g.frames = names
	c.g.mu.Unlock()
	return c.Conn.Write(p)
}

var lone = limiter.Policy{Name: "lone", Algorithm: limiter.FixedWindow, Limit: 1000, Period: 24 * time.Hour}

// TestOwnGoroutine: a lone caller sends its statement on its own goroutine, also if it has a
// deadline, and there are few frames between its call and pgx.
func TestOwnGoroutine(t *testing.T) {
	t.Parallel()
	const most = 12
	g := newGate()
	l := testworld.NewLimiter(t, testworld.Connect(t, testworld.NewDatabase(t), g.guard), nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 2 { // the first prepares the statement, which a caller does not wait for
		must.OK(l.Allow(ctx, lone, "key"))(t)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	end := slices.IndexFunc(g.frames, func(f string) bool { return strings.HasSuffix(f, ".TestOwnGoroutine") })
	if end < 0 {
		t.Fatalf("sent by another goroutine: %s", strings.Join(g.frames, "\n"))
	}
	g.few(t, end, most)
}

// few wants few frames between pgx and the frame at end, which is not counted.
func (g *gate) few(t *testing.T, end, most int) {
	t.Helper()
	begin := end
	for begin > 0 && !strings.Contains(g.frames[begin-1], "jackc/pgx") {
		begin--
	}
	between := slices.Clone(g.frames[begin:end])
	slices.Reverse(between)
	t.Logf("%d frames:\n%s", len(between), strings.Join(between, "\n"))
	if len(between) > most {
		t.Errorf("%d frames, want at most %d", len(between), most)
	}
}

// TestReserveFrames: there are few frames between the turn of a Reserve and pgx, besides the four in
// which its caller waits.
func TestReserveFrames(t *testing.T) {
	t.Parallel()
	const most = 10
	g := newGate()
	l := testworld.NewLimiter(t, testworld.Connect(t, testworld.NewDatabase(t), g.guard), nil)
	for range 2 {
		must.OK(l.Reserve(t.Context(), limiter.Request{Policy: lone, Key: "key", Cost: 1}, time.Minute))(t)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.few(t, slices.IndexFunc(g.frames, func(f string) bool { return strings.HasPrefix(f, "runtime.goexit") }), most)
}

// TestOwnGoroutineLeaves: a caller that leaves returns at once, wherever its statement is.
// The statement ends without it, counts once, and keeps its connection.
func TestOwnGoroutineLeaves(t *testing.T) {
	t.Parallel()
	g := newGate()
	pool := testworld.Connect(t, testworld.NewDatabase(t), g.guard)
	l := testworld.NewLimiter(t, pool, nil)
	allow := func(ctx context.Context) error { _, err := l.Allow(ctx, lone, "key"); return err }
	for range 2 {
		must.Succeed(t, allow(t.Context()))
	}
	spent := func() float64 { return must.OK(l.Usage(t.Context(), lone, "key"))(t).Spent }
	want, connections := spent(), pool.Stat().NewConnsCount()

	held := must.OK(pool.Acquire(t.Context()))(t)
	testworld.Eventually(t, "a caller leaves while it waits for a connection", func(context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := allow(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before it was sent: %v", err)
		}
		return pool.Stat().CanceledAcquireCount() > 0, nil
	})
	held.Release()
	if got := spent(); got != want {
		t.Errorf("%v counted before it was sent, want %v", got, want)
	}

	left := 0
	for ; ; left++ { // after each byte of the answer, of which the last say that it is committed
		stopped := g.stopAfter(left)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			select {
			case <-stopped:
				cancel()
			case <-ctx.Done():
			}
		}()
		err := allow(ctx)
		all := ctx.Err() == nil
		cancel()
		g.release()
		if want++; all {
			must.Succeed(t, err)
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("after %d bytes: %v", left, err)
		}
		if got := spent(); got != want {
			t.Fatalf("left after %d bytes: %v counted, want %v", left, got, want)
		}
	}
	if n := pool.Stat().NewConnsCount() - connections; n != 0 || left < 50 {
		t.Errorf("%d connections were lost by %d callers", n, left)
	}
}
