package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// pooler is a connection pooler in transaction mode, modelled on PgBouncer 1.18:
//   - Clients share few connections to the server, each for one transaction at a time.
//   - Prepared statements stay on their connection.
//   - A connection keeps its last client's application_name and outlives the client.
//   - The connection that was used last is taken first.
type pooler struct {
	server  *pgconn.Config
	free    chan struct{} // one for each connection that is idle or not opened yet
	clients sync.WaitGroup
	mu      sync.Mutex
	idle    []*pgconn.HijackedConn
	open    map[net.Conn]bool
}

// startPooler starts a pooler with connections to the database at address, and
// returns the address for clients.
func startPooler(t *testing.T, address string, connections int) string {
	t.Helper()
	config := must.OK(pgconn.ParseConfig(address))(t)
	listener := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	p := &pooler{server: config, free: make(chan struct{}, connections), open: map[net.Conn]bool{}}
	for range connections {
		p.free <- struct{}{}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p.clients.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.open[conn] = true
			p.mu.Unlock()
			p.clients.Go(func() {
				if err := p.serve(ctx, conn); err != nil {
					t.Logf("pooler: %v", err)
				}
				conn.Close()
				p.mu.Lock()
				delete(p.open, conn)
				p.mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		stop()
		listener.Close()
		p.mu.Lock()
		for conn := range p.open {
			conn.Close()
		}
		p.mu.Unlock()
		p.clients.Wait()
		for _, server := range p.idle {
			server.Conn.Close()
		}
	})
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", url.PathEscape(config.User), listener.Addr(), url.PathEscape(config.Database))
}

// serve serves one client until it disconnects.
func (p *pooler) serve(ctx context.Context, conn net.Conn) error {
	client := pgproto3.NewBackend(conn, conn)
	first, err := client.ReceiveStartupMessage()
	if err != nil {
		return nil // it went away
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return nil // a request to cancel a statement, which this pooler does not pass on
	}
	client.Send(&pgproto3.AuthenticationOk{})
	for name, value := range map[string]string{"server_version": "15.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"} {
		client.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	client.Send(&pgproto3.BackendKeyData{ProcessID: 1 << 30, SecretKey: []byte{0, 0, 0, 0}}) // of no process
	client.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := client.Flush(); err != nil {
		return nil
	}
	for {
		message, err := client.Receive()
		if err != nil {
			return nil
		}
		if _, ok := message.(*pgproto3.Terminate); ok {
			return nil
		}
		if err := p.transaction(ctx, client, message, startup.Parameters["application_name"]); err != nil {
			return err
		}
	}
}

// transaction takes a connection for the whole transaction that a message begins.
func (p *pooler) transaction(ctx context.Context, client *pgproto3.Backend, message pgproto3.FrontendMessage, name string) (err error) {
	server, err := p.take(ctx)
	if err != nil {
		return err
	}
	defer func() { p.giveBack(server, err == nil) }()
	to := server.Frontend
	to.Send(&pgproto3.Query{String: "SET application_name = '" + name + "'"})
	if _, err := answers(to, nil); err != nil {
		return err
	}
	for {
		to.Send(message)
		switch message.(type) {
		case *pgproto3.Query, *pgproto3.Sync:
			status, err := answers(to, client)
			if err != nil || status == 'I' {
				return err
			}
		}
		if message, err = client.Receive(); err != nil {
			return errors.New("a client went away in a transaction")
		}
		if _, ok := message.(*pgproto3.Terminate); ok {
			return errors.New("a client ended in a transaction")
		}
	}
}

// take waits for a connection, and opens it if there is none yet.
func (p *pooler) take(ctx context.Context) (*pgconn.HijackedConn, error) {
	<-p.free
	p.mu.Lock()
	if last := len(p.idle) - 1; last >= 0 {
		server := p.idle[last]
		p.idle = p.idle[:last]
		p.mu.Unlock()
		return server, nil
	}
	p.mu.Unlock()
	made, err := pgconn.ConnectConfig(ctx, p.server)
	if err == nil {
		var server *pgconn.HijackedConn
		if server, err = made.Hijack(); err == nil {
			return server, nil
		}
	}
	p.free <- struct{}{}
	return nil, err
}

// giveBack returns a connection, or closes it if it is in the middle of something.
func (p *pooler) giveBack(server *pgconn.HijackedConn, whole bool) {
	p.mu.Lock()
	if whole {
		p.idle = append(p.idle, server)
	} else {
		server.Conn.Close()
	}
	p.mu.Unlock()
	p.free <- struct{}{}
}

// answers passes the server's answers on to client, if there is one, and returns the
// transaction's status. A client that has disconnected is not an error of the server.
func answers(server *pgproto3.Frontend, client *pgproto3.Backend) (status byte, err error) {
	if err := server.Flush(); err != nil {
		return 0, err
	}
	for {
		message, err := server.Receive()
		if err != nil {
			return 0, err
		}
		if client != nil {
			client.Send(message)
		}
		if ready, ok := message.(*pgproto3.ReadyForQuery); ok {
			if client != nil {
				_ = client.Flush() // the next Receive fails then
			}
			return ready.TxStatus, nil
		}
	}
}

// TestProveThroughPooler: a proof works behind a pooler in transaction mode if its URL
// prepares no statements. It ends no connection, and leaves no rows although the pooler
// keeps its connections.
func TestProveThroughPooler(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pooled := startPooler(t, address, 3)
	for _, c := range []struct{ mode, kill string }{
		{"exec", "--kill=false"}, {"cache_describe", "--kill=false"}, {"simple_protocol", "--kill=false"}, {"exec", "--kill"},
	} {
		code, stdout, stderr := testworld.Pglimit(t, pooled+"&default_query_exec_mode="+c.mode, "prove", "--for", "700ms", "--workers", "6", c.kill, "--json")
		var p proof
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != 0 || !p.Holds || !p.Pooler || p.Killed != 0 {
			t.Errorf("%s, %s: exit code %d, %v: %s%s", c.mode, c.kill, code, err, stdout, stderr)
		}
		const described = "one that does not tell its name in transaction mode"
		if p.Through != described || !strings.Contains(stderr, "through a pooler: "+described) {
			t.Errorf("%s, %s: through %q, %s", c.mode, c.kill, p.Through, stderr)
		}
		if n := leftovers(t, testworld.Connect(t, address)); n != 0 {
			t.Errorf("%s, %s: it left %d rows", c.mode, c.kill, n)
		}
	}
}

// TestProvePreparedThroughPooler: if the pooler separates prepared statements from their
// connections, a decision is made without them, with a warning. A proof, whose
// transactions fail, ends. Both name the setting to change, and no rows are left.
func TestProvePreparedThroughPooler(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pooled := startPooler(t, address, 1)
	testworld.Pglimit(t, pooled, "allow", "--limit", "10", "k") // which prepares a statement
	const setting = "default_query_exec_mode=exec"
	code, stdout, stderr := testworld.Pglimit(t, pooled, "allow", "--limit", "10", "k")
	if code != 0 || !strings.HasPrefix(stdout, "allowed: 8 of 10") || strings.Count(stderr, setting) != 1 {
		t.Errorf("allow: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	for _, args := range []string{"prove --for 5s --workers 4 --kill=false", "prove --for 5s --workers 4"} {
		code, stdout, stderr := testworld.Pglimit(t, pooled, strings.Fields(args)...)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		if last := lines[len(lines)-1]; code != 3 || stdout != "" || strings.Count(last, setting) != 1 || strings.Contains(stderr, "clean up") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := testworld.Pglimit(t, pooled+"&default_query_exec_mode=cache_describe", "allow", "--limit", "10", "k"); code != 0 {
		t.Errorf("with cache_describe: exit code %d, %s%s", code, stdout, stderr)
	}
	if n := testworld.Value[int](t, testworld.Connect(t, address), `SELECT count(*) FROM pglimit_token_bucket WHERE policy <> 'cli'`); n != 0 {
		t.Errorf("it left %d rows", n)
	}
}
