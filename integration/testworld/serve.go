package testworld

import (
	"encoding/json"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// served is a file with policies whose periods are longer than a test.
const served = `policies:
  - {name: login, algorithm: fixed_window, limit: 3, period: 1000h}
  - {name: budget, algorithm: fixed_window, limit: 100, period: 1000h}
  - {name: code, algorithm: attempts, limit: 2, period: 1000h, block_for: 1h}
  - {name: exports, algorithm: concurrency, limit: 2, period: 1h}
  - {name: credits, algorithm: balance, overdraft: 1}
  - {name: queue, algorithm: leaky_bucket_queue, limit: 1, period: 1000h, burst: 5}
`

// Serving is a pglimit serve in its process.
type Serving struct {
	*osexec.Cmd
	HTTP, GRPC, Admin string        // URLs
	Said              Buffer        // its log
	Ended             chan struct{} // closed with the process
}

// Serve starts a server over a database, on any free ports, with more environment variables.
// Its policies are login, budget and queue, with limits of 3, 100 and 1 in 1000 hours.
func Serve(t *testing.T, database string, env []string, args ...string) *Serving {
	t.Helper()
	args = append([]string{"serve", "--json", "--timeout", "1m", "--http", "localhost:0", "--grpc", "localhost:0", "--admin", "localhost:0", "--policies", File(t, "policies.yaml", served)}, args...)
	s := &Serving{Cmd: Command(t, database, args...), Ended: make(chan struct{})}
	s.Stderr, s.Env = &s.Said, append(s.Env, env...)
	stdout := must.OK(s.StdoutPipe())(t)
	must.Succeed(t, s.Start())
	err := json.NewDecoder(stdout).Decode(s)
	go func() {
		defer close(s.Ended)
		_, _ = io.Copy(io.Discard, stdout)
		_ = s.Wait() // the exit code reports it
	}()
	t.Cleanup(func() { _ = s.Process.Kill(); <-s.Ended })
	if err != nil {
		_ = s.Process.Kill()
		<-s.Ended
		t.Fatalf("%v; stderr %s", err, &s.Said)
	}
	return s
}

// File writes a file of the test.
func File(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Token makes a token by the command, and returns it with its line.
func Token(t *testing.T, name, scopes string) (token, line string) {
	t.Helper()
	var made struct{ Token, Line string }
	PglimitJSON(t, &made, "", "serve", "token", name, "--scopes", scopes)
	return made.Token, made.Line + "\n"
}
