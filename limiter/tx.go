package limiter

import (
	"context"
	"time"
)

// Tx decides inside one transaction of the caller. Make it with Limiter.InTx
// or, over database/sql, Limiter.InSQLTx; use it as the transaction itself is
// used: by one goroutine at a time, until the transaction ends.
//
// What a Tx does is rolled back with the transaction, a block that a denial
// started too. The key's row stays locked until the transaction ends: take
// limits last, and several of them by one AllowAll, or in one order everywhere, else
// transactions deadlock each other.
//
// Each verb is one statement on the transaction's own connection, or a few: for
// AllowAll, for an ask with an IdempotencyKey, and after a denial now and then, to
// look for holds that have expired. It changes
// neither synchronous_commit nor any time-out, and is neither batched nor
// answered from what was remembered. Policies fail closed here, whatever their
// OnError, and Config.Timeout does not apply: how long a lock may be waited for
// is the transaction's lock_timeout or the context's deadline.
//
// What is left of the transaction:
//
//   - After a denial, all of it, with the key's row locked: go on, or roll back.
//   - After an ErrInvalid, ErrUnsupported, ErrClosed, ErrNoHold or ErrHoldEnded,
//     all of it: nothing was changed. The exception is a key that the database's
//     encoding cannot hold, of which the database says so.
//   - After any other error, nothing but the duty to roll back: PostgreSQL
//     refuses further statements, and a commit rolls back. ErrRetryTx says that
//     running the whole transaction again may help, as below.
//   - After the context ended while a statement was under way, nothing as well.
//     pgx closes the connection, and so it does under database/sql; lib/pq asks
//     the server to end the statement, returns when it has, and does not use the
//     connection again. When the context that BeginTx was given ends,
//     database/sql rolls back by itself.
//
// A transaction that meets a conflict is run again as a whole, its own
// statements included; what these and the commit say, of the same SQLSTATEs, is
// the driver's error and not an ErrRetryTx:
//
//	for range 5 {
//		err = inTransaction(work) // begin, work, and commit or roll back
//		if !errors.Is(err, limiter.ErrRetryTx) {
//			break
//		}
//	}
type Tx struct {
	engine engine
}

// Do is Limiter.Do in the transaction.
func (t *Tx) Do(ctx context.Context, ask Ask) (Result, error) {
	return t.engine.do(ctx, ask)
}

// Allow is Limiter.Allow in the transaction.
func (t *Tx) Allow(ctx context.Context, p Policy, key string) (Result, error) {
	return t.Do(ctx, p.Ask(key, 1))
}

// AllowN is Limiter.AllowN in the transaction.
func (t *Tx) AllowN(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return t.Do(ctx, p.Ask(key, n))
}

// AllowUpTo is Limiter.AllowUpTo in the transaction.
func (t *Tx) AllowUpTo(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return t.engine.one(ctx, verbUpTo, p.Ask(key, n))
}

// Check is Limiter.Check in the transaction. It locks nothing: another
// transaction can use up in the meantime what it found free, and holds that have
// expired are given back by the verbs that consume alone.
func (t *Tx) Check(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return t.engine.one(ctx, verbCheck, p.Ask(key, n))
}

// Fill is Limiter.Fill in the transaction.
func (t *Tx) Fill(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return t.engine.one(ctx, verbFill, p.Ask(key, n))
}

// Refund is Limiter.Refund in the transaction.
func (t *Tx) Refund(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return t.engine.one(ctx, verbRefund, p.Ask(key, n))
}

// Reserve is Limiter.Reserve in the transaction.
func (t *Tx) Reserve(ctx context.Context, ask Ask, ttl time.Duration) (Hold, error) {
	return t.engine.reserve(ctx, ask, ttl)
}

// Settle is Limiter.Settle in the transaction. It locks the hold and then the
// key's row: settle before you take other limits.
func (t *Tx) Settle(ctx context.Context, id string, units float64) (Result, error) {
	return t.engine.settleHold(ctx, id, units)
}

// Cancel is Limiter.Cancel in the transaction.
func (t *Tx) Cancel(ctx context.Context, id string) error {
	return t.engine.cancelHold(ctx, id)
}

// Reset is Limiter.Reset in the transaction. It locks the key's open holds and
// then its row.
func (t *Tx) Reset(ctx context.Context, p Policy, key string) error {
	return t.engine.reset(ctx, p, key)
}

// Block is Limiter.Block in the transaction.
func (t *Tx) Block(ctx context.Context, p Policy, key string, d time.Duration) error {
	return t.engine.block(ctx, p, key, d)
}

// Unblock is Limiter.Unblock in the transaction.
func (t *Tx) Unblock(ctx context.Context, p Policy, key string) error {
	return t.engine.unblock(ctx, p, key)
}
