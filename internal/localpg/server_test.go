package localpg

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/must"
)

// start starts a server for a test. make test leaves this package out if the machine has no
// server.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	begin := time.Now()
	s := must.OK(Start(t.Context(), o))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("PostgreSQL %s of %s started in %v", s.Version(), s.BinDir(), time.Since(begin).Round(time.Millisecond))
	return s
}

// reachable creates a directory for a test. For root, the server's user can enter it, unlike
// t.TempDir.
func reachable(t *testing.T) string {
	t.Helper()
	dir := must.OK(os.MkdirTemp("", "pglimit-test-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.Succeed(t, os.Chmod(dir, 0o755))
	return dir
}

// query runs statements and returns the last one's single value as text.
func query(t *testing.T, url string, statements ...string) (value string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for i, sql := range statements {
		if i < len(statements)-1 {
			_, err = conn.Exec(t.Context(), sql)
		} else {
			err = conn.QueryRow(t.Context(), sql).Scan(&value)
		}
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return value
}

func TestCommittedDataSurviveKillStopAndRestart(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Settings: map[string]string{"fsync": "off", "max_connections": "42"}})
	if got := query(t, s.URL(), "create table t (n int)", "insert into t values (7)", "show max_connections"); got != "42" {
		t.Errorf("max_connections is %s, want the setting given", got)
	}
	first := s.URL()

	for _, end := range []struct {
		name string
		call func() error
	}{
		{"Kill", s.Kill},
		{"Stop", func() error { return s.Stop(t.Context()) }},
		{"nothing", func() error { return nil }},
	} {
		// An open connection must not prevent any of them.
		held := must.OK(pgx.Connect(t.Context(), s.URL()))(t)
		begin := time.Now()
		if err := end.call(); err != nil {
			t.Fatalf("%s: %v", end.name, err)
		}
		ended := time.Now()
		if end.name != "nothing" {
			if conn, err := pgx.Connect(t.Context(), s.URL()); err == nil {
				conn.Close(t.Context())
				t.Fatalf("after %s the server still answers", end.name)
			}
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatalf("Restart after %s: %v", end.name, err)
		}
		t.Logf("%s took %v, Restart %v", end.name, ended.Sub(begin).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
		held.Close(t.Context())
		if got := query(t, s.URL(), "select n::text from t"); got != "7" {
			t.Errorf("after %s and Restart t holds %q, want 7", end.name, got)
		}
	}
	if s.URL() != first {
		t.Error("Restart changed the URL")
	}
}

func TestCloseRemovesTheDirectory(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	must.OK(os.Stat(s.dataDir))(t)
	for range 2 {
		must.Succeed(t, s.Close())
	}
	if _, err := os.Stat(s.runDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Close left %s: %v", s.runDir, err)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("Restart after Close: %v, want %v", err, errClosed)
	}
}

// TestDataDirInUse starts a second server on a directory in use. It waits for the first to
// end, and gives up when its context ends.
func TestDataDirInUse(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachable(t), "data")
	first := start(t, Options{DataDir: dir})

	// second starts another server, and returns when it was refused once.
	second := func(ctx context.Context) <-chan error {
		result := make(chan error, 1)
		go func() {
			s, err := Start(ctx, Options{DataDir: dir})
			if err == nil {
				err = s.Close()
			}
			result <- err
		}()
		for {
			logs, _ := filepath.Glob(filepath.Join(filepath.Dir(first.runDir), "pglimit-pg-*", "postgres.log"))
			for _, log := range logs {
				if text, err := os.ReadFile(log); err == nil && strings.Contains(string(text), `running in data directory "`+dir) {
					return result
				}
			}
			select {
			case err := <-result:
				t.Fatalf("the second server was not refused: %v", err)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := second(ctx)
	cancel()
	if err := <-result; !errors.Is(err, ErrInUse) && !errors.Is(err, context.Canceled) {
		t.Errorf("while the first server runs: %v, want %v", err, ErrInUse)
	}
	result = second(t.Context())
	must.Succeed(t, first.Close())
	if err := <-result; err != nil {
		t.Errorf("once the first server has ended: %v", err)
	}
}

// TestForeignDataDirIsRefused: Start refuses a directory with other content.
func TestForeignDataDirIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "letter.txt"), []byte("Dear …"), 0o600))
	s, err := Start(t.Context(), Options{DataDir: dir})
	if err == nil {
		s.Close()
		t.Fatal("Start accepted a directory with other content")
	}
	if !strings.Contains(err.Error(), "was not made by pglimit") {
		t.Errorf("the error does not say why: %v", err)
	}
}

func TestStartFailureShowsTheLog(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil {
		s.Close()
		t.Fatal("Start accepted an unknown setting")
	}
	if !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("the error does not say why: %v", err)
	}
}

// TestServerEndsWithItsProcess starts a server in another process, kills that process, and
// waits until the server and its directory are gone.
func TestServerEndsWithItsProcess(t *testing.T) {
	if os.Getenv("PGLIMIT_LOCALPG_CHILD") != "" {
		s := must.OK(Start(context.Background(), Options{}))(t)
		os.Stdout.WriteString(s.URL() + " " + s.runDir + "\n")
		select {}
	}
	t.Parallel()
	child := exec.Command(os.Args[0], "-test.run=^TestServerEndsWithItsProcess$")
	child.Env = append(os.Environ(), "PGLIMIT_LOCALPG_CHILD=1")
	stdout := must.OK(child.StdoutPipe())(t)
	must.Succeed(t, child.Start())
	line := must.OK(bufio.NewReader(stdout).ReadString('\n'))(t)
	address, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
	query(t, address, "select 'up'")

	child.Process.Kill()
	child.Wait()
	begin := time.Now()
	tick := time.NewTicker(20 * time.Millisecond) // neither sends a notification
	defer tick.Stop()
	for {
		_, dirErr := os.Stat(dir)
		conn, connErr := pgx.Connect(t.Context(), address)
		if connErr == nil {
			conn.Close(t.Context())
		}
		if connErr != nil && errors.Is(dirErr, fs.ErrNotExist) {
			t.Logf("gone after %v", time.Since(begin).Round(time.Millisecond))
			return
		}
		if time.Since(begin) > time.Minute { // do not wait for ever
			u, _ := url.Parse(address)
			t.Fatalf("the server at %s (%v) or its directory %s (%v) outlived its process", u.Host, connErr, dir, dirErr)
		}
		<-tick.C
	}
}
