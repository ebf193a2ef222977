package stores

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/must"
)

// way is a TCP proxy to a server, which can be closed, and can lose the answer to a statement.
type way struct {
	address, server string
	losing          atomic.Bool // the next statement's answer
	losses          atomic.Int64
	wanted          int64
	mu              sync.Mutex
	closed          bool
	connections     map[net.Conn]bool
}

// readyForQuery ends an answer. Outside a transaction, the statement has committed by then.
var readyForQuery = []byte("Z\x00\x00\x00\x05")

func startWay(t *testing.T, config *pgx.ConnConfig) *way {
	t.Helper()
	listener := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	w := &way{address: listener.Addr().String(), server: net.JoinHostPort(config.Host, fmt.Sprint(config.Port)), connections: map[net.Conn]bool{}}
	t.Cleanup(func() {
		_ = listener.Close()
		w.close()
	})
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go w.forward(client)
		}
	}()
	return w
}

// forward carries one connection until an end closes it.
func (w *way) forward(client net.Conn) {
	defer func() { _ = client.Close() }()
	if !w.enter(client) {
		return
	}
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var lose atomic.Bool
	go func() {
		defer func() { _ = server.Close() }()
		_ = carry(server, client, func(sent []byte) bool {
			if bytes.Contains(sent, []byte("pglimit_store.")) && w.losing.CompareAndSwap(true, false) {
				lose.Store(true)
			}
			return true
		})
	}()
	var held []byte
	_ = carry(client, server, func(told []byte) bool {
		if !lose.Load() {
			return true
		}
		if held = append(held, told...); bytes.Contains(held, readyForQuery) {
			w.losses.Add(1)
			_ = client.Close()
		}
		return false
	})
}

// carry copies what passes.
func carry(to io.Writer, from io.Reader, passes func([]byte) bool) error {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && passes(buffer[:n]) {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func (w *way) enter(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.connections[c] = true
	return !w.closed
}

// close ends all connections and lets no new one pass.
func (w *way) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for c := range w.connections {
		_ = c.Close()
	}
	clear(w.connections)
}

func (w *way) open() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = false
}

// loseOne closes the connection of the next statement of a store when the server has answered.
func (w *way) loseOne() {
	w.wanted++
	w.losing.Store(true)
}

// lost checks that it did.
func (w *way) lost(t *testing.T) {
	t.Helper()
	if n := w.losses.Load(); n != w.wanted {
		t.Errorf("%d answers were lost, want %d", n, w.wanted)
	}
}
