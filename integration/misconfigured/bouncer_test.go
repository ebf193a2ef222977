package misconfigured

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/localpg/process"
)

// findPgBouncer returns the path of PgBouncer. scripts/setup installs it as root on
// Debian; elsewhere its error has the command that does.
var findPgBouncer = sync.OnceValues(func() (string, error) {
	if path, err := lookPgBouncer(); err == nil {
		return path, nil
	}
	if out, err := exec.Command("../testdata/checkout/scripts/setup", "pooler").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return lookPgBouncer()
})

// lookPgBouncer also looks where Debian has it, which is not in the PATH of every user.
func lookPgBouncer() (string, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		return exec.LookPath("/usr/sbin/pgbouncer")
	}
	return path, nil
}

// The user of startPgBouncer.
const bouncerUser, bouncerPassword = "app", "secret"

// startPgBouncer starts a PgBouncer in transaction mode with that many connections to
// the database at address. Its clients log in as bouncerUser and reach the server as the
// user of address. more are lines of its [databases]. It returns the address for clients.
func startPgBouncer(t *testing.T, address string, connections int, more ...string) string {
	t.Helper()
	path, err := findPgBouncer()
	if err != nil {
		t.Fatal(err)
	}
	server, err := pgconn.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	account, err := process.RunAs("", true) // PgBouncer refuses to run as root
	if err != nil {
		t.Fatal(err)
	}
	temporary, err := account.TempDir(func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(temporary, "pglimit-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	port := freePort(t)
	at := fmt.Sprintf("host=%s port=%d user=%s password=%s", server.Host, server.Port, server.User, server.Password)
	databases := fmt.Sprintf("%s = %s dbname=%s\nnowhere = %s dbname=nowhere\n", server.Database, at, server.Database, at)
	for _, line := range more {
		databases += line + "\n"
	}
	ini, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users")
	for name, content := range map[string]string{
		users: fmt.Sprintf("%q %q\n", bouncerUser, bouncerPassword),
		ini: "[databases]\n" + databases + `[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ` + strconv.Itoa(port) + `
unix_socket_dir =
auth_type = md5
auth_file = ` + users + `
pool_mode = transaction
max_client_conn = 200
server_login_retry = 0.1
default_pool_size = ` + strconv.Itoa(connections) + `
`,
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		own(t, account, name)
	}
	own(t, account, dir)
	cmd := exec.Command(path, "-q", ini)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // PgBouncer has its own copy
	cmd.Stdout, cmd.Stderr = log, log
	account.Apply(cmd)
	p, err := process.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.KillTree(); err != nil {
			t.Error(err)
		}
	})
	client := url.URL{
		Scheme: "postgres", User: url.UserPassword(bouncerUser, bouncerPassword),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Path: "/" + server.Database, RawQuery: "sslmode=disable",
	}
	bed.Eventually(t, "PgBouncer accepts connections", func(ctx context.Context) (bool, error) {
		if p.Ended() {
			said, _ := os.ReadFile(log.Name())
			return false, fmt.Errorf("PgBouncer ended: %s", said)
		}
		conn, err := pgx.Connect(ctx, client.String())
		if err != nil {
			var answer *pgconn.PgError
			if errors.As(err, &answer) {
				return false, err
			}
			return false, nil
		}
		return true, conn.Close(ctx)
	})
	return client.String()
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// own gives a file or directory to an account.
func own(t *testing.T, account *process.Account, name string) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := account.Own(f); err != nil {
		t.Fatal(err)
	}
}
