package sqldb

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
)

// wire is a connection to the server that can be cut between a statement and its answer,
// or stalled there.
type wire struct {
	url   string
	stuck atomic.Pointer[[]byte] // the answer that contains this is stalled, and all that follow
	cut   atomic.Pointer[[]byte] // the answer that contains this is lost with its connection, once

	mu    sync.Mutex
	conns []net.Conn
	ended chan struct{}
}

// newWire creates a wire to the database at address.
func newWire(t *testing.T, address string) *wire {
	t.Helper()
	to, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	if to.ConnConfig.TLSConfig != nil && len(to.ConnConfig.Fallbacks) == 0 {
		t.Fatal("this test looks into what the server says: take an address of a server that does not insist on TLS")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	network, socket := pgconn.NetworkAddress(to.ConnConfig.Host, to.ConnConfig.Port)
	w := &wire{url: bed.Through(t, bed.WithoutTLS(t, address), listener), ended: make(chan struct{})}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
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
			running.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			running.Go(func() { w.answers(client, server) })
		}
	})
	t.Cleanup(func() {
		close(w.ended)
		err := listener.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			if e := c.Close(); !errors.Is(e, net.ErrClosed) {
				err = errors.Join(err, e)
			}
		}
		w.mu.Unlock()
		running.Wait()
		if err != nil {
			t.Error(err)
		}
	})
	return w
}

// answers passes on the server's answers.
func (w *wire) answers(client, server net.Conn) {
	defer client.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if what := w.cut.Load(); what != nil && bytes.Contains(buffer[:n], *what) && w.cut.CompareAndSwap(what, nil) {
			return
		}
		if what := w.stuck.Load(); what != nil && bytes.Contains(buffer[:n], *what) {
			<-w.ended
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// loseAnswer loses the next answer that contains this text.
func (w *wire) loseAnswer(what string) { b := []byte(what); w.cut.Store(&b) }

// stall stalls every answer that contains this text: all, if it is empty.
func (w *wire) stall(what string) { b := []byte(what); w.stuck.Store(&b) }
