package playground

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// accessLog is a log of ten requests by one client within a minute, and a line that
// cannot be read.
func accessLog() string {
	var log strings.Builder
	for i := range 10 {
		fmt.Fprintf(&log, "192.0.2.7 - - [17/May/2026:10:05:%02d +0000] \"GET / HTTP/1.1\" 200 5120\n", i)
	}
	return log.String() + "what is this\n"
}

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const fourAMinute = `{"algorithm":"fixed_window","limit":4,"period":"1m"}`

func replayPath(policies ...string) string {
	return "/api/replay?policies=" + url.QueryEscape("["+strings.Join(policies, ",")+"]")
}

func (s *site) replay(t *testing.T, path, log string) replayed {
	t.Helper()
	answer, text := s.call(t, http.MethodPost, path, log, "Content-Type", "application/octet-stream")
	if answer.StatusCode != http.StatusCreated {
		t.Fatalf("%s: %s", answer.Status, text)
	}
	var got replayed
	strict(t, text, &got)
	return got
}

// TestReplay: a log becomes a report, which may be shown in the page and kept as a
// file, and may do nothing.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, log := range []string{accessLog(), packed(t, accessLog())} {
		got := s.replay(t, replayPath(fourAMinute, `{"algorithm":"gcra","limit":1,"period":"1h"}`)+"&name=my%3Cb%3E.log", log)
		if got.Requests != 10 || got.BadLines != 1 || !strings.HasPrefix(got.URL, "/reports/") || len(got.URL) < 30 {
			t.Fatalf("got %+v", got)
		}
		answer, page := s.call(t, http.MethodGet, got.URL, "")
		if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/html; charset=utf-8" || answer.Header.Get("Content-Disposition") != "" {
			t.Errorf("%s %v", answer.Status, answer.Header)
		}
		style := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindStringSubmatch(page)
		if style == nil {
			t.Fatal("the report has no style")
		}
		sum := sha256.Sum256([]byte(style[1]))
		want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
		if got := answer.Header.Get("Content-Security-Policy"); got != want {
			t.Errorf("Content-Security-Policy: %s\nwant %s", got, want)
		}
		if !strings.Contains(page, "192.0.2.7") || !strings.Contains(page, "my&lt;b&gt;.log") || strings.Contains(page, "my<b>") {
			t.Error("the client or the log's name is not in the report")
		}
		answer, file := s.call(t, http.MethodGet, got.URL+"?download", "")
		if file != page || answer.Header.Get("Content-Disposition") != `attachment; filename="pglimit-replay.html"` {
			t.Errorf("the file differs: %v", answer.Header)
		}
	}
}

// TestReplayCosts: a policy's cost is its own.
func TestReplayCosts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	got := s.replay(t, replayPath(fourAMinute, fourAMinute)+"&costs=[1,2.5]", accessLog())
	_, page := s.call(t, http.MethodGet, got.URL, "")
	if n := strings.Count(page, "Each request costs 2.5"); n != 1 {
		t.Errorf("a cost of 2.5 is told %d times:\n%s", n, page)
	}
}

func TestReplayErrors(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	log, good := accessLog(), fourAMinute
	for _, c := range []struct {
		at, log          string
		status           int
		field, algorithm string
		want             string
	}{
		{"/api/replay", log, 400, "policies", "", "policies is not a JSON array of policies"},
		{"/api/replay?policies={}", log, 400, "policies", "", "policies is not a JSON array of policies"},
		{replayPath(), log, 400, "policies", "", "policies are 0: must be from 1 to 3"},
		{replayPath(good, good, good, good), log, 400, "policies", "", "policies are 4: must be from 1 to 3"},
		{replayPath(good, `{"algorithm":"gcra","limit":0}`), log, 400, "limit", "gcra", "Limit 0: must be"},
		{replayPath(good) + "&costs=1", log, 400, "costs", "", "costs is not a JSON array of numbers"},
		{replayPath(good) + "&costs=[1,1]", log, 400, "costs", "", "costs are 2: must be as many as the 1 policies"},
		{replayPath(good) + "&costs=[0]", log, 400, "cost", "fixed_window", "cost 0"},
		{replayPath(good), "", 422, "", "", "none of its 0 lines is of an access log; one looks like 192.0.2.7"},
		{replayPath(good), "a picture\nof a cat", 422, "", "", "none of its 2 lines is of an access log"},
		{replayPath(good), "\x1f\x8b and no more", 422, "", "", "the file cannot be read: gzip"},
		{replayPath(good), packed(t, log)[:60], 422, "", "", "the file cannot be read: unexpected EOF"},
		{replayPath(good), packed(t, packed(t, log)), 422, "", "", "of an access log"},
	} {
		expectProblem(t, s, http.MethodPost, c.at, c.log, c.status, c.field, c.algorithm, c.want)
	}
	expectProblem(t, s, http.MethodGet, "/reports/nobodys", "", 404, "", "", "not kept any more: the last 8 are")
	s.upload, s.unpacked = 2<<20, 3<<20
	expectProblem(t, s, http.MethodPost, replayPath(good), strings.Repeat("x", 2<<20+1), 413, "", "", "the file is larger than 2 MiB: send a part")
	expectProblem(t, s, http.MethodPost, replayPath(good), packed(t, strings.Repeat(log, 10_000)), 413, "", "", "the file is larger than 3 MiB when unpacked")
	if got := s.replay(t, replayPath(good), packed(t, strings.Repeat(log, 1000))); got.Requests != 10_000 || got.BadLines != 1000 {
		t.Errorf("what fits: %+v", got)
	}
	s.clients = 2
	two := strings.Repeat("192.0.2.1 - - [01/Jun/2026:12:00:00 +0000] \"GET /\" 200 1\n192.0.2.2 - - [01/Jun/2026:12:00:00 +0000] \"GET /\" 200 1\n", 2)
	if got := s.replay(t, replayPath(good), two); got.Requests != 4 {
		t.Errorf("two clients: %+v", got)
	}
	expectProblem(t, s, http.MethodPost, replayPath(good), two+strings.ReplaceAll(two, "192.0.2.1", "192.0.2.3"), 413, "", "", "the file has 3 clients, more than 2: send a part")
}

// TestReportsKept: the last ones, and no more.
func TestReportsKept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var urls []string
	for range maxReports + 1 {
		urls = append(urls, s.replay(t, replayPath(fourAMinute), accessLog()).URL)
	}
	for i, at := range urls {
		want := http.StatusOK
		if i == 0 {
			want = http.StatusNotFound
		}
		if answer, _ := s.call(t, http.MethodGet, at, ""); answer.StatusCode != want {
			t.Errorf("report %d: %s", i, answer.Status)
		}
	}
}

// TestUploadCancelled: who goes away while sending a log has its work stopped, and
// makes room for others; there are two at most.
func TestUploadCancelled(t *testing.T) {
	t.Parallel()
	s := &site{Server: newServer(t)}
	reads, ended := make(chan struct{}, 10), make(chan struct{}, 10)
	s.handler = telling(reads).read(s.handler)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.ServeHTTP(w, r)
		ended <- struct{}{}
	}))
	defer server.Close()
	s.url = server.URL
	ctx, stop := context.WithCancel(t.Context())
	for range maxReplays {
		body, more := io.Pipe()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+replayPath(fourAMinute), body)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if answer, err := http.DefaultClient.Do(r); err == nil {
				_ = answer.Body.Close()
				t.Errorf("half a log was answered: %s", answer.Status)
			}
		}()
		go func() { _, _ = io.WriteString(more, accessLog()) }()
	}
	for range maxReplays {
		<-reads
	}
	s.wait = 1 // ns
	expectProblem(t, s, http.MethodPost, replayPath(fourAMinute), accessLog(), 503, "", "", "2 replays are running already: try again")
	<-ended
	s.wait = maxWait
	stop()
	for range maxReplays {
		<-ended
	}
	s.replay(t, replayPath(fourAMinute), accessLog())
}

// TestReplayWaits: a replay waits for its turn, and not for ever.
func TestReplayWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		for range maxReplays {
			s.replaying <- struct{}{}
		}
		replayed := make(chan int)
		replay := func() {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, replayPath(fourAMinute), strings.NewReader(accessLog()))
			r.Host = "localhost"
			s.ServeHTTP(w, r)
			replayed <- w.Code
		}
		go replay()
		if code := <-replayed; code != http.StatusServiceUnavailable {
			t.Errorf("where others do not end: %d", code)
		}
		go replay()
		synctest.Wait()
		<-s.replaying
		if code := <-replayed; code != http.StatusCreated {
			t.Errorf("where one has ended: %d", code)
		}
	})
}

// TestBodyStandsStill: half a body is given up, and a log's room is free then.
func TestBodyStandsStill(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.pause = 1 // ns
	for _, at := range []string{"/api/send", replayPath(fourAMinute)} {
		for range maxReplays + 1 {
			half, more := io.Pipe()
			answer, err := http.Post(s.url+at, "application/json", half)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(text), "nothing more of the body came for 1ns: send it again") {
				t.Errorf("%s: %s %s, %v", at, answer.Status, text, err)
			}
			_ = more.Close()
		}
	}
}

// deadlines keeps the last deadline that is set.
type deadlines struct {
	*httptest.ResponseRecorder
	last time.Time
	all  int
}

func (d *deadlines) SetReadDeadline(at time.Time) error { d.last = at; d.all++; return nil }

// TestBodyRead: the bound on a body's pauses is none on what is done with it.
func TestBodyRead(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest(http.MethodPost, "http://localhost"+replayPath(fourAMinute), strings.NewReader(accessLog()))
	if s.ServeHTTP(w, r); w.Code != http.StatusCreated || w.all < 2 || !w.last.IsZero() {
		t.Errorf("%d; after %d deadlines: %v", w.Code, w.all, w.last)
	}
}

// TestReplayCancelled: deciding stops as well when nobody waits for it.
func TestReplayCancelled(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	ctx, stop := context.WithCancel(t.Context())
	body := io.MultiReader(strings.NewReader(accessLog()), stopping(stop))
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+replayPath(fourAMinute), body)
	if s.ServeHTTP(w, r); w.Code == http.StatusCreated || len(s.reports.ids) != 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// telling is a reader that is empty, and tells that it is read.
type telling chan<- struct{}

func (c telling) Read([]byte) (int, error) { c <- struct{}{}; return 0, io.EOF }

// read tells when a replay begins to read what it is sent.
func (c telling) read(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body := r.Body; r.URL.Path == "/api/replay" {
			r.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(c, body), body}
		}
		next.ServeHTTP(w, r)
	})
}

// stopping is a reader at whose end it is called.
type stopping func()

func (f stopping) Read([]byte) (int, error) { f(); return 0, io.EOF }
