package localpg

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/must"
)

// TestFreePort: the system gives a free port to no program that asks for any.
func TestFreePort(t *testing.T) {
	t.Parallel()
	port := must.OK(FreePort())(t)
	for range 100 {
		l := must.OK(net.Listen("tcp4", "127.0.0.1:0"))(t)
		defer l.Close()
		if given := l.Addr().(*net.TCPAddr).Port; given <= port {
			t.Errorf("port %d was given out, and %d was chosen as free", given, port)
		}
	}
}

// TestTakenPortLearnsNothing gives the server's port to another program between its choice
// and the server's start. Nothing connects to that program, and clients with the URL demand
// a proof that the server knows the password.
func TestTakenPortLearnsNothing(t *testing.T) {
	t.Parallel()
	s := start(t, Options{TCP: true})
	listener := must.OK(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer listener.Close()
	must.Succeed(t, s.Stop(t.Context()))
	s.port = listener.Addr().(*net.TCPAddr).Port
	if err := s.Restart(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("Restart on a taken port: %v, want %v", err, errPortTaken)
	}
	ours := must.OK(net.Dial("tcp4", listener.Addr().String()))(t)
	defer ours.Close()
	first := must.OK(listener.Accept())(t)
	defer first.Close()
	if first.RemoteAddr().String() != ours.LocalAddr().String() {
		t.Error("Restart connected to the other program")
	}
	if !strings.Contains(s.URL(), "require_auth=scram-sha-256") {
		t.Errorf("%s: clients would send the password to any server", strings.ReplaceAll(s.URL(), s.password, "***"))
	}
}

// TestTCPServer also uses the data again, with the password in the data directory.
func TestTCPServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachable(t), "data")
	for _, rows := range []string{"1", "2"} {
		s := start(t, Options{TCP: true, DataDir: dir})
		if got := query(t, s.URL(), "create table if not exists t (n int)", "insert into t values (7)", "select count(*)::text from t"); got != rows {
			t.Errorf("t holds %s rows, want %s", got, rows)
		}
		if got := query(t, s.URL(), "show listen_addresses"); got != "127.0.0.1" {
			t.Errorf("listen_addresses is %q", got)
		}
		if got := query(t, s.URL(), "show unix_socket_directories"); got != "" {
			t.Errorf("unix_socket_directories is %q", got)
		}
		wrong := strings.Replace(s.URL(), s.password, "wrong", 1)
		if conn, err := pgx.Connect(t.Context(), wrong); err == nil {
			conn.Close(t.Context())
			t.Error("the server accepts any password")
		}
		must.Succeed(t, s.Close())
	}
}

// TestStrangersPidFile: a server whose postmaster.pid names another process or port is
// not taken for ours.
func TestStrangersPidFile(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	must.Succeed(t, s.listening())
	s.pid++
	if err := s.listening(); err == nil || !strings.Contains(err.Error(), "not of ours") {
		t.Errorf("another process: %v", err)
	}
	s.pid--
	s.port++
	if err := s.listening(); err == nil || !strings.Contains(err.Error(), "not of ours") {
		t.Errorf("another port: %v", err)
	}
	s.port--
}
