//go:build unix

package history

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/limiter"
)

// process is one process of an application. When it is killed, another takes its place.
type process struct {
	url    string
	number int
	clock  clock
	cut    atomic.Bool  // drops the answer to the next statement
	stops  sync.RWMutex // held while the process is stopped: it sends nothing and reads no answer
	life   atomic.Pointer[life]
}

// life is a limiter with a separate pool, until its process is killed.
type life struct {
	pool    *pgxpool.Pool
	limiter *limiter.Limiter
	mu      sync.Mutex
	conns   []net.Conn
	dead    bool
}

// Even processes share statements among their callers. The first two remember denials, and
// the last one is over database/sql.
const processes = 4

// newProcess connects a process whose clock is off by a part of a period.
func newProcess(url string, number int, g *ground) (*process, error) {
	p := &process{url: url, number: number, clock: clock{g, int64(number%3) * -unit / 32}}
	return p, p.begin()
}

// begin begins a life.
func (p *process) begin() error {
	settings, err := pgxpool.ParseConfig(p.url)
	if err != nil {
		return err
	}
	l := &life{}
	settings.MaxConns = 8
	settings.ConnConfig.RuntimeParams["application_name"] = p.name()
	dial := settings.ConnConfig.DialFunc
	settings.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return l.keep(&fragile{Conn: c, process: p})
	}
	if l.pool, err = pgxpool.NewWithConfig(context.Background(), settings); err != nil {
		return err
	}
	config := &limiter.Config{
		Now: p.clock.read, Timeout: time.Minute, DisableBreaker: true,
		IdempotencyTTL: remember, DenyCacheTTL: cacheFor, DenyCacheKeys: 1024,
		DisableBatching: !batches(p.number), DisableDenyCache: p.number > 1,
		Logger: slog.New(slog.DiscardHandler),
	}
	if p.number == processes-1 {
		db := stdlib.OpenDBFromPool(l.pool)
		db.SetMaxOpenConns(4)
		l.limiter, err = limiter.NewSQL(db, config)
	} else {
		l.limiter, err = limiter.New(l.pool, config)
	}
	if err != nil {
		l.pool.Close()
		return err
	}
	p.life.Store(l)
	return nil
}

// name is the process's, as the server sees it: no other of the grounds' that are used at once has it.
func (p *process) name() string { return fmt.Sprintf("process %d of %p", p.number, p.clock.ground) }

// keep keeps a connection until the process is killed.
func (l *life) keep(c net.Conn) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	l.conns = append(l.conns, c)
	return c, nil
}

// kill ends the process as kill -9 does: its connections close, and what it has in memory is
// lost. Another begins.
func (p *process) kill() error {
	l := p.life.Load()
	l.mu.Lock()
	l.dead = true
	for _, c := range l.conns {
		_ = c.Close() // it may be closed
	}
	l.mu.Unlock()
	err := p.begin()
	go l.close()
	return err
}

func (l *life) close() {
	_ = l.limiter.Close()
	l.pool.Close()
}

// batches reports whether the requests of a process share statements.
func batches(number int) bool { return number%2 == 0 }

func (p *process) close() { p.life.Load().close() }

// fragile is a connection that loses the answer to a statement if it is told to: the
// statement is sent, and then the connection closes.
type fragile struct {
	net.Conn
	*process
}

func (c *fragile) Write(b []byte) (int, error) {
	c.stops.RLock()
	n, err := c.Conn.Write(b)
	c.stops.RUnlock()
	if err == nil && c.cut.CompareAndSwap(true, false) {
		_ = c.Conn.Close()
	}
	return n, err
}

func (c *fragile) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.stops.RLock()
	defer c.stops.RUnlock()
	return n, err
}

// crash kills the session that runs it, of which the server makes a crash: it ends all others.
const crash = "COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'"

// crashed counts crashes, which harm the scenes of all grounds, as they begin and end.
var crashed atomic.Int64

var crashes = flag.Bool("crashes", false, "kill the server now and then: it must be no one else's")

// harm does to a process what happens to processes: it is killed, stopped for a while, or loses
// its sessions; or, if crashes are wanted, the server is killed.
func (c *client) harm(p *process) {
	switch n := c.rand.IntN(200); {
	case n == 0 && *crashes:
		c.clock.count("crashes of the server")
		crashed.Add(1)
		_, _ = c.life.Load().pool.Exec(context.Background(), crash)
		crashed.Add(1)
	case n < 80:
		c.clock.count("kills")
		_ = p.kill() // it makes no connection
	case n < 140:
		c.clock.count("stops")
		p.stops.Lock()
		time.Sleep(time.Duration(c.rand.Int64N(int64(15 * time.Millisecond))))
		p.stops.Unlock()
	default:
		c.clock.count("sessions ended")
		_, _ = c.life.Load().pool.Exec(context.Background(),
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", p.name())
	}
}

// await waits until the server answers, after an answer was lost.
func (c *client) await() {
	for n := len(c.records); n > 0 && c.records[n-1].Out.Lost; {
		if c.life.Load().pool.Ping(context.Background()) == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// play lets clients of the processes do all operations of scenes at once, and returns them.
func play(scenes []*scene, seed uint64, of []*process) (all []record) {
	var mu sync.Mutex
	var working sync.WaitGroup
	before := crashed.Load()
	for _, p := range of { // an operation that sent nothing has left it set
		p.cut.Store(false)
	}
	for i, s := range scenes {
		for n := range s.clients {
			neighbours := 1
			if s.sharesStatements() {
				neighbours = 2
			}
			c := newClient(of[(n/neighbours+i)%len(of)], s, n, seed)
			c.peers = of
			working.Go(func() {
				c.run()
				mu.Lock()
				defer mu.Unlock()
				all = append(all, c.records...)
			})
		}
	}
	working.Wait()
	for _, s := range scenes {
		s.Loses = s.Loses || crashed.Load() != before
	}
	return all
}
