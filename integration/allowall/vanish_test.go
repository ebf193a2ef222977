package allowall

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/limiter"
)

// chasm is a network that vanishes in the moment that a client first sends what contains last:
// from then on it passes nothing on, no end of a connection either.
type chasm struct {
	url      string
	vanished chan struct{}
	end      func() // closes all connections: a pool waits long for one that says nothing

	vanish  sync.Once
	mu      sync.Mutex
	conns   []net.Conn
	running sync.WaitGroup
}

func newChasm(t *testing.T, address, last string) *chasm {
	t.Helper()
	to, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	network, socket := pgconn.NetworkAddress(to.ConnConfig.Host, to.ConnConfig.Port)
	c := &chasm{url: bed.Through(t, bed.WithoutTLS(t, address), listener), vanished: make(chan struct{})}
	c.running.Go(func() {
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
			c.mu.Lock()
			c.conns = append(c.conns, client, server)
			c.mu.Unlock()
			c.running.Go(func() { c.pass(server, client, []byte(last)) })
			c.running.Go(func() { c.pass(client, server, nil) })
		}
	})
	c.end = sync.OnceFunc(func() {
		_ = listener.Close()
		c.mu.Lock()
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.running.Wait()
	})
	t.Cleanup(c.end)
	return c
}

func (c *chasm) hasVanished() bool {
	select {
	case <-c.vanished:
		return true
	default:
		return false
	}
}

// pass passes on what from sends, up to the end of the network, which last begins.
func (c *chasm) pass(to, from net.Conn, last []byte) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if last != nil && bytes.Contains(buffer[:n], last) {
			c.vanish.Do(func() { close(c.vanished) })
		}
		if c.hasVanished() {
			return // and leave both ends open
		}
		if err != nil {
			_ = to.Close()
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestAllowAllVanishes: a client vanishes in an AllowAll, after its rows were locked, and its
// connection stays open. The server ends its transaction long before another client's
// Timeout, and nothing of it counts.
func TestAllowAllVanishes(t *testing.T) {
	t.Parallel()
	short := &limiter.Config{Timeout: 300 * time.Millisecond}
	for name, open := range map[string]func(t *testing.T, address string) *limiter.Limiter{
		"pgx": func(t *testing.T, address string) *limiter.Limiter {
			return bed.NewLimiter(t, bed.Connect(t, address), short)
		},
		"pgx without prepared statements": func(t *testing.T, address string) *limiter.Limiter {
			return bed.NewLimiter(t, bed.Connect(t, address+"&default_query_exec_mode=exec"), short)
		},
		"database/sql of pgx": func(t *testing.T, address string) *limiter.Limiter {
			return bed.NewSQL(t, bed.ConnectSQL(t, "pgx", address), short)
		},
		"database/sql of pq": func(t *testing.T, address string) *limiter.Limiter {
			return bed.NewSQL(t, bed.ConnectSQL(t, "postgres", address), short)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := bed.NewDatabase(t)
			network := newChasm(t, address, "commit\x00")
			l, other := open(t, network.url), bed.NewLimiter(t, bed.Connect(t, address), nil)
			p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
			gone := make(chan error, 1)
			go func() {
				for { // on a busy machine one may end before its commit
					_, err := l.AllowAll(t.Context(), p.Request("a", 7), p.Request("b", 7))
					if err == nil || network.hasVanished() {
						gone <- err
						return
					}
				}
			}()
			bed.Receive(t, network.vanished, "the commit")
			r := bed.MustAll(t)(other.AllowAll(t.Context(), p.Request("a", 7), p.Request("b", 7)))
			if !r.Allowed || !bed.Near(r.PerRequest[0].Level, 7) {
				t.Errorf("the other client's %+v", r)
			}
			if err := bed.Receive(t, gone, "the end of the client's own wait"); !errors.Is(err, limiter.ErrUnavailable) {
				t.Errorf("the vanished client's error: %v", err)
			}
			network.end()
		})
	}
}

// TestOwnTransactionsMayNotIdle: our own transactions limit how long they may be idle, but
// not beyond the limit of the session, and leave none in the session.
func TestOwnTransactionsMayNotIdle(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	ctx := t.Context()
	for _, c := range []struct{ session, want string }{
		{"0", "3s"}, {"1d", "3s"}, {"3001ms", "3s"}, {"90min", "3s"}, {"2999ms", "2999ms"}, {"1s", "1s"},
	} {
		pool := bed.Connect(t, address, bed.OneConnection, bed.Setting("idle_in_transaction_session_timeout", c.session))
		db1 := bed.ConnectSQL(t, "pgx", address)
		db1.SetMaxOpenConns(1)
		db2 := bed.ConnectSQL(t, "postgres", address)
		db2.SetMaxOpenConns(1)
		const show = "select current_setting('idle_in_transaction_session_timeout')"
		for name, connections := range map[string]exec.Connections{
			"pgx":                 exec.PGX(pool, 3*time.Second),
			"database/sql of pgx": exec.SQL(db1, 3*time.Second),
			"database/sql of pq":  exec.SQL(db2, 3*time.Second),
		} {
			var session, own, pipelined, after string
			read := func(into *string) exec.Call {
				return func(tx db.DBTX) error { return tx.QueryRow(ctx, show).Scan(into) }
			}
			runner := exec.NewPool(connections)
			set := func(tx db.DBTX) error {
				_, err := tx.Exec(ctx, "select set_config('idle_in_transaction_session_timeout', $1::text, false)", c.session)
				return err
			}
			err := errors.Join(runner.Do(ctx, set), runner.Do(ctx, read(&session)), runner.Within(ctx, read(&own)),
				runner.Within(ctx, func(tx db.DBTX) error { return exec.Together(ctx, tx, []exec.Call{read(&pipelined)}) }),
				runner.Do(ctx, read(&after)))
			if err != nil || own != c.want || pipelined != c.want || after != session {
				t.Errorf("%s: %v; of the session %s, of a transaction %s and %s, want %s; after it %s", name, err, session, own, pipelined, c.want, after)
			}
		}
	}
}

// TestOwnTransactionIdledTooLong: a client that was too slow for the server to wait for its
// commit runs its transaction again, and all of it counts once. lib/pq hides what the server
// said: there the transaction fails, and nothing of it counts. The pool works on.
func TestOwnTransactionIdledTooLong(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	address = newChasm(t, address, "never sent").url // over TCP the last words of a connection are read
	bed.Exec(t, pool, "CREATE TABLE notes (note text)")
	for name, connections := range map[string]exec.Connections{
		"pgx":                 exec.PGX(bed.Connect(t, address), time.Second),
		"database/sql of pgx": exec.SQL(bed.ConnectSQL(t, "pgx", address), time.Second),
		"database/sql of pq":  exec.SQL(bed.ConnectSQL(t, "postgres", address), time.Second),
	} {
		times := 0
		runner := exec.NewPool(connections)
		note := func(tx db.DBTX) error {
			var pid int64
			err := tx.QueryRow(t.Context(), "INSERT INTO notes VALUES ($1::text) RETURNING pg_backend_pid()::bigint", name).Scan(&pid)
			if times++; err == nil && times == 1 {
				bed.Eventually(t, "the server ends the session", func(context.Context) (bool, error) {
					return bed.Value[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0, nil
				})
			}
			return err
		}
		err := runner.Within(t.Context(), note)
		if err != nil && name == "database/sql of pq" {
			if n := bed.Value[int](t, pool, "SELECT count(*) FROM notes WHERE note = $1", name); n != 0 {
				t.Errorf("%s: %d rows after %v", name, n, err)
			}
			err = runner.Within(t.Context(), note)
		}
		if n := bed.Value[int](t, pool, "SELECT count(*) FROM notes WHERE note = $1", name); err != nil || times != 2 || n != 1 {
			t.Errorf("%s: run %d times, %v, %d rows", name, times, err, n)
		}
	}
}
