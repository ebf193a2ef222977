package playground

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
)

// replaysSite is a replayer that answers on the network.
type replaysSite struct {
	*replayer
	webpagetest.Page
}

func replaySite(t *testing.T) *replaysSite {
	t.Helper()
	s := newReplayer()
	return &replaysSite{s, webpagetest.New(t, handler(s))}
}

func handler(s *replayer) http.Handler {
	mux := http.NewServeMux()
	s.add(mux)
	return mux
}

func packed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	must.OK(io.WriteString(w, text))(t)
	must.Succeed(t, w.Close())
	return b.String()
}

// send replays a log.
func (s *replaysSite) send(t *testing.T, path, log string) replayed {
	t.Helper()
	answer, text := s.Call(t, http.MethodPost, path, log, "Content-Type", "application/octet-stream")
	if answer.StatusCode != http.StatusCreated {
		t.Fatalf("%s: %s", answer.Status, text)
	}
	var got replayed
	webpagetest.Strict(t, text, &got)
	return got
}

// TestReplay: a report can be shown in the page and saved as a file, and can run or
// load nothing.
func TestReplay(t *testing.T) {
	t.Parallel()
	s := replaySite(t)
	for _, log := range []string{accessLog(), packed(t, accessLog())} {
		got := s.send(t, replayPath(fourAMinute, `{"algorithm":"gcra","limit":1,"period":"1h"}`)+"&costs=[1,0.5]&name=my%3Cb%3E.log", log)
		if got.Requests != 10 || got.BadLines != 1 || !strings.HasPrefix(got.URL, "/reports/") || len(got.URL) < 30 {
			t.Fatalf("got %+v", got)
		}
		answer, page := s.Call(t, http.MethodGet, got.URL, "")
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
		if n := strings.Count(page, ", cost 0.5"); n != 1 {
			t.Errorf("the cost of one policy is shown %d times", n)
		}
		answer, file := s.Call(t, http.MethodGet, got.URL+"?download", "")
		if file != page || answer.Header.Get("Content-Disposition") != `attachment; filename="pglimit-replay.html"` {
			t.Errorf("the file differs: %v", answer.Header)
		}
	}
}

func TestReplayErrors(t *testing.T) {
	t.Parallel()
	s := replaySite(t)
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
		{replayPath(good), "", 422, "", "", "none of its 0 lines is from an access log; a valid line: 192.0.2.7"},
		{replayPath(good), "a picture\nof a cat", 422, "", "", "none of its 2 lines is from an access log"},
		{replayPath(good), "\x1f\x8b and no more", 422, "", "", "the file cannot be read: gzip"},
		{replayPath(good), packed(t, log)[:60], 422, "", "", "the file cannot be read: unexpected EOF"},
		{replayPath(good), packed(t, packed(t, log)), 422, "", "", "from an access log"},
	} {
		s.ExpectProblem(t, http.MethodPost, c.at, c.log, c.status, c.field, c.algorithm, c.want)
	}
	s.ExpectProblem(t, http.MethodGet, "/reports/nobodys", "", 404, "", "", "only the last 8 reports are kept")
	s.upload, s.unpacked = 2<<20, 3<<20
	s.ExpectProblem(t, http.MethodPost, replayPath(good), strings.Repeat("x", 2<<20+1), 413, "", "", "the file is larger than 2 MiB: send a part")
	s.ExpectProblem(t, http.MethodPost, replayPath(good), packed(t, strings.Repeat(log, 10_000)), 413, "", "", "the file is larger than 3 MiB when unpacked")
	if got := s.send(t, replayPath(good), packed(t, strings.Repeat(log, 1000))); got.Requests != 10_000 || got.BadLines != 1000 {
		t.Errorf("what fits: %+v", got)
	}
	s.clients = 2
	two := strings.Repeat("192.0.2.1 - - [01/Jun/2026:12:00:00 +0000] \"GET /\" 200 1\n192.0.2.2 - - [01/Jun/2026:12:00:00 +0000] \"GET /\" 200 1\n", 2)
	if got := s.send(t, replayPath(good), two); got.Requests != 4 {
		t.Errorf("two clients: %+v", got)
	}
	s.ExpectProblem(t, http.MethodPost, replayPath(good), two+strings.ReplaceAll(two, "192.0.2.1", "192.0.2.3"), 413, "", "", "the file has more than 2 clients: send a part of it, or use pglimit replay --max-clients")
}

// TestReportsKept: only the last reports are kept.
func TestReportsKept(t *testing.T) {
	t.Parallel()
	s := replaySite(t)
	var urls []string
	for range maxReports + 1 {
		urls = append(urls, s.send(t, replayPath(fourAMinute), accessLog()).URL)
	}
	for i, at := range urls {
		want := http.StatusOK
		if i == 0 {
			want = http.StatusNotFound
		}
		if answer, _ := s.Call(t, http.MethodGet, at, ""); answer.StatusCode != want {
			t.Errorf("report %d: %s", i, answer.Status)
		}
	}
}

// TestReplayUploadCancelled: if a client disconnects during its upload, its replay
// stops and frees its place.
func TestReplayUploadCancelled(t *testing.T) {
	t.Parallel()
	s := &replaysSite{replayer: newReplayer()}
	reads, ended := make(chan struct{}, 10), make(chan struct{}, 10)
	told := telling(reads).Handler(handler(s.replayer))
	s.Page = webpagetest.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told.ServeHTTP(w, r)
		ended <- struct{}{}
	}))
	ctx, stop := context.WithCancel(t.Context())
	for range maxReplays {
		body, more := io.Pipe()
		r := must.OK(http.NewRequestWithContext(ctx, http.MethodPost, s.URL+replayPath(fourAMinute), body))(t)
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
	stop()
	for range maxReplays {
		<-ended
	}
	s.send(t, replayPath(fourAMinute), accessLog())
}

// TestReplayWaits: a replay waits for its turn, for a limited time.
func TestReplayWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newReplayer()
		for range maxReplays {
			s.turns <- struct{}{}
		}
		replayed := make(chan int)
		replay := func() {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, replayPath(fourAMinute), strings.NewReader(accessLog()))
			handler(s).ServeHTTP(w, r)
			replayed <- w.Code
		}
		go replay()
		if code := <-replayed; code != http.StatusServiceUnavailable { // with two running already
			t.Errorf("while others run: %d", code)
		}
		go replay()
		synctest.Wait()
		<-s.turns
		if code := <-replayed; code != http.StatusCreated {
			t.Errorf("after one has ended: %d", code)
		}
	})
}

// TestReplayCancelled: deciding also stops when the client disconnects.
func TestReplayCancelled(t *testing.T) {
	t.Parallel()
	s := newReplayer()
	ctx, stop := context.WithCancel(t.Context())
	body := io.MultiReader(strings.NewReader(accessLog()), stopping(stop))
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+replayPath(fourAMinute), body)
	if handler(s).ServeHTTP(w, r); w.Code == http.StatusCreated || s.reports.Len() != 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// stopping is a function that is called at the end of a reader.
type stopping func()

func (f stopping) Read([]byte) (int, error) { f(); return 0, io.EOF }
