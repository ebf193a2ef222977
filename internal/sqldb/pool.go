package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// Pool is a db.DBTX that runs each statement on a connection of the pool, once. A *sql.DB
// sends a statement again if its driver reports a bad connection. lib/pq reports that
// even if the server has run the statement and only the answer was lost. A refund would
// then be given twice.
//
// Each method returns when its context ends, even if the driver does not: lib/pq waits
// for the server. A goroutine then waits for the driver.
type Pool struct {
	adapter
	db        *sql.DB
	beginning Beginning

	start time.Time
	used  atomic.Int64 // time of a connection's last answer, since start; 0: it failed

	lent atomic.Int64 // connections in use by this Pool

	renewals renewals
}

// Beginning is how transactions begin.
type Beginning interface {
	// Question returns a query that Text depends on; none if its answer is known.
	Question() string
	// Answer records whether the query had a row.
	Answer(found bool)
	// Text returns one or several statements.
	Text() string
}

// NewPool returns a Pool over db. The caller closes db.
func NewPool(db *sql.DB, beginning Beginning) *Pool {
	p := &Pool{db: db, beginning: beginning, start: time.Now()}
	p.adapter.session = p
	return p
}

// InTx runs f in a transaction at read committed. It commits if f returns nil and rolls
// back if not. If ctx ends first, it closes the connection, and so the server rolls back.
//
// A *sql.Tx would begin with a statement of the driver's. This sends a
// Beginning instead, which sets more than the isolation, in one round trip.
func (p *Pool) InTx(ctx context.Context, f func(db.DBTX) error) error {
	var c *sql.Conn
	var waited func() bool
	_, err := leavable(ctx, func() (_ struct{}, err error) {
		if c, err = p.begin(ctx); err == nil {
			waited = context.AfterFunc(ctx, func() { discard(c) })
		}
		return struct{}{}, err
	})
	if err != nil {
		return p.busy(ctx, err)
	}
	defer p.lend()()
	end := "commit"
	if err = f(adapter{ownTx{inTx{c}}}); err != nil {
		end = "rollback"
	}
	_, endErr := leavable(ctx, func() (none struct{}, _ error) {
		if !waited() {
			return none, ctx.Err()
		}
		_, endErr := c.ExecContext(ctx, end)
		if endErr != nil {
			discard(c)
			return none, endErr
		}
		p.done(c, err)
		return none, nil
	})
	if err != nil {
		return err // the cause
	}
	return endErr
}

// discard closes c, once its statement in flight has ended.
func discard(c *sql.Conn) {
	_ = c.Raw(func(any) error { return driver.ErrBadConn }) // which database/sql closes
	_ = c.Close()
}

// begin begins a transaction on a connection, and passes over connections that are bad.
func (p *Pool) begin(ctx context.Context) (*sql.Conn, error) {
	for idle := p.db.Stats().Idle; ; idle-- { // after the idle ones there are only new ones
		c, err := p.open(ctx)
		if err != nil {
			return nil, err
		}
		if err = p.beginOn(ctx, c); err == nil {
			return c, nil
		}
		discard(c) // it may have begun
		if !errors.Is(err, driver.ErrBadConn) || idle < 0 {
			return nil, err
		}
	}
}

func (p *Pool) beginOn(ctx context.Context, c *sql.Conn) error {
	if question := p.beginning.Question(); question != "" {
		// ExecContext: it prepares nothing, which a pooler could lose.
		r, err := c.ExecContext(ctx, question)
		if err != nil {
			return err
		}
		n, err := r.RowsAffected()
		if err != nil {
			return err
		}
		p.beginning.Answer(n > 0)
	}
	_, err := c.ExecContext(ctx, p.beginning.Text())
	return err
}

func (p *Pool) exec(ctx context.Context, sql string, args []any) (int64, error) {
	return on(ctx, p, func(t inTx) (int64, error) { return t.exec(ctx, sql, args) })
}

func (p *Pool) query(ctx context.Context, sql string, args []any) (*rows, error) {
	return on(ctx, p, func(t inTx) (*rows, error) { return t.query(ctx, sql, args) })
}

// ErrBusy: the context ended while all connections were in use by others.
var ErrBusy = errors.New("all connections of the pool are in use")

// Exhausted reports whether all connections are in use by others. The last statement had an
// answer: a pool whose dials hang looks the same otherwise.
func (p *Pool) Exhausted() bool {
	s := p.db.Stats()
	return p.lent.Load() == 0 && s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections && p.used.Load() != 0
}

// lend counts a connection in use. The function that it returns ends that.
func (p *Pool) lend() (done func()) {
	p.lent.Add(1)
	return func() { p.lent.Add(-1) }
}

// busy returns the error err of a call that has had no connection, or an ErrBusy.
func (p *Pool) busy(ctx context.Context, err error) error {
	if err != nil && sending.NotSent(ctx) && p.Exhausted() {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}

// on runs f on a connection of the pool.
func on[T any](ctx context.Context, p *Pool, f func(inTx) (T, error)) (T, error) {
	var lent atomic.Bool
	v, err := leavable(ctx, func() (v T, err error) {
		c, err := p.conn(ctx)
		if err != nil {
			return v, err
		}
		lent.Store(true)
		defer p.lend()()
		defer func() { p.done(c, err) }()
		v, err = f(inTx{c})
		var answer interface{ SQLState() string }
		if err == nil || errors.As(err, &answer) {
			p.used.Store(int64(time.Since(p.start)))
		} else {
			p.used.Store(0) // other connections may be bad as well
		}
		return v, err
	})
	if !lent.Load() {
		err = p.busy(ctx, err)
	}
	return v, err
}

// ErrConnect: the pool could not open a connection.
var ErrConnect = errors.New("connect")

// open returns a connection, unless ctx's statement is not to be sent any more.
func (p *Pool) open(ctx context.Context) (*sql.Conn, error) {
	c, err := p.db.Conn(ctx)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	case !sending.Sends(ctx):
		_ = c.Close()
		return nil, context.DeadlineExceeded
	}
	return c, nil
}

// restAfter is the time without an answer after which a connection is pinged before use.
const restAfter = time.Second

// conn returns a connection. It pings one that has been idle, which the server may have
// closed since.
func (p *Pool) conn(ctx context.Context) (*sql.Conn, error) {
	used := time.Duration(p.used.Load())
	rested := used == 0 || time.Since(p.start)-used > restAfter
	for idle := p.db.Stats().Idle; ; idle-- { // after the idle ones there are only new ones
		c, err := p.open(ctx)
		if err != nil || !rested {
			return c, err
		}
		err = c.PingContext(ctx)
		if err == nil {
			return c, nil
		}
		_ = c.Close() // a bad one has left the pool
		if !errors.Is(err, driver.ErrBadConn) || idle < 0 {
			return nil, err
		}
	}
}

// ownTx is the session of a transaction that Pool began.
type ownTx struct{ inTx }

func (t ownTx) exec(ctx context.Context, sql string, args []any) (int64, error) {
	return leavable(ctx, func() (int64, error) { return t.inTx.exec(ctx, sql, args) })
}

func (t ownTx) query(ctx context.Context, sql string, args []any) (*rows, error) {
	return leavable(ctx, func() (*rows, error) { return t.inTx.query(ctx, sql, args) })
}

// leavable runs f on another goroutine, if ctx can end, and stops waiting for it when ctx
// ends.
func leavable[T any](ctx context.Context, f func() (T, error)) (none T, _ error) {
	if ctx.Done() == nil {
		return f()
	}
	type answer struct {
		v   T
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		v, err := f()
		answers <- answer{v, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil && ctx.Err() != nil {
			return none, ctx.Err() // and not the driver's own error for it
		}
		return a.v, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
