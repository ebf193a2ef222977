package testworld

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
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/internal/localpg/process"
)

// bouncerProgram is the environment variable with the path of the PgBouncer to test, if it
// is not the installed one. scripts/test-pooler unpacks a newer one.
const bouncerProgram = "PGLIMIT_TEST_PGBOUNCER"

// findBouncer returns the path of PgBouncer.
var findBouncer = sync.OnceValues(func() (path string, err error) {
	names := []string{"pgbouncer", "/usr/sbin/pgbouncer"} // Debian has it where only root's PATH looks
	if own := os.Getenv(bouncerProgram); own != "" {
		names = []string{own}
	}
	for _, name := range names {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: scripts/setup pooler installs it, or says how", err)
})

// BouncerKeepsStatements reports whether PgBouncer can keep prepared statements, which it
// can from 1.21 on.
func BouncerKeepsStatements() (bool, error) {
	path, err := findBouncer()
	if err != nil {
		return false, err
	}
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return false, fmt.Errorf("%s --version: %w", path, err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil {
		return false, fmt.Errorf("%s --version: %q: %w", path, out, err)
	}
	return major > 1 || minor >= 21, nil
}

// The user and the password of a Bouncer's clients.
const BouncerUser, BouncerPassword = "app", "secret"

// BouncerConfig says what StartBouncer starts.
type BouncerConfig struct {
	Server      string   // the server's URL, whose user all clients become
	Databases   []string // the databases that clients can name; "*" is all
	More        []string // further lines of [databases]
	Connections int      // to the server, for each database
	Statements  int      // prepared statements to keep for each client; before 1.21 there is no such setting
	Stats       bool     // clients may read PgBouncer's own state
}

// Bouncer is a running PgBouncer in transaction mode.
type Bouncer struct {
	process *process.Process
	dir     string
	port    int
}

// StartBouncer starts a PgBouncer and returns when it accepts connections.
func StartBouncer(ctx context.Context, c BouncerConfig) (_ *Bouncer, err error) {
	path, err := findBouncer()
	if err != nil {
		return nil, err
	}
	ini, err := c.render()
	if err != nil {
		return nil, err
	}
	account, err := process.RunAs("", true) // PgBouncer refuses to run as root
	if err != nil {
		return nil, err
	}
	temporary, err := account.TempDir(func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	b := new(Bouncer)
	if b.dir, err = os.MkdirTemp(temporary, "pglimit-pgbouncer-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.port, err = localpg.FreePort(); err != nil {
		return nil, err
	}
	users, settings := filepath.Join(b.dir, "users"), filepath.Join(b.dir, "pgbouncer.ini")
	for name, content := range map[string]string{
		users:    fmt.Sprintf("%q %q\n", BouncerUser, BouncerPassword),
		settings: ini + fmt.Sprintf("listen_port = %d\nauth_file = %s\n", b.port, users),
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			return nil, err
		}
		if err := own(account, name); err != nil {
			return nil, err
		}
	}
	if err := own(account, b.dir); err != nil {
		return nil, err
	}
	said := new(Buffer)
	cmd := exec.Command(path, "-q", settings)
	cmd.Stdout, cmd.Stderr = said, said
	account.Apply(cmd)
	if b.process, err = process.Start(cmd); err != nil {
		return nil, err
	}
	return b, b.awaitReady(ctx, said)
}

// render renders the settings but for the port and the users' file.
func (c BouncerConfig) render() (string, error) {
	server, err := pgconn.ParseConfig(c.Server)
	if err != nil {
		return "", err
	}
	ini := "[databases]\n"
	at := fmt.Sprintf("host=%s port=%d user=%s", server.Host, server.Port, server.User)
	if server.Password != "" { // an empty one at the end of a line makes PgBouncer ignore the line
		at += " password=" + server.Password
	}
	for _, name := range c.Databases {
		ini += name + " = " + at
		if name != "*" {
			ini += " dbname=" + name
		}
		ini += "\n"
	}
	for _, line := range c.More {
		ini += line + "\n"
	}
	ini += `[pgbouncer]
listen_addr = 127.0.0.1
unix_socket_dir =
auth_type = md5
pool_mode = transaction
max_client_conn = 2000
server_login_retry = 0.1
default_pool_size = ` + strconv.Itoa(c.Connections) + "\n"
	if c.Stats {
		ini += "stats_users = " + BouncerUser + "\n"
	}
	keeps, err := BouncerKeepsStatements()
	if keeps { // even for 0: they keep some by default
		ini += fmt.Sprintf("max_prepared_statements = %d\n", c.Statements)
	}
	return ini, err
}

// awaitReady polls until PgBouncer accepts connections. It asks for PgBouncer's console,
// which needs no server, and is refused.
func (b *Bouncer) awaitReady(ctx context.Context, said *Buffer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // prevents a hang
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, b.URL("pgbouncer"))
		if err == nil {
			return conn.Close(ctx)
		}
		if answer := (*pgconn.PgError)(nil); errors.As(err, &answer) {
			return nil
		}
		if b.process.Ended() {
			return fmt.Errorf("PgBouncer ended: %s", said)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for PgBouncer: %w", err)
		}
	}
}

// URL returns the URL of a database for clients.
func (b *Bouncer) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(BouncerUser, BouncerPassword),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Close ends PgBouncer and removes its files.
func (b *Bouncer) Close() (err error) {
	if b.process != nil {
		err = b.process.KillTree()
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// own gives a file or directory to an account.
func own(account *process.Account, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return account.Own(f)
}
