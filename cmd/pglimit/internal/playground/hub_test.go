package playground

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// testHub returns a hub that counts in memory.
func testHub(t *testing.T, newLimiter func(*limiter.Config) (*limiter.Limiter, error)) *Hub {
	t.Helper()
	h := must.OK(newHub(newLimiter, limiter.Config{DisableDenyCache: true, Logger: slog.New(slog.DiscardHandler)}))(t)
	return h
}

// policy returns a policy of the playground.
func policy(a limiter.Algorithm, limit float64, period time.Duration) limiter.Policy {
	return limiter.Policy{Name: nameOf(a), Algorithm: a, Limit: limit, Period: period}
}

// allow requests n units of key k.
func allow(t *testing.T, h *Hub, p limiter.Policy, n float64) {
	t.Helper()
	must.OK(h.Limiter.AllowN(t.Context(), p, "k", n))(t)
}

// hubSite serves the hub's streams until the test ends.
func hubSite(t *testing.T, h *Hub) webpagetest.Page {
	t.Helper()
	s := webpagetest.New(t, streamHandler(h))
	t.Cleanup(h.Close)
	return s
}

// stage is a ResponseWriter without a network, for streams under a fake clock.
type stage struct {
	header http.Header
	status int
	text   chan string // what was flushed
	behind bytes.Buffer
}

func newStage() *stage { return &stage{header: http.Header{}, text: make(chan string, 1000)} }

func (s *stage) Header() http.Header         { return s.header }
func (s *stage) WriteHeader(status int)      { s.status = status }
func (s *stage) Write(p []byte) (int, error) { return s.behind.Write(p) }
func (s *stage) Flush()                      { s.text <- s.behind.String(); s.behind.Reset() }

// listenIn opens a stream without a network. The stage receives what the handler
// flushes.
func listenIn(t *testing.T, h *Hub, key string) (on *stage, leave func()) {
	t.Helper()
	on = newStage()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		streamHandler(h).ServeHTTP(on, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/events?key="+key, nil))
	}()
	return on, func() { stop(); <-ended }
}

// seen returns the data of an event that the stage has received so far.
func (s *stage) seen(t *testing.T, event string) (data []string) {
	t.Helper()
	for {
		select {
		case text := <-s.text:
			for one := range strings.SplitSeq(text, "\n\n") {
				name, rest, _ := strings.Cut(strings.TrimPrefix(one, "event: "), "\ndata: ")
				if name == event {
					data = append(data, rest)
				}
			}
		default:
			return data
		}
	}
}

// TestHubSampling: a key is read ten times a second while it is watched and something
// is counted, once more after that, and otherwise never.
func TestHubSampling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		h := testHub(t, func(config *limiter.Config) (*limiter.Limiter, error) {
			observe := config.Observe
			config.Observe = func(ctx context.Context, o limiter.Observation) {
				if o.Request.Cost == 0 && o.Request.Policy.Algorithm != limiter.GCRA { // which hello reads
					looks.Add(1)
				}
				observe(ctx, o)
			}
			return limiter.NewMemory(config), nil
		})
		p, window := policy(limiter.TokenBucket, 10, 10*time.Second), policy(limiter.FixedWindow, 1, time.Second)
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }

		allow(t, h, p, 10)
		pass(5 * time.Second)
		if n := looks.Load(); n != 0 {
			t.Errorf("%d reads without a stream", n)
		}
		on, leave := listenIn(t, h, "k")
		allow(t, h, window, 1)
		pass(20 * time.Second)
		levels := on.seen(t, "levels")
		if n := len(levels); n < 50 || n > 52 { // 5 s are left of the bucket's 10
			t.Errorf("%d times levels in 5 s", n)
		}
		var first, last struct {
			Levels map[limiter.Algorithm]levelEvent
		}
		if err := json.Unmarshal([]byte(levels[0]), &first); err != nil || first.Levels[limiter.TokenBucket].Level != 4.9 {
			t.Errorf("first %s, %v", levels[0], err)
		}
		if err := json.Unmarshal([]byte(levels[len(levels)-1]), &last); err != nil ||
			last.Levels[limiter.TokenBucket] != (levelEvent{At: first.Levels[limiter.TokenBucket].At + 4900, Remaining: 10}) ||
			last.Levels[limiter.FixedWindow].Remaining != 1 || len(last.Levels) != 2 {
			t.Errorf("last %s, %v", levels[len(levels)-1], err)
		}
		before := looks.Load()
		pass(time.Minute)
		if n := looks.Load(); n != before {
			t.Errorf("%d reads of a key at rest", n-before)
		}

		p.Limit = 20 // a key is read under the policy that was used last
		allow(t, h, p, 10)
		pass(150 * time.Millisecond)
		levels = on.seen(t, "levels")
		if len(levels) == 0 || json.Unmarshal([]byte(levels[0]), &last) != nil || last.Levels[limiter.TokenBucket].Level+last.Levels[limiter.TokenBucket].Remaining != 20 {
			t.Errorf("after another decision: %s", levels)
		}
		leave()
		before = looks.Load()
		pass(5 * time.Second)
		if n := looks.Load(); n != before {
			t.Errorf("%d reads after the last stream had ended", n-before)
		}
		// A stream that begins when nothing is counted receives the levels once.
		pass(time.Minute)
		on, leave = listenIn(t, h, "k")
		pass(time.Minute)
		if n := len(on.seen(t, "levels")); n != 1 {
			t.Errorf("%d times levels of an unused key", n)
		}
		leave()
		h.Close()
	})
}

// TestHubReset: after a reset the key is unused for every algorithm, and not in use.
func TestHubReset(t *testing.T) {
	t.Parallel()
	h := testHub(t, replay.InMemory)
	w := hubSite(t, h).Watch(t, "k")
	for range 2 {
		for _, a := range limiter.Algorithms() {
			p := policy(a, 3, 1000*time.Hour)
			for i := range 4 {
				if r, err := h.Limiter.Allow(t.Context(), p, "k"); err != nil || r.Allowed != (i < 3) {
					t.Errorf("%s: request %d: %+v, %v", a, i, r, err)
				}
			}
		}
		must.Succeed(t, h.Reset(t.Context(), "k"))
		w.Until(t, "reset", &struct{}{})
		if left := h.usedWith("k"); len(left) != 0 {
			t.Errorf("still to be reset: %v", left)
		}
	}
}

// TestHubForgetAll: at the end no counts are left.
func TestHubForgetAll(t *testing.T) {
	t.Parallel()
	h := testHub(t, replay.InMemory)
	p := policy(limiter.TokenBucket, 3, 1000*time.Hour)
	for _, key := range []string{"alice", "bob"} {
		if r, err := h.Limiter.Allow(t.Context(), p, key); err != nil || !r.Allowed {
			t.Fatalf("%s: %+v, %v", key, r, err)
		}
	}
	must.Succeed(t, h.ForgetAll(t.Context()))
	for _, key := range []string{"alice", "bob"} {
		if r, err := h.Limiter.Check(t.Context(), p, key, 0); err != nil || r.Level != 0 {
			t.Errorf("%s: %+v, %v", key, r, err)
		}
	}
}

// TestHandlerBeat: comments keep an idle stream alive.
func TestHandlerBeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := testHub(t, replay.InMemory)
		on, leave := listenIn(t, h, "k")
		<-time.After(time.Minute + time.Second)
		synctest.Wait()
		if n := len(on.seen(t, ":")); n != 4 {
			t.Errorf("%d comments in a minute", n)
		}
		leave()
		h.Close()
	})
}

// TestHandlerErrors: a stream needs a key, and the hub must be open.
func TestHandlerErrors(t *testing.T) {
	t.Parallel()
	h := testHub(t, replay.InMemory)
	s := hubSite(t, h)
	s.ExpectProblem(t, http.MethodGet, "/api/events", "", 400, "key", "", "key is empty")
	s.ExpectProblem(t, http.MethodGet, "/api/events?key="+strings.Repeat("k", 257), "", 400, "key", "", "257 bytes")
	s.ExpectProblem(t, http.MethodGet, "/api/events?key=%ff", "", 400, "key", "", "not valid UTF-8")
	w := s.Watch(t, "k")
	h.Close()
	w.Ended()
	s.ExpectProblem(t, http.MethodGet, "/api/events?key=k", "", 503, "", "", "the playground is ending")
}

// TestHandlerSlowReader: a stream that is not read ends instead of losing events, and
// other streams lose nothing.
func TestHandlerSlowReader(t *testing.T) {
	t.Parallel()
	h := testHub(t, replay.InMemory)
	server := httptest.NewUnstartedServer(streamHandler(h))
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(1) // the least that the system gives
		return ctx
	}
	server.Start()
	defer server.Close()
	defer h.Close()
	s := webpagetest.Page{URL: server.URL}
	quick := s.Watch(t, "k")
	slow := s.Watch(t, "k")
	sent := 0
	for open := true; open && sent < 2*maxBehind; sent++ {
		allow(t, h, policy(limiter.GCRA, 1, 1000*time.Hour), 1)
		var d decisionEvent
		quick.Until(t, "decision", &d)
		h.mu.Lock()
		open = len(h.streams) == 2
		h.mu.Unlock()
	}
	// Queued events are lost with the stream.
	if n := slow.Ended(); n == 0 || n >= maxBehind || sent < maxBehind || sent == 2*maxBehind {
		t.Errorf("the slow reader got %d events of %d", n, sent)
	}
}
