package playground

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// raw is a server whose clients write and read bytes, and stall when they like.
type raw struct {
	*running
	server *httptest.Server
	closed chan struct{} // receives for each connection that the server closes
}

// newRaw serves s with a limit on pauses, and with small buffers, so that little that a
// client does not read blocks the server.
func newRaw(t *testing.T, pause time.Duration) *raw {
	t.Helper()
	s := newServer(t)
	s.pause = pause
	r := &raw{closed: make(chan struct{}, 1000)}
	r.server = httptest.NewUnstartedServer(s)
	r.server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			_ = c.(*net.TCPConn).SetWriteBuffer(1) // the least that the system gives
		case http.StateClosed:
			r.closed <- struct{}{}
		}
	}
	r.server.Start()
	t.Cleanup(r.server.Close)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r.running = &running{s, webpagetest.Page{URL: r.server.URL}}
	return r
}

// dial connects and sends text.
func (r *raw) dial(t *testing.T, text string) net.Conn {
	t.Helper()
	c := must.OK(net.Dial("tcp", r.server.Listener.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	_ = c.(*net.TCPConn).SetReadBuffer(1)
	_ = c.SetReadDeadline(time.Now().Add(webpagetest.Hang))
	must.OK(io.WriteString(c, text))(t)
	return c
}

// post is the head of a POST with a body of n bytes.
func post(path string, n int) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, n)
}

// TestServerBodyNeverComes: a client that announces a body and does not send it gets an
// answer, and its connection ends, whether a handler reads the body or not.
func TestServerBodyNeverComes(t *testing.T) {
	t.Parallel()
	r := newRaw(t, 2*time.Second) // a busy machine has to answer within twice that
	for head, want := range map[string]int{
		post("/api/send", 100):               http.StatusRequestTimeout,
		post(replayPath(fourAMinute), 1<<20): http.StatusRequestTimeout,
		post("/api/replay", 100):             http.StatusBadRequest, // not read: there are no policies
		strings.Replace(post("/api/send", 100), "application/json", "text/plain", 1): http.StatusUnsupportedMediaType,
		"GET /api/setup HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n":  http.StatusOK,
		"GET /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n":    http.StatusNotFound,
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			in := bufio.NewReader(r.dial(t, head+"{"))
			answer, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%.60q: %v", head, err)
			}
			if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != want {
				t.Errorf("%.60q: %s, %v, want %d", head, answer.Status, err, want)
			}
			if n, err := io.Copy(io.Discard, in); n > 0 || isTimeout(err) {
				t.Errorf("%.60q: the connection stays open: %v", head, err)
			}
		})
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

// TestServerBodyDrips: a client that sends a body of a known length byte by byte is cut
// off, although no pause is long.
func TestServerBodyDrips(t *testing.T) {
	t.Parallel()
	r := newRaw(t, 200*time.Millisecond)
	for _, path := range []string{"/api/send", replayPath(fourAMinute)} {
		const n = 300
		c := r.dial(t, post(path, n))
		go func() {
			drop := time.NewTicker(10 * time.Millisecond)
			defer drop.Stop()
			for range n {
				if _, err := io.WriteString(c, " "); err != nil {
					return
				}
				<-drop.C
			}
		}()
		answer := must.OK(http.ReadResponse(bufio.NewReader(c), nil))(t)
		text, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(text), "the body came slower than 64 KiB a second: send it again") {
			t.Errorf("%s: %s %s", path, answer.Status, text)
		}
	}
}

// await waits until the server has closed n connections.
func (r *raw) await(t *testing.T, n int) {
	t.Helper()
	hang := time.After(webpagetest.Hang)
	for range n {
		select {
		case <-r.closed:
		case <-hang:
			t.Fatal("the server keeps the connection")
		}
	}
}

// TestServerKeepsConnections: the limits of one request do not end a later one on the same
// connection, nor one that waits for longer than a pause.
func TestServerKeepsConnections(t *testing.T) {
	t.Parallel()
	r := newRaw(t, 50*time.Millisecond)
	body := `{"key":"k"}`
	queue := "GET /limited/leaky_bucket_queue?key=q&limit=5&period=1s&burst=5 HTTP/1.1\r\nHost: localhost\r\n\r\n"
	c := r.dial(t, "")
	in := bufio.NewReader(c)
	for range 2 {
		for _, text := range []string{post("/api/reset", len(body)) + body, queue, queue, queue} {
			must.OK(io.WriteString(c, text))(t)
			answer := must.OK(http.ReadResponse(in, nil))(t)
			if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
				t.Errorf("%s %s, %v", answer.Status, text, err)
			}
		}
	}
}

// TestServerStreamsUnread: readers that open all streams and read nothing do not keep
// others out, and those that are behind are closed.
func TestServerStreamsUnread(t *testing.T) {
	t.Parallel()
	r := newRaw(t, 200*time.Millisecond)
	const streams = 64
	for range streams {
		in := bufio.NewReaderSize(r.dial(t, "GET /api/events?key=k HTTP/1.1\r\nHost: localhost\r\n\r\n"), 16)
		if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "200 OK") {
			t.Fatal(line, err)
		}
	}
	w := r.Watch(t, "k")
	r.await(t, 1) // it has the place of another
	p := limiter.Policy{Name: PolicyName, Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
	for range 1000 { // fewer than are queued for a stream
		must.OK(r.hub.Limiter.Allow(t.Context(), p, "k"))(t)
		for name := ""; name != "decision"; {
			name, _ = w.Next(t)
		}
	}
	r.await(t, streams-1)
}
