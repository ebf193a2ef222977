package dashboard_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commandtest"
)

// TestDashboardAddress: an unusable address is reported before a database is opened.
func TestDashboardAddress(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for addr, want := range map[string]string{
		"8090": "not of the form host:port, such as localhost:8080",
		fmt.Sprint("localhost:", taken.Addr().(*net.TCPAddr).Port): "in use: use another address or free this one; localhost:0 selects any free port",
	} {
		code, stdout, stderr := commandtest.Call(t, "dashboard", "--addr", addr, "--database-url", "postgres://nobody@127.0.0.1:1/none")
		if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, want) || strings.Contains(stderr, "database:") {
			t.Errorf("--addr %s: exit code %d, stdout %q, stderr %q, want %q in it", addr, code, stdout, stderr, want)
		}
	}
}

// TestDashboardNoDatabase: a database that is away at the start is an error.
func TestDashboardNoDatabase(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := commandtest.Call(t, "dashboard", "--addr", "localhost:0", "--database-url", "postgres://nobody@127.0.0.1:1/none")
	if code != cli.ExitDatabase || stdout != "" || !strings.Contains(stderr, "connect") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}
