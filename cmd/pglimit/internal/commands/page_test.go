//go:build unix

package commands_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/playground"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestPlaygroundCommands: a shell and the flags of allow parse the command line
// that the page shows for a policy as that policy.
func TestPlaygroundCommands(t *testing.T) {
	t.Parallel()
	server := must.OK(playground.New(playground.Config{
		Limiter: func(config *limiter.Config) (*limiter.Limiter, error) { return limiter.NewMemory(config), nil },
		Command: []string{"pglimit", "allow", "--data-dir", "it's mine"},
	}))(t)
	defer server.Close(t.Context())
	for _, c := range []struct {
		policy, key string
		cost        float64
	}{
		{`{"algorithm":"leaky_bucket","limit":10,"period":"10s","burst":20,"tick":"1.5s"}`, "alice", 1},
		{`{"algorithm":"leaky_bucket_queue","limit":0.1,"period":"1h30m","burst":1e-9}`, "O'Neill $HOME `id` \"\\", 1e-9},
		{`{"algorithm":"token_bucket","limit":9007199254740992,"period":"24h","block_for":"90s"}`, "-x", 1000000},
		{`{"algorithm":"gcra","limit":1e-9,"period":"876600h"}`, "a b\nc", 1},
		{`{"algorithm":"fixed_window","limit":1000,"period":"1ms","aligned":true}`, "-", 1},
		{`{"algorithm":"fixed_window","limit":100000,"calendar":"month","time_zone":"Europe/Vienna"}`, "--help", 2},
		{`{"algorithm":"sliding_window_counter","limit":2.5,"period":"1m"}`, "π", 1},
		{`{"algorithm":"sliding_window_log","limit":3,"period":"2m0.000001s"}`, "*", 1},
	} {
		line := described(t, server, c.policy, c.key, c.cost)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `pglimit() { printf '%s\0' "$@"; cat; }; `+line).Output()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		args := strings.Split(string(out), "\x00")
		stdin := args[len(args)-1]
		args = args[:len(args)-1]

		var flags policyflags.Flags
		allow := &cobra.Command{Use: "allow"}
		flags.RegisterRequest(allow)
		var db connect.Database
		root := &cobra.Command{Use: "pglimit"}
		db.Register(root.PersistentFlags())
		root.AddCommand(allow)
		if args[0] != "allow" {
			t.Fatalf("%s: %q", line, args)
		}
		if err := allow.ParseFlags(args[1:]); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		p, err := flags.Policy()
		var want limiter.Policy
		must.Succeed(t, json.Unmarshal([]byte(c.policy), &want))
		if want.Name = playground.PolicyName; want.Algorithm == limiter.GCRA {
			want.Name += "-gcra"
		}
		dataDir, _ := root.PersistentFlags().GetString("data-dir")
		if err != nil || p != want || flags.Cost != c.cost || dataDir != "it's mine" {
			t.Errorf("%s: %v\ngot %+v, cost %v\nwant %+v, cost %v", line, err, p, flags.Cost, want, c.cost)
		}
		keys := allow.Flags().Args()
		if len(keys) == 1 && keys[0] == "-" { // a key per line
			keys[0] = strings.TrimSuffix(stdin, "\n")
		}
		if len(keys) != 1 || keys[0] != c.key {
			t.Errorf("%s: keys %q, want %q", line, keys, c.key)
		}
	}
}

// described returns the command line that the page shows for a policy.
func described(t *testing.T, server http.Handler, policy, key string, cost float64) string {
	t.Helper()
	body := must.OK(json.Marshal(map[string]any{"key": key, "policies": []json.RawMessage{json.RawMessage(policy)}, "costs": []float64{cost}}))(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/api/describe", strings.NewReader(string(body)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	server.ServeHTTP(w, r)
	var got struct {
		Policies []struct{ Command, Error string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Policies) != 1 {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return got.Policies[0].Command
}

// TestAddress: an unusable address is reported before a database is opened. A database that
// is away at the start is an error.
func TestAddress(t *testing.T) {
	t.Parallel()
	taken := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	for _, command := range []string{"dashboard", "playground"} {
		call := func(addr string, want int, text string) {
			t.Helper()
			code, stdout, stderr := commandtest.Call(t, command, "--verbose", "--addr", addr, "--database-url", "postgres://nobody@127.0.0.1:1/none")
			if code != want || stdout != "" || !strings.Contains(stderr, text) || strings.Contains(stderr, "database:") != (want == cli.ExitDatabase) {
				t.Errorf("%s --addr %s: exit code %d, stdout %q, stderr %q, want %q in it", command, addr, code, stdout, stderr, text)
			}
		}
		call("8080", cli.ExitUsage, "not of the form host:port, such as localhost:8080")
		call(fmt.Sprint("localhost:", taken.Addr().(*net.TCPAddr).Port), cli.ExitUsage, "in use: use another address or free this one; localhost:0 selects any free port")
		call("localhost:0", cli.ExitDatabase, "connect")
	}
}
