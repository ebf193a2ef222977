package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// proxy is a router of shards over two databases. It reads the key of a statement as plain
// routers do: a bare parameter of VALUES or of WHERE. A statement in which it finds none goes
// to a random server. The first statement of a transaction chooses its server.
type proxy struct {
	address string // for clients
	servers [2]*pgxpool.Pool

	mu      sync.Mutex
	keyless []string // statements without a key
	routed  int      // statements with one
	broken  error    // the first thing that no router would carry out
}

// newProxy starts a proxy that ends with the test. Then no key may have rows on both servers,
// and every statement must have had a key, unless the test cleared keyless.
func newProxy(t *testing.T) *proxy {
	t.Helper()
	p := new(proxy)
	for i := range p.servers {
		p.servers[i] = testworld.NewPool(t)
	}
	listener := must.OK((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	p.address = testworld.Through(t, p.servers[0].Config().ConnString(), listener.Addr().String())
	var clients sync.WaitGroup
	clients.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			clients.Go(func() {
				defer conn.Close()
				if err := p.serve(conn); err != nil {
					p.breaks(err)
				}
			})
		}
	})
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		clients.Wait()
		p.check(t)
	})
	return p
}

func (p *proxy) breaks(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = cmp.Or(p.broken, err)
}

// client is a client's session.
type client struct {
	*proxy
	front   *pgproto3.Backend
	servers [2]*server
	texts   map[string]*pgproto3.Parse // statements by name
	pending []string                   // what began a transaction that has no server yet
	pinned  *server                    // of the transaction
}

// server is a session on a server.
type server struct {
	*pgproto3.Frontend
	prepared map[string]bool
}

func (p *proxy) serve(conn net.Conn) error {
	c := &client{proxy: p, front: pgproto3.NewBackend(conn, conn), texts: map[string]*pgproto3.Parse{}}
	if first, err := c.front.ReceiveStartupMessage(); err != nil {
		return nil // the client has gone
	} else if _, ok := first.(*pgproto3.StartupMessage); !ok {
		return nil // a request to cancel
	}
	c.front.Send(&pgproto3.AuthenticationOk{})
	for i, pool := range p.servers {
		s, err := pgconn.ConnectConfig(context.Background(), &pool.Config().ConnConfig.Config)
		if err != nil {
			return err
		}
		raw, err := s.Hijack()
		if err != nil {
			return err
		}
		defer raw.Conn.Close()
		c.servers[i] = &server{raw.Frontend, map[string]bool{}}
		for name, value := range raw.ParameterStatuses {
			if i == 0 {
				c.front.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
			}
		}
	}
	c.front.Send(&pgproto3.BackendKeyData{SecretKey: []byte{0, 0, 0, 0}})
	if err := c.ready('I'); err != nil {
		return nil
	}
	var group []pgproto3.FrontendMessage
	for {
		msg, err := c.front.Receive()
		if err != nil {
			return nil
		}
		switch msg := msg.(type) {
		case *pgproto3.Terminate:
			return nil
		case *pgproto3.Query:
			err = c.simple(msg.String)
		case *pgproto3.Sync:
			err = c.extended(group)
			group = nil
		default:
			group = append(group, kept(msg))
		}
		if err != nil {
			return err
		}
	}
}

// kept returns a copy of a message that the next Receive does not overwrite.
func kept(msg pgproto3.FrontendMessage) pgproto3.FrontendMessage {
	var copied pgproto3.FrontendMessage
	switch msg.(type) {
	case *pgproto3.Parse:
		copied = new(pgproto3.Parse)
	case *pgproto3.Bind:
		copied = new(pgproto3.Bind)
	case *pgproto3.Describe:
		copied = new(pgproto3.Describe)
	case *pgproto3.Execute:
		copied = new(pgproto3.Execute)
	case *pgproto3.Close:
		copied = new(pgproto3.Close)
	default:
		panic(fmt.Sprintf("a message %T", msg))
	}
	data, err := msg.Encode(nil)
	if err == nil {
		err = copied.Decode(data[5:])
	}
	if err != nil {
		panic(err)
	}
	return copied
}

func (c *client) ready(status byte) error {
	c.front.Send(&pgproto3.ReadyForQuery{TxStatus: status})
	return c.front.Flush()
}

// simple carries a statement without parameters out.
func (c *client) simple(text string) error {
	verb, _, _ := strings.Cut(strings.ToUpper(strings.TrimSpace(text)), " ")
	verb = strings.TrimRight(verb, ";")
	begun := len(c.pending) > 0
	switch {
	case c.pinned != nil:
		return c.forward(c.pinned, &pgproto3.Query{String: text})
	case verb == "BEGIN" && !begun, verb == "SAVEPOINT" && begun, verb == "RELEASE" && begun,
		verb == "ROLLBACK" && begun && strings.Contains(strings.ToLower(text), " to "):
		c.pending = append(c.pending, text)
		c.front.Send(&pgproto3.CommandComplete{CommandTag: []byte(verb)})
		return c.ready('T')
	case text == "-- ping": // of database/sql
		c.front.Send(&pgproto3.EmptyQueryResponse{})
		return c.ready('I')
	case begun && (verb == "COMMIT" || verb == "ROLLBACK"):
		c.pending = nil
		c.front.Send(&pgproto3.CommandComplete{CommandTag: []byte(verb)})
		return c.ready('I')
	}
	s, err := c.choose(c.random(text))
	if err != nil {
		return err
	}
	return c.forward(s, &pgproto3.Query{String: text})
}

// random returns a random server for a statement without a key.
func (c *client) random(text string) *server {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keyless = append(c.keyless, text)
	return c.servers[rand.IntN(len(c.servers))]
}

// choose returns s, on which a transaction that has no server yet begins. A transaction that
// has another fails.
func (c *client) choose(s *server) (*server, error) {
	if c.pinned != nil && c.pinned != s {
		return nil, errors.New("a transaction reached a second server")
	}
	if len(c.pending) > 0 {
		c.pinned = s
	}
	for _, text := range c.pending {
		if err := s.alone(&pgproto3.Query{String: text}); err != nil {
			return nil, err
		}
	}
	c.pending = nil
	return s, nil
}

// alone sends messages whose answer the client does not get.
func (s *server) alone(messages ...pgproto3.FrontendMessage) error {
	for _, m := range messages {
		s.Send(m)
	}
	if err := s.Flush(); err != nil {
		return err
	}
	for {
		switch msg, err := s.Receive(); msg := msg.(type) {
		case nil:
			return err
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(msg)
		case *pgproto3.ReadyForQuery:
			return nil
		}
	}
}

// forward sends messages and returns their answer to the client.
func (c *client) forward(s *server, messages ...pgproto3.FrontendMessage) error {
	for _, m := range messages {
		s.Send(m)
	}
	if err := s.Flush(); err != nil {
		return err
	}
	for {
		msg, err := s.Receive()
		if err != nil {
			return err
		}
		if end, ok := msg.(*pgproto3.ReadyForQuery); ok {
			if end.TxStatus == 'I' {
				c.pinned = nil
			}
			if len(c.pending) > 0 {
				return c.ready('T')
			}
			return c.ready(end.TxStatus)
		}
		c.front.Send(msg)
	}
}

// extended carries the messages of a Sync out.
func (c *client) extended(group []pgproto3.FrontendMessage) error {
	var to *server
	for _, m := range group {
		switch m := m.(type) {
		case *pgproto3.Parse:
			c.texts[m.Name] = m
		case *pgproto3.Bind:
			parse := c.texts[m.PreparedStatement]
			s, err := c.serverOf(parse.Query, m)
			switch {
			case err != nil:
				return err
			case to != nil && to != s:
				return fmt.Errorf("statements of one pipeline belong to two servers: %s", parse.Query)
			}
			to = s
		}
	}
	if to == nil { // nothing is executed
		to = cmp.Or(c.pinned, c.servers[0])
	} else if _, err := c.choose(to); err != nil {
		return err
	}
	for _, m := range group {
		switch m := m.(type) {
		case *pgproto3.Parse:
			to.prepared[m.Name] = true
		case *pgproto3.Bind:
			if to.prepared[m.PreparedStatement] {
				continue
			}
			if err := to.alone(c.texts[m.PreparedStatement], &pgproto3.Sync{}); err != nil {
				return err
			}
			to.prepared[m.PreparedStatement] = true
		case *pgproto3.Close:
			for _, s := range c.servers {
				if s != to && s.prepared[m.Name] {
					if err := s.alone(m, &pgproto3.Sync{}); err != nil {
						return err
					}
				}
				delete(s.prepared, m.Name)
			}
		}
	}
	return c.forward(to, append(slices.Clone(group), &pgproto3.Sync{})...)
}

var (
	inserted = regexp.MustCompile(`INSERT INTO \w+\s*\(policy, key,[^)]*\)\s*VALUES \(\$(\d+), \$(\d+),`)
	selected = regexp.MustCompile(`\bpolicy = \$(\d+) AND (?:\w+\.)?key = \$(\d+)(?:[^\d:]|$)`)
)

// serverOf returns the server of a statement's key. All that it names must be the same.
func (c *client) serverOf(text string, bind *pgproto3.Bind) (*server, error) {
	var policy, key *string
	for _, match := range append(inserted.FindAllStringSubmatch(text, -1), selected.FindAllStringSubmatch(text, -1)...) {
		for i, named := range []**string{&policy, &key} {
			n, err := strconv.Atoi(match[1+i])
			if err != nil || n > len(bind.Parameters) {
				return nil, fmt.Errorf("parameter %s of %d: %s", match[1+i], len(bind.Parameters), text)
			}
			value := string(bind.Parameters[n-1])
			if *named != nil && **named != value {
				return nil, fmt.Errorf("%q and %q in one statement: %s", **named, value, text)
			}
			*named = &value
		}
	}
	if key == nil {
		if c.pinned != nil {
			c.random(text)
			return c.pinned, nil
		}
		return c.random(text), nil
	}
	c.mu.Lock()
	c.routed++
	c.mu.Unlock()
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(*key))
	return c.servers[hash.Sum32()%uint32(len(c.servers))], nil
}

// check fails the test if a key has rows on both servers.
func (p *proxy) check(t *testing.T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		t.Error(p.broken)
	}
	for _, text := range p.keyless {
		t.Errorf("no key in %q", text)
	}
	if p.routed == 0 {
		t.Error("nothing was routed")
	}
	var both [2]map[string]bool
	for i, pool := range p.servers {
		both[i] = map[string]bool{}
		for _, table := range []string{"leaky_bucket", "leaky_bucket_queue", "token_bucket", "fixed_window", "sliding_window_counter", "sliding_window_log", "attempt", "slot", "reservation"} {
			var rows []string // the test's context has ended
			must.Succeed(t, pool.QueryRow(context.Background(), "SELECT coalesce(array_agg(DISTINCT policy || ' ' || key), '{}') FROM pglimit_"+table).Scan(&rows))
			for _, row := range rows {
				both[i][table+" "+row] = true
			}
		}
		if len(both[i]) == 0 {
			t.Errorf("server %d has no row", i)
		}
	}
	for row := range both[0] {
		if both[1][row] {
			t.Errorf("both servers have %s", row)
		}
	}
}
