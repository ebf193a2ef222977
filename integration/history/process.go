//go:build unix

package history

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/limiter"
)

// process is a limiter with a separate pool: one process of an application.
type process struct {
	number  int
	pool    *pgxpool.Pool
	limiter *limiter.Limiter
	clock   clock
	cut     atomic.Bool // drops the answer to the next statement
}

// Even processes share statements among their callers. The first two remember denials, and
// the last one is over database/sql.
const processes = 4

// newProcess connects a process whose clock is off by a part of a period.
func newProcess(url string, number int, g *ground) (*process, error) {
	settings, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	p := &process{number: number, clock: clock{g, int64(number%3) * -unit / 32}}
	settings.MaxConns = 8
	dial := settings.ConnConfig.DialFunc
	settings.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &fragile{Conn: c, cut: &p.cut}, nil
	}
	if p.pool, err = pgxpool.NewWithConfig(context.Background(), settings); err != nil {
		return nil, err
	}
	config := &limiter.Config{
		Now: p.clock.read, Timeout: time.Minute, DisableBreaker: true,
		IdempotencyTTL: remember, DenyCacheTTL: cacheFor, DenyCacheKeys: 1024,
		DisableBatching: !batches(number), DisableDenyCache: number > 1,
		Logger: slog.New(slog.DiscardHandler),
	}
	if number == processes-1 {
		db := stdlib.OpenDBFromPool(p.pool)
		db.SetMaxOpenConns(4)
		p.limiter, err = limiter.NewSQL(db, config)
	} else {
		p.limiter, err = limiter.New(p.pool, config)
	}
	if err != nil {
		p.pool.Close()
		return nil, err
	}
	return p, nil
}

// batches reports whether the requests of a process share statements.
func batches(number int) bool { return number%2 == 0 }

func (p *process) close() {
	_ = p.limiter.Close()
	p.pool.Close()
}

// fragile is a connection that loses the answer to a statement if it is told to: the
// statement is sent, and then the connection closes.
type fragile struct {
	net.Conn
	cut *atomic.Bool
}

func (c *fragile) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil && c.cut.CompareAndSwap(true, false) {
		_ = c.Conn.Close()
	}
	return n, err
}

// play lets clients of the processes do all operations of scenes at once, and returns them.
func play(scenes []*scene, seed uint64, of []*process) (all []record) {
	var mu sync.Mutex
	var working sync.WaitGroup
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
			working.Go(func() {
				c.run()
				mu.Lock()
				defer mu.Unlock()
				all = append(all, c.records...)
			})
		}
	}
	working.Wait()
	return all
}
