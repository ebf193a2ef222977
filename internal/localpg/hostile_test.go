package localpg

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// hostile is a program of another user that listens where a client expects its server. It
// asks each client for the password in cleartext or as MD5, and keeps what it receives.
type hostile struct {
	ask     pgproto3.BackendMessage
	mu      sync.Mutex
	asked   int
	learned []string
}

// listenHostile serves clients of listener until the test ends.
func listenHostile(t *testing.T, listener net.Listener, ask pgproto3.BackendMessage) *hostile {
	t.Helper()
	h := &hostile{ask: ask}
	var clients sync.WaitGroup
	clients.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			clients.Go(func() { h.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		clients.Wait()
	})
	return h
}

// serve receives what a client sends after it was asked for its password.
func (h *hostile) serve(conn net.Conn) {
	defer conn.Close()
	client := pgproto3.NewBackend(conn, conn)
	if _, err := client.ReceiveStartupMessage(); err != nil {
		return
	}
	h.mu.Lock()
	h.asked++
	h.mu.Unlock()
	client.Send(h.ask)
	if _, ok := h.ask.(*pgproto3.AuthenticationOk); ok {
		client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'}) // the client would send statements
	}
	if err := client.Flush(); err != nil {
		return
	}
	if err := client.SetAuthType(pgproto3.AuthTypeCleartextPassword); err != nil { // MD5 has the same form
		return
	}
	message, err := client.Receive()
	if err != nil {
		return
	}
	if p, ok := message.(*pgproto3.PasswordMessage); ok {
		h.mu.Lock()
		h.learned = append(h.learned, p.Password)
		h.mu.Unlock()
	}
}

// report returns how many clients were asked, and what they answered.
func (h *hostile) report() (asked int, learned []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked, h.learned
}

// TestTakenPortLearnsNothing gives the server's port to another program between its choice
// and the server's start.
func TestTakenPortLearnsNothing(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]pgproto3.BackendMessage{
		"cleartext": &pgproto3.AuthenticationCleartextPassword{},
		"md5":       &pgproto3.AuthenticationMD5Password{Salt: [4]byte{1, 2, 3, 4}},
		"none":      &pgproto3.AuthenticationOk{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{TCP: true})
			for range 5 {
				listener, err := net.Listen("tcp4", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				h := listenHostile(t, listener, ask)
				if err := s.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.port = listener.Addr().(*net.TCPAddr).Port
				if err := s.Restart(t.Context()); !errors.Is(err, errPortTaken) {
					t.Errorf("Restart on a taken port: %v, want %v", err, errPortTaken)
				}
				if asked, learned := h.report(); asked > 0 || len(learned) > 0 {
					t.Errorf("%d clients connected and sent %q, want none", asked, learned)
				}
				// A client that has the URL from before, when the server was there.
				if conn, err := pgx.Connect(t.Context(), s.URL()); err == nil {
					conn.Close(t.Context())
					t.Error("a client accepted a server that does not know the password")
				}
				if asked, learned := h.report(); asked == 0 || len(learned) > 0 {
					t.Errorf("%d clients connected and sent %q, want one and nothing", asked, learned)
				}
			}
		})
	}
}

// TestTCPServer also uses the data again, whose password is in the data directory.
func TestTCPServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(reachable(t), "data")
	for range 2 {
		s := start(t, Options{TCP: true, DataDir: dir})
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
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStrangersPidFile: a server whose postmaster.pid names another process or port is
// not taken for ours.
func TestStrangersPidFile(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	if err := s.listening(); err != nil {
		t.Fatal(err)
	}
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
