package command

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/playground"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// page is a client of the playground that sends what its page would.
type page struct{ webpagetest.Page }

func (p page) do(t *testing.T, method, path, body string) (status int, text string) {
	t.Helper()
	answer, text := p.Call(t, method, path, body)
	return answer.StatusCode, text
}

// events opens a stream. next reads until an event called name, and returns how many of each
// other name it skipped.
func (p page) events(t *testing.T, key string) (next func(name string, into any) (others map[string]int)) {
	t.Helper()
	w := p.Watch(t, key)
	return func(name string, into any) map[string]int {
		t.Helper()
		others := map[string]int{}
		for {
			event, data := w.Next(t)
			if event != name {
				others[event]++
				continue
			}
			if err := json.Unmarshal([]byte(data), into); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			return others
		}
	}
}

type decisionEvent struct {
	Algorithm limiter.Algorithm
	Status    int
	Outcome   string
	Remaining float64
	Headers   [][2]string
	Body      string
}

type levelsEvent struct {
	Levels map[limiter.Algorithm]struct{ At, Level, Remaining float64 }
}

// everyAlgorithm requests one unit of each algorithm, with a limit of 3 in a period so
// long that nothing comes back.
func everyAlgorithm(key string, times string) string {
	var requests []string
	for _, a := range limiter.Algorithms() {
		requests = append(requests, `{"policy":{"algorithm":"`+string(a)+`","limit":3,"period":"1000h"},"cost":1}`)
	}
	return `{"key":"` + key + `","times":` + times + `,"requests":[` + strings.Join(requests, ",") + `]}`
}

// TestPlaygroundAsks: without a terminal and --yes it makes no tables.
func TestPlaygroundAsks(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	const refused = "migrations of pglimit: run `pglimit migrate up`, or pass --yes"
	unasked := startCommand(t, address, "playground", "--addr", "localhost:0")
	if line, err := bufio.NewReader(unasked.stdout).ReadString('\n'); err == nil { // it does not end
		unasked.interrupt(t)
		t.Errorf("it prints %q", line)
	}
	if code, _ := unasked.end(t); code != 2 || !strings.Contains(unasked.stderr.String(), refused) {
		t.Errorf("it does not ask before it runs migrations: exit code %d, stderr %q", code, &unasked.stderr)
	}
	if testworld.Value[bool](t, testworld.Connect(t, address), `SELECT to_regclass('pglimit_token_bucket') IS NOT NULL`) {
		t.Error("it ran migrations without being allowed to")
	}
}

// TestPlayground runs the command: limits are kept, streams and curl see the same, and in
// the end no row is left.
func TestPlayground(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	c := startCommand(t, address, "playground", "--addr", "localhost:0", "--json", "--yes")
	out := json.NewDecoder(c.stdout)
	var at struct{ URL string }
	if err := out.Decode(&at); err != nil || !strings.HasPrefix(at.URL, "http://localhost:") {
		t.Fatalf("%v: %+v; stderr %s", err, at, &c.stderr)
	}
	p := page{webpagetest.Page{URL: at.URL}}
	var setup struct{ Version, Database string }
	if status, text := p.do(t, http.MethodGet, "/api/setup", ""); status != 200 || json.Unmarshal([]byte(text), &setup) != nil {
		t.Fatalf("setup: %d %s", status, text)
	}
	version := testworld.Value[string](t, testworld.Connect(t, address), "SHOW server_version")
	if version, _, _ = strings.Cut(version, " "); setup.Database != "PostgreSQL "+version || setup.Version == "" {
		t.Errorf("setup: %+v, want PostgreSQL %s", setup, version)
	}

	one, two := p.events(t, "alice"), p.events(t, "alice")
	var sum struct{ Allowed, Delayed, Denied int }
	var senders sync.WaitGroup
	var mu sync.Mutex
	for range 3 {
		senders.Go(func() {
			status, text := p.do(t, http.MethodPost, "/api/send", everyAlgorithm("alice", "5"))
			var got struct{ Allowed, Delayed, Denied int }
			if status != 200 || json.Unmarshal([]byte(text), &got) != nil {
				t.Errorf("send: %d %s", status, text)
			}
			mu.Lock()
			defer mu.Unlock()
			sum.Allowed, sum.Delayed, sum.Denied = sum.Allowed+got.Allowed, sum.Delayed+got.Delayed, sum.Denied+got.Denied
		})
	}
	senders.Wait()
	if sum.Allowed != 3*6+1 || sum.Delayed != 2 || sum.Denied != 12*7 {
		t.Errorf("sent: %+v", sum)
	}
	for _, next := range []func(string, any) map[string]int{one, two} {
		allowed := map[limiter.Algorithm]int{}
		for range 3 * 5 * 7 {
			var d decisionEvent
			next("decision", &d)
			if d.Status == 200 {
				allowed[d.Algorithm]++
			}
		}
		for _, a := range limiter.Algorithms() {
			if allowed[a] != 3 {
				t.Errorf("%s: %d allowed, want 3", a, allowed[a])
			}
		}
		var seen levelsEvent
		for len(seen.Levels) < 7 || seen.Levels[limiter.TokenBucket].Level < 2.9 {
			next("levels", &seen)
		}
	}

	// The same key through curl's route.
	status, body := p.do(t, http.MethodGet, "/limited/sliding_window_log?limit=3&period=1000h&key=alice", "")
	var d decisionEvent
	one("decision", &d)
	if status != 429 || d.Status != 429 || body != d.Body || d.Algorithm != limiter.SlidingWindowLog {
		t.Errorf("/limited/: %d %s; the event: %+v", status, body, d)
	}
	// What another process does is visible at once.
	if code, _, stderr := testworld.Pglimit(t, address, "reset", "--policy", "playground", "--algorithm", "sliding_window_log", "alice"); code != 0 {
		t.Errorf("pglimit reset: exit code %d, %s", code, stderr)
	}
	if status, body := p.do(t, http.MethodGet, "/limited/sliding_window_log?limit=3&period=1000h&key=alice", ""); status != 200 {
		t.Errorf("after pglimit reset: %d %s", status, body)
	}
	if status, text := p.do(t, http.MethodPost, "/api/reset", `{"key":"alice"}`); status != 200 {
		t.Errorf("reset: %d %s", status, text)
	}
	two("reset", &struct{}{})
	if status, text := p.do(t, http.MethodPost, "/api/send", everyAlgorithm("alice", "1")); status != 200 || !strings.Contains(text, `"denied":0`) {
		t.Errorf("after the reset: %d %s", status, text)
	}
	if status, text := p.do(t, http.MethodGet, "/limited/gcra?limit=1&period=1000h&key=bob", ""); status != 200 || text != "allowed\n" {
		t.Errorf("bob: %d %s", status, text)
	}

	// The streams are still open.
	must.Succeed(t, c.Process.Signal(syscall.SIGTERM))
	code, rest := c.end(t)
	if code != 0 || rest != "" && rest != "\n" || c.stderr.String() != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, rest, &c.stderr)
	}
	testworld.NoRows(t, testworld.Connect(t, address))
}

// TestPlaygroundWaits: a request that waits for the database longer than an application
// would is still answered.
func TestPlaygroundWaits(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.NewDatabase(t))
	server := must.OK(playground.New(playground.Config{
		Limiter: func(config *limiter.Config) (*limiter.Limiter, error) { return limiter.New(pool, config) },
		Logger:  slog.New(slog.DiscardHandler),
	}))(t)
	site := httptest.NewServer(server)
	t.Cleanup(func() {
		site.Close()
		if err := server.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	tx := must.OK(pool.Begin(t.Context()))(t)
	must.OK(tx.Exec(t.Context(), "LOCK TABLE pglimit_token_bucket"))(t)
	answered := make(chan string, 1)
	go func() {
		defer close(answered)
		_, text := page{webpagetest.Page{URL: site.URL}}.do(t, http.MethodPost, "/api/send",
			`{"key":"alice","times":1,"requests":[{"policy":{"algorithm":"gcra","limit":3,"period":"1h"}}]}`)
		answered <- text
	}()
	testworld.Eventually(t, "the request has waited for longer", func(ctx context.Context) (long bool, err error) {
		err = pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > $1)`, time.Second).Scan(&long)
		return long || len(answered) > 0, err
	})
	must.Succeed(t, tx.Rollback(t.Context()))
	if text := <-answered; text != `{"allowed":1,"delayed":0,"denied":0}`+"\n" {
		t.Errorf("answered %s", text)
	}
}

// TestPlaygroundOutage: while the database is away the streams report it once, and
// continue when it is back.
func TestPlaygroundOutage(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	network := testworld.NewDialer(func() string { return address })
	pool := testworld.Connect(t, address, func(config *pgxpool.Config) { config.ConnConfig.DialFunc = network.Dial })
	server := must.OK(playground.New(playground.Config{
		Limiter: func(config *limiter.Config) (*limiter.Limiter, error) {
			return limiter.New(pool, testworld.WithPatience(config))
		},
		Logger: slog.New(slog.DiscardHandler),
	}))(t)
	listeners, at, err := webpage.Listen(t.Context(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listeners...) }()
	p := page{webpagetest.Page{URL: at}}
	next := p.events(t, "alice")
	if status, text := p.do(t, http.MethodPost, "/api/send", everyAlgorithm("alice", "1")); status != 200 {
		t.Fatalf("send: %d %s", status, text)
	}
	next("levels", &levelsEvent{})
	network.Down.Store(true)
	pool.Reset()
	var problem struct{ Error string }
	next("problem", &problem)
	if !strings.Contains(problem.Error, "database unavailable") {
		t.Errorf("the problem: %+v", problem)
	}
	if status, text := p.do(t, http.MethodPost, "/api/send", everyAlgorithm("alice", "1")); status != 503 || !strings.Contains(text, "database unavailable") {
		t.Errorf("send without a database: %d %s", status, text)
	}
	if status, text := p.do(t, http.MethodPost, "/api/reset", `{"key":"alice"}`); status != 503 {
		t.Errorf("reset without a database: %d %s", status, text)
	}
	network.Down.Store(false)
	var seen levelsEvent
	if others := next("levels", &seen); len(seen.Levels) != 7 || others["problem"] > 0 {
		t.Errorf("levels after the outage: %+v; sent again: %v", seen, others)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	testworld.NoRows(t, pool)
}
