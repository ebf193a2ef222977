package serve

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/pglimit/pglimit/cmd/pglimit/test/internal/load"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestServe: policies of the database and of the file, tokens that change while it runs, the
// admin address, gRPC's health, and no key in the log.
func TestServe(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	pool := testworld.Connect(t, database)
	stored := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 7, Period: 1000 * time.Hour}
	testworld.StorePolicy(t, pool, stored, false)
	web, webLine := token(t, "web", "decide")
	ops, opsLine := token(t, "ops", "operate")
	tokens := file(t, "tokens", webLine)
	s := start(t, database, "--tokens", tokens, "--access-log", "all", "--drain-timeout", "3m")
	const body = `{"policy":"login","key":"secret customer"}`
	allow := func(token string) (int, string) {
		r, text := call(t, "POST", s.HTTP+"/v1/allow", body, "Authorization", "Bearer "+token)
		return r.StatusCode, text
	}
	if status, text := allow(web); status != 200 || !strings.Contains(text, `"limit":7,`) {
		t.Errorf("the database's policy: %d %s", status, text)
	}
	if status, text := allow(ops); status != 401 {
		t.Errorf("an unknown token: %d %s", status, text)
	}
	if r, text := call(t, "POST", s.HTTP+"/v1/allow", `{"policy":"budget","key":"k"}`, "Pglimit-Token", web); r.StatusCode != 200 || !strings.Contains(text, `"limit":100,`) {
		t.Errorf("the file's policy: %d %s", r.StatusCode, text)
	}

	must.Succeed(t, os.WriteFile(tokens, []byte(opsLine), 0o600))
	testworld.Eventually(t, "the changed tokens are in use", func(context.Context) (bool, error) {
		status, _ := allow(web)
		return status == 401, nil
	})
	if r, text := call(t, "GET", s.HTTP+"/v1/policies", "", "Pglimit-Token", ops); r.StatusCode != 200 || strings.Count(text, `"name"`) != 6 || !strings.Contains(text, `"limit":7`) {
		t.Errorf("policies: %d %s", r.StatusCode, text)
	}

	long := must.OK(http.NewRequestWithContext(t.Context(), "GET", s.HTTP+"/healthz", nil))(t)
	long.Header.Set("X-Long", strings.Repeat("x", 32<<10))
	if r, err := http.DefaultClient.Do(long); err == nil && r.StatusCode != 431 { // or the connection ends
		t.Error("a header of 32 KiB:", r.Status)
	}
	for path, want := range map[string]string{
		"/readyz": "ready\n", "/healthz": "ok\n", "/metrics": `pglimit_requests_total{interface="http",route="/v1/allow",status="401"}`,
	} {
		if r, text := call(t, "GET", s.Admin+path, ""); r.StatusCode != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, r.StatusCode, text)
		}
	}
	if _, text := call(t, "GET", s.Admin+"/metrics", ""); !strings.Contains(text, `pglimit_decisions_total{outcome="allowed",policy="login"`) || strings.Contains(text, "secret") {
		t.Error("metrics:", text)
	}
	if r, text := call(t, "GET", s.Admin+"/api/policies", ""); r.StatusCode != 401 {
		t.Errorf("the dashboard without a token: %d %s", r.StatusCode, text)
	}
	q := must.OK(http.NewRequestWithContext(t.Context(), "GET", s.Admin+"/api/policies", nil))(t)
	q.SetBasicAuth("me", ops)
	if r := must.OK(http.DefaultClient.Do(q))(t); r.StatusCode != 200 {
		t.Error("the dashboard:", r.Status)
	}

	conn := must.OK(grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	if r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Error("gRPC's health:", r, err)
	}

	load.EndHTTP(t, terminate(s.Process), s.HTTP+"/v1/allow", body)
	<-s.Ended
	if code, log := s.ProcessState.ExitCode(), s.Said.String(); code != 0 || strings.Contains(log, "secret") || strings.Contains(log, ops) || !strings.Contains(log, `"caller":"web"`) || strings.Contains(log, "ERROR") {
		t.Errorf("exit code %d, log %s", code, log)
	}
}

// TestServeDrains: after SIGTERM a request in progress gets its answer, readiness ends first, and
// no further connection is accepted.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	pool := testworld.Connect(t, database)
	s := start(t, database, "--drain-delay", "1s")
	const body = `{"policy":"login","key":"k"}`
	if r, text := call(t, "POST", s.HTTP+"/v1/allow", body); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, text)
	}
	lock := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(lock.Exec(t.Context(), `UPDATE pglimit_fixed_window SET updated_at_us = updated_at_us`))(t)
	type answer struct {
		status int
		text   string
	}
	answered := make(chan answer, 1)
	go func() {
		r, text := call(t, "POST", s.HTTP+"/v1/allow", body)
		answered <- answer{r.StatusCode, text}
	}()
	testworld.Eventually(t, "the request waits", func(context.Context) (bool, error) {
		_, text := call(t, "GET", s.Admin+"/metrics", "")
		return strings.Contains(text, "\npglimit_waiting 1\n"), nil
	})
	must.Succeed(t, s.Process.Signal(syscall.SIGTERM))
	testworld.Eventually(t, "readiness ends", func(context.Context) (bool, error) {
		r, _ := call(t, "GET", s.Admin+"/readyz", "")
		return r.StatusCode == 503, nil
	})
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testworld.Eventually(t, "the listener closes", func(context.Context) (bool, error) {
		r, err := fresh.Get(s.HTTP + "/healthz")
		if err == nil {
			_ = r.Body.Close()
		}
		return err != nil, nil
	})
	select {
	case a := <-answered:
		t.Fatalf("the request was answered while its row is locked: %+v", a)
	case <-s.Ended:
		t.Fatalf("the server ended before a request in progress; stderr %s", &s.Said)
	default:
	}
	testworld.Commit(t, lock)
	if a := <-answered; a.status != 200 || !strings.Contains(a.text, `"remaining":1,`) {
		t.Errorf("the request in progress: %+v", a)
	}
	if <-s.Ended; s.ProcessState.ExitCode() != 0 {
		t.Errorf("exit code %d, stderr %s", s.ProcessState.ExitCode(), &s.Said)
	}
}

// TestServeTelemetry: with an endpoint in the environment the server sends spans of requests,
// below those of their callers, and metrics.
func TestServeTelemetry(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	sent := map[string]string{}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		sent[r.URL.Path] += string(body)
	}))
	defer receiver.Close()
	s := startWith(t, testworld.NewDatabase(t), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + receiver.URL, "OTEL_SERVICE_NAME=limits"})
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	if r, text := call(t, "POST", s.HTTP+"/v1/allow", `{"policy":"login","key":"secret customer"}`, "traceparent", "00-"+trace+"-00f067aa0ba902b7-01"); r.StatusCode != 200 {
		t.Errorf("%d %s", r.StatusCode, text)
	}
	must.Succeed(t, s.Process.Signal(syscall.SIGTERM))
	<-s.Ended
	mu.Lock()
	defer mu.Unlock()
	id := must.OK(hex.DecodeString(trace))(t)
	for path, all := range map[string][]string{"/v1/traces": {"limits", "POST /v1/allow", "pglimit allow", string(id)}, "/v1/metrics": {"limits", "pglimit.decisions"}} {
		for _, want := range all {
			if !strings.Contains(sent[path], want) {
				t.Errorf("%s: no %q in %q; log %s", path, want, sent[path], &s.Said)
			}
		}
		if strings.Contains(sent[path], "secret") {
			t.Errorf("%s has a key", path)
		}
	}
}

// TestServeWithoutDatabase: a server whose database is away at the start waits for it, says that it
// is not ready, and not where the database is. What someone has to correct ends the command.
func TestServeWithoutDatabase(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	wire := testworld.NewWire(t, database)
	wire.Away.Store(true)
	s := start(t, wire.URL, "--ratelimit-config", file(t, "limits.yaml", "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]\n"))
	conn := must.OK(grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	const body = `{"policy":"login","key":"k"}`
	for _, c := range []struct {
		method, url, body string
		status            int
	}{{"GET", s.Admin + "/readyz", "", 503}, {"GET", s.Admin + "/healthz", "", 200}, {"GET", s.Admin + "/", "", 503}, {"GET", s.HTTP + "/healthz", "", 200}, {"POST", s.HTTP + "/v1/allow", body, 503}} {
		if r, text := call(t, c.method, c.url, c.body); r.StatusCode != c.status || strings.Contains(text, "127.0.0.1") {
			t.Errorf("%s while the database is away: %d %s", c.url, r.StatusCode, text)
		}
	}
	health := func() healthpb.HealthCheckResponse_ServingStatus {
		return must.OK(healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"}))(t).GetStatus()
	}
	if got := health(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Error("gRPC's health while the database is away:", got)
	}
	wire.Away.Store(false)
	testworld.Eventually(t, "the server is ready", func(context.Context) (bool, error) {
		r, _ := call(t, "GET", s.Admin+"/readyz", "")
		return r.StatusCode == 200, nil
	})
	if r, text := call(t, "POST", s.HTTP+"/v1/allow", body); r.StatusCode != 200 || health() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%d %s, gRPC's health %v", r.StatusCode, text, health())
	}
	if n := s.Said.Count("waiting for the database"); n != 1 {
		t.Errorf("it is logged %d times: %s", n, &s.Said)
	}
	missing := *must.OK(url.Parse(database))(t)
	missing.Path = "/none"
	for _, args := range [][]string{{"serve", "--http", "localhost:0"}, {"ratelimit"}} {
		if code, stdout, stderr := testworld.Pglimit(t, missing.String(), args...); code != 3 || stdout != "" || !strings.Contains(stderr, "none") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	bad := file(t, "bad.yaml", "policies:\n  - {name: login, algorithm: gcra, limit: -1, period: 1m}\n")
	if code, _, stderr := testworld.Pglimit(t, "postgres://nobody@127.0.0.1:1/none", "serve", "--http", "localhost:0", "--policies", bad); code != 2 || !strings.Contains(stderr, "bad.yaml:2") || !strings.Contains(stderr, "-1") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

// TestServeTLS: the command serves TLS with the files' certificate.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := start(t, testworld.NewDatabase(t), "--drain-timeout", "3m", "--tls-cert", file(t, "cert.pem", cert), "--tls-key", file(t, "key.pem", key))
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, url := range []string{s.HTTP + "/healthz", s.Admin + "/readyz"} {
		r, err := client.Get(url)
		if err != nil || !strings.HasPrefix(url, "https://localhost:") {
			t.Errorf("%s: %v", url, err)
			continue
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		if r.StatusCode != 200 || r.ProtoMajor != 2 {
			t.Errorf("%s: %s %s", url, r.Status, r.Proto)
		}
	}
	client.CloseIdleConnections()
	load.EndHTTP(t, terminate(s.Process), s.HTTP+"/v1/allow", `{"policy":"login","key":"k"}`)
	if <-s.Ended; s.ProcessState.ExitCode() != 0 {
		t.Errorf("exit code %d, stderr %s", s.ProcessState.ExitCode(), &s.Said)
	}
}
