package testworld

import (
	"bytes"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Wire is a network between clients and the server, without TLS. It fails when something
// that the test names passes.
type Wire struct {
	URL      string
	Vanished chan struct{} // closed when the network has vanished
	Away     atomic.Bool   // it closes connections at once
	End      func()        // closes all connections: a pool waits long for one that says nothing

	lost, stalled, last atomic.Pointer[[]byte]
	vanish              sync.Once
	ended               chan struct{}
	mu                  sync.Mutex
	conns               []net.Conn
	running             sync.WaitGroup
}

// NewWire creates a wire to the database at address, which ends with the test.
func NewWire(t *testing.T, address string) *Wire {
	t.Helper()
	return NewWireAt(t, "127.0.0.1", address)
}

// NewWireAt creates a wire whose clients reach it at host, an address of this machine.
func NewWireAt(t *testing.T, host, address string) *Wire {
	t.Helper()
	to, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	if to.ConnConfig.TLSConfig != nil && len(to.ConnConfig.Fallbacks) == 0 {
		t.Fatal("this test looks into what the server says: take an address of a server that does not insist on TLS")
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	network, socket := pgconn.NetworkAddress(to.ConnConfig.Host, to.ConnConfig.Port)
	w := &Wire{URL: Through(t, WithoutTLS(t, address), listener.Addr().String()), Vanished: make(chan struct{}), ended: make(chan struct{})}
	w.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			if w.Away.Load() {
				_ = client.Close()
				continue
			}
			server, err := net.Dial(network, socket)
			if err != nil {
				t.Error(err)
				_ = client.Close()
				return
			}
			w.mu.Lock()
			w.conns = append(w.conns, client, server)
			w.mu.Unlock()
			w.running.Go(func() { w.pass(server, client, false) })
			w.running.Go(func() { w.pass(client, server, true) })
		}
	})
	w.End = sync.OnceFunc(func() {
		close(w.ended)
		_ = listener.Close()
		w.Cut()
		w.running.Wait()
	})
	t.Cleanup(w.End)
	return w
}

// Cut closes all connections, and new ones at once until it is not Away.
func (w *Wire) Cut() {
	w.Away.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close() // it may be closed
	}
}

// LoseAnswer loses the next answer that contains this text, with its connection.
func (w *Wire) LoseAnswer(text string) { w.lost.Store(new([]byte(text))) }

// Stall holds back each answer that contains this text, and all that follow it.
func (w *Wire) Stall(text string) { w.stalled.Store(new([]byte(text))) }

// VanishAt makes the network vanish when a client sends this text: from then on it passes
// nothing on, no end of a connection either.
func (w *Wire) VanishAt(text string) { w.last.Store(new([]byte(text))) }

// HasVanished reports whether the network passes nothing on.
func (w *Wire) HasVanished() bool {
	select {
	case <-w.Vanished:
		return true
	default:
		return false
	}
}

// pass passes on what from sends.
func (w *Wire) pass(to, from net.Conn, answers bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		has := func(text *[]byte) bool { return text != nil && bytes.Contains(buffer[:n], *text) }
		if !answers && has(w.last.Load()) {
			w.vanish.Do(func() { close(w.Vanished) })
		}
		if w.HasVanished() {
			return // and leave both ends open
		}
		if text := w.lost.Load(); err != nil || answers && has(text) && w.lost.CompareAndSwap(text, nil) {
			_ = to.Close()
			return
		}
		if answers && has(w.stalled.Load()) {
			<-w.ended
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
