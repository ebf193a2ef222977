package command

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// caller returns a function that sends requests with a token: a GET if the body is empty.
func caller(t *testing.T, site webpagetest.Page, token string) func(path, body string) (status int, text string) {
	return func(path, body string) (int, string) {
		t.Helper()
		method := http.MethodPost
		if body == "" {
			method = http.MethodGet
		}
		answer, text := site.Call(t, method, path, body, dashboard.TokenHeader, token)
		return answer.StatusCode, text
	}
}

// TestDashboard runs the command: it reads without the token, changes keys with it, logs no
// key, and ends at Ctrl-C.
func TestDashboard(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	l := testworld.NewLimiter(t, testworld.Connect(t, address), nil)
	p := limiter.Policy{Name: "login", Algorithm: limiter.GCRA, Limit: 10, Period: 1000 * time.Hour}
	const key = "secret customer"
	testworld.Must(t)(l.Charge(t.Context(), p, key, 4))
	for _, write := range []bool{false, true} {
		args := []string{"dashboard", "--addr", "localhost:0", "--json"}
		if write {
			args = append(args, "--write")
		}
		c := startCommand(t, address, args...)
		var at struct {
			URL   string
			Write bool
		}
		if err := json.NewDecoder(c.stdout).Decode(&at); err != nil || !strings.HasPrefix(at.URL, "http://localhost:") || at.Write != write {
			t.Fatalf("%v: %+v; stderr %s", err, at, &c.stderr)
		}
		base, token, has := strings.Cut(at.URL, "/#token=")
		if has != write || strings.Contains(base, "token") {
			t.Errorf("--write %v: the URL is %s", write, at.URL)
		}
		call := caller(t, webpagetest.Page{URL: base}, token)
		if status, text := call("/api/setup", ""); status != 200 || !strings.Contains(text, "PostgreSQL ") || strings.Contains(text, `"write":true`) != write || strings.Contains(text, `"hashed":true`) {
			t.Errorf("setup: %d %s", status, text)
		}
		if status, text := call("/api/key", `{"key":"`+key+`"}`); status != 200 || !strings.Contains(text, `"policy":"login","algorithm":"token_bucket"`) {
			t.Errorf("the key: %d %s", status, text)
		}
		for path, body := range map[string]string{"/api/policies": "", "/api/denials": `{}`, "/api/doctor": ""} {
			if status, text := call(path, body); status != 200 {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		status, text := call("/api/block", `{"key":"`+key+`","policy":"login","algorithm":"gcra","for":"1h"}`)
		if want := map[bool]int{true: 200, false: 403}[write]; status != want {
			t.Errorf("--write %v: block: %d %s", write, status, text)
		}
		if r := testworld.Must(t)(l.Check(t.Context(), p, key, 1)); r.Allowed == write {
			t.Errorf("--write %v: afterwards: %+v", write, r)
		}
		c.interrupt(t)
		code, rest := c.end(t)
		if code != 0 || strings.TrimSpace(rest) != "" {
			t.Errorf("exit code %d, stdout %q", code, rest)
		}
		if log := c.stderr.String(); strings.Contains(log, "secret") || write && strings.Contains(log, token) || strings.Contains(log, "verb=block") != write || strings.Contains(log, "WARN") {
			t.Errorf("--write %v: stderr %s", write, log)
		}
	}
}

// TestDashboardOutage: while the database is away requests are 503 in time, and work again
// when it is back.
func TestDashboardOutage(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	network := testworld.NewDialer(func() string { return address })
	pool := testworld.Connect(t, address, func(config *pgxpool.Config) { config.ConnConfig.DialFunc = network.Dial })
	data := must.OK(dashboard.Open(t.Context(), pool, nil, slog.New(slog.DiscardHandler)))(t)
	defer data.Close()
	s := must.OK(dashboard.New(dashboard.Config{Source: data, Token: "t", Logger: slog.New(slog.DiscardHandler)}))(t)
	call := caller(t, webpagetest.New(t, s), "t")
	const target = `{"key":"k","policy":"p","algorithm":"gcra"`
	requests := map[string]string{
		"/api/policies": "", "/api/denials": `{}`, "/api/overrides": `{"policy":"p"}`, "/api/why": `{"key":"k"}`, "/api/search": `{"prefix":"k"}`, "/api/doctor": "", "/api/history": `{}`, "/api/keys": `{}`, "/api/key": `{"key":"k"}`,
		"/api/unblock": target + `}`, "/api/reset": target + `}`, "/api/block": target + `,"for":"1h"}`,
	}
	network.Down.Store(true)
	pool.Reset()
	for path, body := range requests {
		if status, text := call(path, body); status != http.StatusServiceUnavailable || !strings.Contains(text, `"error":`) {
			t.Errorf("%s without a database: %d %s", path, status, text)
		}
	}
	network.Down.Store(false)
	for path, body := range requests {
		if status, text := call(path, body); status != http.StatusOK {
			t.Errorf("%s afterwards: %d %s", path, status, text)
		}
	}
}
