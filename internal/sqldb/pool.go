package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
)

// Pool is a db.DBTX that runs each statement on a connection of its own, and
// once: a *sql.DB sends a statement again when its driver says that the
// connection was bad, and lib/pq says so also where the server has done it
// and only the answer was lost. A refund would be given twice.
//
// No method keeps its caller longer than its context, whatever the driver does
// about that: lib/pq waits for the server's word. What it was about then ends
// on a goroutine of its own.
type Pool struct {
	adapter
	db *sql.DB

	start time.Time
	used  atomic.Int64 // since start, when a connection last answered; 0: it did not
}

// NewPool returns a Pool over db, which stays the caller's to close.
func NewPool(db *sql.DB) *Pool {
	p := &Pool{db: db, start: time.Now()}
	p.adapter.session = p
	return p
}

// InTx runs f in a transaction at read committed, which commits if f returns
// nil and rolls back if not.
func (p *Pool) InTx(ctx context.Context, f func(db.DBTX) error) error {
	tx, err := apart(ctx, func() (*sql.Tx, error) {
		// Is it left to itself, it rolls back: ctx has ended.
		return p.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	})
	if err != nil {
		return err
	}
	end := tx.Commit
	if err = f(adapter{ownTx{inTx{tx}}}); err != nil {
		end = tx.Rollback
	}
	_, endErr := apart(ctx, func() (struct{}, error) { return struct{}{}, end() })
	if err != nil {
		return err // what it comes from
	}
	return endErr
}

func (p *Pool) exec(ctx context.Context, sql string, args []any) (int64, error) {
	return on(ctx, p, func(t inTx) (int64, error) { return t.exec(ctx, sql, args) })
}

func (p *Pool) query(ctx context.Context, sql string, args []any) (*rows, error) {
	return on(ctx, p, func(t inTx) (*rows, error) { return t.query(ctx, sql, args) })
}

// on runs f on a connection of its own.
func on[T any](ctx context.Context, p *Pool, f func(inTx) (T, error)) (T, error) {
	return apart(ctx, func() (v T, err error) {
		c, err := p.conn(ctx)
		if err != nil {
			return v, err
		}
		defer c.Close() // to the pool
		v, err = f(inTx{c})
		var answer interface{ SQLState() string }
		if err == nil || errors.As(err, &answer) {
			p.used.Store(int64(time.Since(p.start)))
		} else {
			p.used.Store(0) // other connections may be bad as well
		}
		return v, err
	})
}

// restAfter is after how long without an answer a connection is asked whether
// it still is one.
const restAfter = time.Second

// conn takes a connection. One that has been idle may have been closed by the
// server since, and the statement is not to be what finds out.
func (p *Pool) conn(ctx context.Context) (*sql.Conn, error) {
	used := time.Duration(p.used.Load())
	rested := used == 0 || time.Since(p.start)-used > restAfter
	for idle := p.db.Stats().Idle; ; idle-- { // then there are only new ones
		c, err := p.db.Conn(ctx)
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

// ownTx is the session of a transaction of ours.
type ownTx struct{ inTx }

func (t ownTx) exec(ctx context.Context, sql string, args []any) (int64, error) {
	return apart(ctx, func() (int64, error) { return t.inTx.exec(ctx, sql, args) })
}

func (t ownTx) query(ctx context.Context, sql string, args []any) (*rows, error) {
	return apart(ctx, func() (*rows, error) { return t.inTx.query(ctx, sql, args) })
}

// apart runs f on a goroutine of its own, if ctx can end, and leaves it there
// when ctx does.
func apart[T any](ctx context.Context, f func() (T, error)) (none T, _ error) {
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
			return none, ctx.Err() // drivers have words of their own for it
		}
		return a.v, a.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
