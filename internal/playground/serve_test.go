package playground

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

func TestListen(t *testing.T) {
	t.Parallel()
	all, at, err := Listen(t.Context(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(all[0])
	if at != "http://localhost:"+port {
		t.Errorf("the URL is %s", at)
	}
	for _, l := range all {
		defer l.Close()
		if !l.Addr().(*net.TCPAddr).IP.IsLoopback() || portOf(l) != port {
			t.Errorf("listens on %v", l.Addr())
		}
	}
	for _, addr := range []string{"localhost:" + port, "127.0.0.1:" + port} {
		if _, _, err := Listen(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "localhost:0 is any port that is free") {
			t.Errorf("%s again: %v", addr, err)
		}
	}
	for _, addr := range []string{"localhost", "8080", "", "[::1"} {
		if _, _, err := Listen(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "not of the form host:port, such as localhost:8080") {
			t.Errorf("%q: %v", addr, err)
		}
	}
	everywhere, at, err := Listen(t.Context(), ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere[0].Close()
	if at != "http://localhost:"+portOf(everywhere[0]) {
		t.Errorf("the URL of :0 is %s", at)
	}
	if six, err := net.Listen("tcp", "[::1]:0"); err != nil {
		return // no IPv6 here
	} else if _ = six.Close(); len(all) != 2 {
		t.Fatalf("listens on %v alone", all[0].Addr())
	}
	// A port that another has on ::1 is no port of localhost's.
	_ = all[0].Close()
	if some, _, err := Listen(t.Context(), "localhost:"+port); err == nil {
		t.Errorf("took %v, though ::1 has it", some[0].Addr())
	}
	if l, err := net.Listen("tcp", "127.0.0.1:"+port); err != nil {
		t.Errorf("IPv4's was kept: %v", err)
	} else {
		_ = l.Close()
	}
}

// TestServe: it ends, and at once, in spite of open streams, a request that waits for
// its turn, an upload that never ends and a connection that nobody uses.
func TestServe(t *testing.T) {
	t.Parallel()
	memory := make(chan *limiter.Limiter, 1)
	var log bytes.Buffer
	s := newServer(t, func(config *Config) {
		config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		config.Limiter = func(config *limiter.Config) (*limiter.Limiter, error) {
			l := limiter.NewMemory(config)
			memory <- l
			return l, nil
		}
	})
	s.grace = hang // what ends late is cut off, and logged
	reads := make(chan struct{}, 10)
	s.handler = telling(reads).read(s.handler)
	listeners, _, err := Listen(t.Context(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listeners...) }()
	at := "http://" + listeners[0].Addr().String()
	unused, err := net.Dial("tcp", listeners[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer unused.Close()
	on := &site{s, at}
	w := on.watch(t, "k")
	waits := make(chan error, 1)
	go func() {
		for range 2 {
			answer, err := http.Get(at + "/limited/leaky_bucket_queue?limit=1&period=59s&burst=2&key=k")
			if err != nil {
				waits <- err
				return
			}
			_ = answer.Body.Close()
		}
		waits <- nil
	}()
	for range 2 {
		var d decision
		w.until(t, "decision", &d)
	}
	upload, more := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		answer, err := http.Post(at+replayPath(fourAMinute), "", upload)
		if err == nil {
			_ = answer.Body.Close()
		}
		sent <- err
	}()
	<-reads
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.ended()
	if err := <-waits; err == nil {
		t.Error("the one who waited was answered")
	}
	_ = more.Close()
	<-sent // answered with an error, or with none
	l := <-memory
	if _, err := l.Check(t.Context(), someone(limiter.LeakyBucketQueue), "k", 0); !errors.Is(err, limiter.ErrClosed) {
		t.Errorf("the limiter is not closed: %v", err)
	}
	if _, err := http.Get(at); err == nil {
		t.Error("it still answers")
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
}

// TestServeListenerBreaks: then there is nothing left to serve.
func TestServeListenerBreaks(t *testing.T) {
	t.Parallel()
	broken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = broken.Close()
	if err := newServer(t).Serve(t.Context(), broken); err == nil {
		t.Error("no error")
	}
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Config.Limiter is nil") {
		t.Errorf("without a limiter: %v", err)
	}
	mine := errors.New("mine")
	if _, err := New(Config{Limiter: func(*limiter.Config) (*limiter.Limiter, error) { return nil, mine }}); !errors.Is(err, mine) {
		t.Errorf("a limiter that cannot be made: %v", err)
	}
}
