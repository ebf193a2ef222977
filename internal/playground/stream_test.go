package playground

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// looking makes Servers whose looks at cost 0 are counted, and told of before they
// are answered.
func looking(n *atomic.Int64, at func()) func(*Config) {
	return func(config *Config) {
		config.Limiter = func(config *limiter.Config) (*limiter.Limiter, error) {
			observe := config.Observe
			config.Observe = func(ctx context.Context, ask limiter.Ask, r limiter.Result, err error) {
				if ask.Cost == 0 {
					n.Add(1)
					if at != nil {
						at()
					}
				}
				observe(ctx, ask, r, err)
			}
			return limiter.NewMemory(config), nil
		}
	}
}

// listenIn opens a stream without a network. What is flushed to the stage is its text.
func listenIn(t *testing.T, s *Server, key string) (on *stage, leave func()) {
	t.Helper()
	on = newStage()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.ServeHTTP(on, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/api/events?key="+key, nil))
	}()
	return on, func() { stop(); <-ended }
}

// seen takes what the stage has of an event so far.
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

// TestSampling: a key is looked at ten times a second while somebody watches and
// something is held, once more then, and never else.
func TestSampling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		s := newServer(t, looking(&looks, nil))
		p := limiter.Policy{Name: PolicyName, Algorithm: limiter.TokenBucket, Limit: 10, Period: 10 * time.Second}
		window := limiter.Policy{Name: PolicyName, Algorithm: limiter.FixedWindow, Limit: 1, Period: time.Second}
		allow := func(p limiter.Policy, n float64) {
			t.Helper()
			if _, err := s.limiter.AllowN(t.Context(), p, "k", n); err != nil {
				t.Fatal(err)
			}
		}
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }

		allow(p, 10)
		pass(5 * time.Second)
		if n := looks.Load(); n != 0 {
			t.Errorf("%d looks while nobody watched", n)
		}
		on, leave := listenIn(t, s, "k")
		allow(window, 1)
		pass(20 * time.Second)
		levels := on.seen(t, "levels")
		if n := len(levels); n < 50 || n > 52 { // 5 s are left of the bucket's 10
			t.Errorf("%d times levels in 5 s", n)
		}
		var first, last struct{ Levels map[limiter.Algorithm]level }
		if err := json.Unmarshal([]byte(levels[0]), &first); err != nil || first.Levels[limiter.TokenBucket].Level != 5 {
			t.Errorf("first %s, %v", levels[0], err)
		}
		if err := json.Unmarshal([]byte(levels[len(levels)-1]), &last); err != nil ||
			last.Levels[limiter.TokenBucket] != (level{first.Levels[limiter.TokenBucket].At + 5000, 0, 10}) ||
			last.Levels[limiter.FixedWindow].Remaining != 1 || len(last.Levels) != 2 {
			t.Errorf("last %s, %v", levels[len(levels)-1], err)
		}
		s.workers.Wait() // nobody looks any more

		allow(p, 10)
		pass(150 * time.Millisecond)
		if n := len(on.seen(t, "levels")); n < 1 {
			t.Error("no levels after another decision")
		}
		leave()
		before := looks.Load()
		pass(5 * time.Second)
		if n := looks.Load(); n != before {
			t.Errorf("%d looks after the last stream had ended", n-before)
		}
		// Who comes when nothing is held sees it once.
		pass(time.Minute)
		on, leave = listenIn(t, s, "k")
		pass(time.Minute)
		if n := len(on.seen(t, "levels")); n != 1 {
			t.Errorf("%d times levels of a key that holds nothing", n)
		}
		leave()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestLastPolicy: a key is looked at by the policy that was used last.
func TestLastPolicy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.watch(t, "k")
	for _, limit := range []string{"3", "30"} {
		s.post(t, "/api/send", `{"key":"k","times":1,"asks":[{"policy":{"algorithm":"gcra","limit":`+limit+`,"period":"1000h"}}]}`, &counts{})
	}
	for {
		var seen levels
		w.until(t, "levels", &seen)
		if of := seen.Levels[limiter.GCRA]; of.Level+of.Remaining == 30 {
			return
		} else if of.Level+of.Remaining != 3 {
			t.Fatalf("levels %v", seen)
		}
	}
}

// TestResetInMidLook: what was seen before a reset is not told after it.
func TestResetInMidLook(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	looked, goOn := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool
	s := newSite(t, looking(&looks, func() {
		if hold.CompareAndSwap(true, false) {
			close(looked)
			<-goOn
		}
	}))
	w := s.watch(t, "k")
	hold.Store(true)
	send := func(cost string) {
		s.post(t, "/api/send", `{"key":"k","times":1,"asks":[{"policy":`+three(limiter.GCRA)+`,"cost":`+cost+`}]}`, &counts{})
	}
	send("3")
	<-looked
	s.post(t, "/api/reset", `{"key":"k"}`, &struct{}{})
	close(goOn)
	w.until(t, "reset", &struct{}{})
	send("1")
	var seen levels
	w.until(t, "levels", &seen) // before the decision or after
	if level := seen.Levels[limiter.GCRA].Level; level > 1 {
		t.Errorf("after the reset: level %v", level)
	}
}

// TestBeat: a stream on which nothing happens is kept alive.
func TestBeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		on, leave := listenIn(t, s, "k")
		<-time.After(time.Minute + time.Second)
		synctest.Wait()
		if n := len(on.seen(t, ":")); n != 4 {
			t.Errorf("%d comments in a minute", n)
		}
		leave()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestEventsErrors: a stream needs a key, and there are not more than can be served.
func TestEventsErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	expectProblem(t, s, http.MethodGet, "/api/events", "", 400, "key", "", "key is empty")
	expectProblem(t, s, http.MethodGet, "/api/events?key="+strings.Repeat("k", 257), "", 400, "key", "", "257 bytes")
	expectProblem(t, s, http.MethodGet, "/api/events?key=%ff", "", 400, "key", "", "not valid UTF-8")
	var open []*stream
	for i := range maxStreams {
		in, err := s.hub.join(fmt.Sprint(i), func() {})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, in)
	}
	expectProblem(t, s, http.MethodGet, "/api/events?key=k", "", 503, "", "", "64 streams of events are open already: close another tab")
	s.hub.leave("0", open[0])
	s.hub.leave("0", open[0]) // once is enough
	w := s.watch(t, "k")
	expectProblem(t, s, http.MethodGet, "/api/events?key=k", "", 503, "", "", "64 streams")
	s.hub.close()
	w.ended()
	expectProblem(t, s, http.MethodGet, "/api/events?key=k", "", 503, "", "", "the playground is ending")
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.hub.streams != 0 {
		t.Errorf("%d streams are left", s.hub.streams)
	}
}

// TestSlowReader: one who does not read loses the stream, and not events in silence;
// others lose nothing.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	s := &site{Server: newServer(t)}
	server := httptest.NewUnstartedServer(s)
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(1) // the least that the system gives
		return ctx
	}
	server.Start()
	defer server.Close()
	defer s.hub.close()
	s.url = server.URL
	quick := s.watch(t, "k")
	slow := s.watch(t, "k")
	sent := 0
	for open := true; open && sent < 2*maxBehind; sent++ {
		if _, err := s.limiter.Allow(t.Context(), limiter.Policy{Name: PolicyName, Algorithm: limiter.GCRA, Limit: 1, Period: 1000 * time.Hour}, "k"); err != nil {
			t.Fatal(err)
		}
		var d decision
		quick.until(t, "decision", &d)
		s.hub.mu.Lock()
		open = s.hub.streams == 2
		s.hub.mu.Unlock()
	}
	// What waited for it is gone with the stream.
	if n := slow.ended(); n == 0 || n >= maxBehind || sent < maxBehind || sent == 2*maxBehind {
		t.Errorf("the slow reader got %d events of %d", n, sent)
	}
}
