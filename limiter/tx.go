package limiter

import (
	"context"
	"time"
)

// Tx decides inside one transaction of the caller. Make it with Limiter.InTx,
// use it as the transaction itself is used: by one goroutine at a time, until
// the transaction ends.
//
// What a Tx does is rolled back with the transaction, a block that a denial
// started too. The key's row stays locked until the transaction ends: take
// limits last, and several of them by one AllowAll, or in one order everywhere, else
// transactions deadlock each other.
//
// A denial leaves the transaction as it was: go on or roll back. An error from
// the database, a cancelled context among them, leaves it failed: roll back.
// ErrRetryTx says that running the whole transaction again may help. Policies
// fail closed here, whatever their OnError, and Config.Timeout does not apply:
// how long a lock may be waited for is the transaction's lock_timeout or the
// context's deadline.
type Tx struct {
	engine engine
}

// Do is Limiter.Do in the transaction.
func (t *Tx) Do(ctx context.Context, ask Ask) (Result, error) {
	return t.engine.one(ctx, verbTake, ask)
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
// transaction can use up in the meantime what it found free.
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

// Reset is Limiter.Reset in the transaction.
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
