// Package gateways tests pglimit serve behind Caddy, nginx and HAProxy, and from other
// languages, by the programs of this machine.
package gateways

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
)

func TestMain(m *testing.M) {
	testworld.BeCommand(commands.Main)
	testworld.Main(m, 4)
}

// example returns a file of examples/ with words replaced, given as pairs.
func example(t *testing.T, path string, pairs ...string) string {
	t.Helper()
	root := must.OK(repository.Root())(t)
	return replace(t, string(must.OK(os.ReadFile(filepath.Join(root, "examples", path)))(t)), pairs...)
}

// replace replaces words of a text, which has them.
func replace(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("no %q in:\n%s", pairs[i], text)
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// program returns the path of a program that scripts/setup installs, also where only root looks.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := osexec.LookPath(name)
	if err != nil {
		path = must.OK(osexec.LookPath(filepath.Join("/usr/sbin", name)))(t)
	}
	return path
}

// gateway starts a gateway in a directory and waits until it listens on a port.
func gateway(t *testing.T, dir, port string, name string, args ...string) {
	t.Helper()
	cmd := osexec.CommandContext(t.Context(), program(t, name), args...)
	var output testworld.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.WaitDelay = 10 * time.Second
	must.Succeed(t, cmd.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-ended
		if t.Failed() {
			t.Logf("%s: %s", name, &output)
		}
	})
	testworld.Eventually(t, name+" listens", func(context.Context) (bool, error) {
		select {
		case <-ended:
			t.Fatalf("%s ended: %s", name, &output)
		default:
		}
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil, nil
	})
}

// from sends a GET from an address of this machine.
func from(t *testing.T, address, url string, headers ...string) (status int, retryAfter string) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	r := must.OK(http.NewRequestWithContext(t.Context(), "GET", url, nil))(t)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer := must.OK(client.Do(r))(t)
	_ = answer.Body.Close()
	return answer.StatusCode, answer.Header.Get("Retry-After")
}

// TestGateways: the configurations of examples/gateways limit each client of Caddy, nginx and
// HAProxy by its address, whatever the client says about it, and by a header. Without a decision
// they answer 503, or let pass.
func TestGateways(t *testing.T) {
	t.Parallel()
	application := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(application.Close)
	for name, run := range map[string]func(t *testing.T, api, by string, open bool) (url string){
		"caddy": func(t *testing.T, api, by string, open bool) string {
			dir, port := t.TempDir(), fmt.Sprint(must.OK(localpg.FreePort())(t))
			config := example(t, "gateways/Caddyfile", "127.0.0.1:8080", api, ":8000", ":"+port, "/check/login", "/check/login"+by, "auto_https off", "auto_https off\n\tstorage file_system "+dir, "timeout 1s", "timeout 60s", "timeout 3s", "timeout 60s", "127.0.0.1:9000", application.Listener.Addr().String())
			if open {
				config = replace(t, config, "#@away", "@away", "#handle_response", "handle_response", "#\t", "\t", "#}", "}", `respond "undecided" 503`, "import application")
			}
			write(t, dir, "Caddyfile", config)
			gateway(t, dir, port, "caddy", "run", "--config", "Caddyfile", "--adapter", "caddyfile")
			return "http://127.0.0.1:" + port
		},
		"nginx": func(t *testing.T, api, by string, open bool) string {
			dir, port := t.TempDir(), fmt.Sprint(must.OK(localpg.FreePort())(t))
			temp := "http {\n\taccess_log off;"
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				temp += "\n\t" + kind + "_temp_path " + dir + "/" + kind + ";"
			}
			more := "/denied=403"
			if by != "" {
				more += "&" + by[1:]
			}
			config := example(t, "gateways/nginx.conf", "127.0.0.1:8080", api, "listen 8000", "listen 127.0.0.1:"+port, "/denied=403", more, "http {", temp, "http://127.0.0.1:9000", application.URL, "timeout 1s", "timeout 60s", "timeout 3s", "timeout 60s",
				"events {}", "events {}\ndaemon off;\nmaster_process off;\npid "+dir+"/pid;\nerror_log stderr;")
			if open {
				config = replace(t, config, "# proxy_intercept_errors", "proxy_intercept_errors", "# error_page", "error_page")
			}
			write(t, dir, "nginx.conf", config)
			gateway(t, dir, port, "nginx", "-p", dir, "-e", "stderr", "-c", filepath.Join(dir, "nginx.conf"))
			return "http://127.0.0.1:" + port
		},
		"haproxy": func(t *testing.T, api, by string, open bool) string {
			dir, port := t.TempDir(), fmt.Sprint(must.OK(localpg.FreePort())(t))
			headers := "headers = {"
			if by != "" {
				headers += ` ["x-api-key"] = { txn.f:req_hdr("x-api-key") },`
			}
			write(t, dir, "pglimit.lua", example(t, "gateways/pglimit.lua", "headers = {", headers, "timeout = 2000", "timeout = 60000"))
			config := example(t, "gateways/haproxy.cfg", "http://127.0.0.1:8080", "http://"+api, "bind :8000", "bind 127.0.0.1:"+port, "/check/login", "/check/login"+by)
			if open {
				config = replace(t, config, "unless { var(txn.limit) -m int 200 }", "if { var(txn.limit) -m int 400:499 }")
			}
			write(t, dir, "haproxy.cfg", config)
			gateway(t, dir, port, "haproxy", "-db", "-f", "haproxy.cfg")
			return "http://127.0.0.1:" + port
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testworld.Serve(t, testworld.NewDatabase(t), nil, "--trusted-proxies", "127.0.0.1")
			api := strings.Replace(strings.TrimPrefix(s.HTTP, "http://"), "localhost", "127.0.0.1", 1)
			url, open := run(t, api, "", false), run(t, api, "", true)
			for _, client := range []string{"127.0.0.2", "127.0.0.3"} {
				for i := range 5 { // the limit is 3
					// What a client adds to its URL and headers means nothing.
					status, after := from(t, client, fmt.Sprintf("%s/?by=header:X-Foo&cost=0.1&page=2", url), "X-Foo", fmt.Sprint(i), "X-Forwarded-For", "203.0.113."+client[len(client)-1:], "Authorization", "Bearer of the client")
					if denied := i >= 3; denied != (status == 429) || denied != (after != "") || !denied && status != 200 {
						t.Errorf("%s, request %d: %d, Retry-After %q", client, i+1, status, after)
					}
				}
			}
			for i := range 4 {
				if status, _ := from(t, "127.0.0.5", open); (status == 429) != (i == 3) {
					t.Errorf("one that lets undecided requests pass, request %d: %d", i+1, status)
				}
			}
			url = run(t, api, "/by=header:X-Api-Key", false)
			for i := range 4 {
				if status, _ := from(t, "127.0.0.2", url+"/a?by=address&cost=3", "X-Api-Key", "k"); (status == 429) != (i == 3) {
					t.Errorf("by a header, request %d: %d", i+1, status)
				}
			}
			must.Succeed(t, s.Process.Kill())
			<-s.Ended
			undecided(t, "127.0.0.4", url, open)
			// Errors of a server that is there: one without a decision, and a wrong configuration.
			var fails atomic.Int64
			broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(int(fails.Load()))
			}))
			t.Cleanup(broken.Close)
			api = strings.TrimPrefix(broken.URL, "http://")
			url, open = run(t, api, "", false), run(t, api, "", true)
			fails.Store(503)
			undecided(t, "127.0.0.2", url, open)
			fails.Store(404)
			for _, url := range []string{url, open} {
				if status, _ := from(t, "127.0.0.2", url); status < 400 {
					t.Errorf("an unknown policy: %d", status)
				}
			}
		})
	}
}

// undecided wants 503 with Retry-After of a gateway that has no decision, and 200 of one that lets
// such requests pass.
func undecided(t *testing.T, client, closed, open string) {
	t.Helper()
	if status, after := from(t, client, closed); status != 503 || after == "" {
		t.Errorf("without a decision: %d, Retry-After %q", status, after)
	}
	if status, _ := from(t, client, open); status != 200 {
		t.Errorf("without a decision, and let pass: %d", status)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// between is a server in front of another. It cuts the connection instead of the first answer to each
// Idempotency-Key, if cut, and counts connections.
func between(t *testing.T, api string, cut bool) (url string, connections *atomic.Int64) {
	t.Helper()
	var seen sync.Map
	connections = new(atomic.Int64)
	forward := httputil.NewSingleHostReverseProxy(must.OK(neturl.Parse(api))(t))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if _, again := seen.LoadOrStore(key, true); key == "" || cut && !again {
			forward.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		forward.ServeHTTP(w, r)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server.URL, connections
}

// TestLanguages: the examples of other languages are allowed three times, then denied with the
// time to wait, though the first answer to each request is lost. They end in an error if the server
// refuses them, and ask for several keys over one connection.
func TestLanguages(t *testing.T) {
	t.Parallel()
	secret, line := testworld.Token(t, "languages", "decide")
	s := testworld.Serve(t, testworld.NewDatabase(t), nil, "--tokens", testworld.File(t, "tokens", line))
	root := filepath.Join(must.OK(repository.Root())(t), "examples", "languages")
	script := filepath.Join(t.TempDir(), "limit.mjs") // without the types
	if out, err := osexec.CommandContext(t.Context(), program(t, "esbuild"), filepath.Join(root, "limit.mts"), "--outfile="+script).CombinedOutput(); err != nil {
		t.Fatalf("esbuild: %v: %s", err, out)
	}
	for name, command := range map[string][]string{
		"sh":     {"sh", filepath.Join(root, "limit.sh")},
		"python": {"python3", filepath.Join(root, "limit.py")},
		"node":   {"node", script},
		"ruby":   {"ruby", filepath.Join(root, "limit.rb")},
		"java":   {"java", filepath.Join(root, "Limit.java")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(api, token string, keys ...string) (code int, output string) {
				cmd := osexec.CommandContext(t.Context(), program(t, command[0]), append(command[1:], keys...)...)
				cmd.Env = append(os.Environ(), "PGLIMIT_URL="+api, "PGLIMIT_TOKEN="+token)
				var said testworld.Buffer
				cmd.Stderr = &said
				out, _ := cmd.Output() // the exit code reports it
				t.Logf("%v: %s", keys, &said)
				return cmd.ProcessState.ExitCode(), string(out)
			}
			lossy, _ := between(t, s.HTTP, true)
			for i := range 4 {
				code, output := run(lossy, secret, name)
				if i < 3 && (code != 0 || output != "allowed\n") || i == 3 && (code != 1 || !strings.HasPrefix(output, "denied, again in 3")) {
					t.Errorf("request %d: exit code %d, %s", i+1, code, output)
				}
			}
			if code, output := run(s.HTTP, "wrong", name); code == 0 || strings.HasPrefix(output, "denied") {
				t.Errorf("a wrong token: exit code %d, %s", code, output)
			}
			if name == "sh" { // each request is a separate program
				return
			}
			api, connections := between(t, s.HTTP, false)
			if code, output := run(api, secret, name+"1", name+"2", name+"3", name+"4", name); code != 1 || !strings.HasPrefix(output, strings.Repeat("allowed\n", 4)+"denied, ") {
				t.Errorf("several keys: exit code %d, %s", code, output)
			}
			if n := connections.Load(); n > 2 { // Node's connection is not free at once
				t.Errorf("five keys took %d connections", n)
			}
		})
	}
}
