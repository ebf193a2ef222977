package limiter

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

// Limiter decides. It is safe for concurrent use, has no goroutine while nobody
// asks, and one is enough for a program: callers that share it share statements.
// Make one with New, NewSQL or NewMemory.
type Limiter struct {
	engine engine
}

// New returns a Limiter that keeps its state in the database of pool, whose
// tables migrations.Up makes. A nil config is the documented defaults. The pool
// stays the caller's to close. A nil pool, or a number in config that has no
// meaning, is an ErrInvalid; nothing is asked of the database yet.
func New(pgPool *pgxpool.Pool, config *Config) (*Limiter, error) {
	if pgPool == nil {
		return nil, invalid("pool", "nil", "open one with pgxpool.New")
	}
	return newPooled(pgxConnections{pgPool}, int(pgPool.Stat().MaxConns()), config)
}

// newPooled returns a Limiter over a pool with that many connections.
func newPooled(c connections, most int, config *Config) (*Limiter, error) {
	l := newLimiter(config, nil)
	runner, err := newBreaker(&l.engine.config, &pool{connections: c})
	if err != nil {
		return nil, err
	}
	l.engine.store = postgres{runner: runner}
	if l.engine.denied, err = newDenyCache(&l.engine.config); err != nil {
		return nil, err
	}
	if l.engine.batches, err = newBatches(runner, &l.engine.config, most); err != nil {
		return nil, err
	}
	return l, nil
}

// NewMemory returns a Limiter that keeps its state in this process and forgets
// it with it: for programs of one process, and for tests, with Config.Now as
// their clock. Verbs, results and errors are the same but for InTx and InSQLTx,
// whose verbs give ErrUnsupported. Idle keys are forgotten.
func NewMemory(config *Config) *Limiter {
	return newLimiter(config, newMemory())
}

func newLimiter(config *Config, s store) *Limiter {
	return &Limiter{engine{
		config: config.withDefaults(), store: s,
		holds: newHoldWatch(), closed: new(atomic.Bool), degraded: new(degradedLog), ahead: new(atomic.Int64),
		leaving: new(sync.RWMutex), askers: new(askerPool),
	}}
}

// Close makes every later call return ErrClosed and waits until the decisions
// that were asked for before have their answers, and the places of cancelled
// Waits have gone back. It does not wait for those that sleep: cancel them first.
// It returns nil, may be called again, and leaks nothing when it is not called.
func (l *Limiter) Close() error {
	l.engine.closed.Store(true)
	if l.engine.batches != nil {
		l.engine.batches.close()
	}
	l.engine.leaving.Lock()
	defer l.engine.leaving.Unlock()
	return nil
}

// Waiting is how many callers wait for a statement with others at this moment,
// of Config.BatchWaiting at most: a gauge for metrics. It is 0 without batching.
func (l *Limiter) Waiting() int {
	if l.engine.batches == nil {
		return 0
	}
	return int(l.engine.batches.waiting.Load())
}

// Do asks for ask.Cost units, all or nothing. A denial consumes nothing; it is
// a Result, not an error. A cost above the burst is denied with RetryAfter
// Never, and starts no block.
//
// An ask with an IdempotencyKey that was admitted before is answered as it was
// then, with Result.Replayed, and counted no second time.
func (l *Limiter) Do(ctx context.Context, ask Ask) (Result, error) {
	return l.engine.do(ctx, ask)
}

// Allow asks for one unit. It is Do at cost 1.
func (l *Limiter) Allow(ctx context.Context, p Policy, key string) (Result, error) {
	return l.Do(ctx, p.Ask(key, 1))
}

// AllowN asks for n units, all or nothing. It is Do at cost n.
func (l *Limiter) AllowN(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return l.Do(ctx, p.Ask(key, n))
}

// AllowUpTo asks for up to n units and is granted what fits: whole units of a
// whole n; of a fractional n all, or steps of a millionth of the burst.
// Result.Allowed is true when something was granted, Result.Granted is how
// much, and Result.RetryAfter is until one unit more, or the rest if less.
func (l *Limiter) AllowUpTo(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return l.engine.one(ctx, verbUpTo, p.Ask(key, n))
}

// Check tells what AllowN would answer and consumes nothing. At n = 0 it reads
// how the key stands, and is allowed unless the key is blocked.
func (l *Limiter) Check(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return l.engine.one(ctx, verbCheck, p.Ask(key, n))
}

// Fill records n units that were spent whatever the limit says. The key is
// filled up to the burst at most; Result.Granted is what went in and
// Result.Full whether that left no room. It is never denied, blocked or not.
func (l *Limiter) Fill(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return l.engine.one(ctx, verbFill, p.Ask(key, n))
}

// Refund gives n units back, at most what is there; Result.Granted is how
// many. The SlidingWindowLog takes back its newest entries first, the
// SlidingWindowCounter its current window first. A refund into a bucket that
// has leaked meanwhile frees room that the leak would have freed later, and one
// into a window counts for the window that runs: Undo gives back what is left of an
// earlier answer. A LeakyBucketQueue gives ErrUnsupported.
func (l *Limiter) Refund(ctx context.Context, p Policy, key string, n float64) (Result, error) {
	return l.engine.one(ctx, verbRefund, p.Ask(key, n))
}

// Reset forgets the key: what it has used, and its block. Holds stay open, but
// have nothing to give back; what is settled is counted in full. What was admitted
// under an idempotency key stays remembered.
func (l *Limiter) Reset(ctx context.Context, p Policy, key string) error {
	return l.engine.reset(ctx, p, key)
}

// Block denies the key for d from now on whatever it has used, or until the
// end of an earlier block if that is later. d is whole microseconds, more than
// 0 and at most a hundred years.
func (l *Limiter) Block(ctx context.Context, p Policy, key string, d time.Duration) error {
	return l.engine.block(ctx, p, key, d)
}

// Unblock lifts the key's block, whether by Block or by Policy.BlockFor, and
// leaves what it has used. A key without a block is no error.
func (l *Limiter) Unblock(ctx context.Context, p Policy, key string) error {
	return l.engine.unblock(ctx, p, key)
}

// InTx returns the same verbs, but for Wait, DoWait, WaitAll and Close, inside the caller's
// transaction: what they do commits or rolls back with it. See Tx.
func (l *Limiter) InTx(tx pgx.Tx) *Tx { return l.inTx(tx) }

func (l *Limiter) inTx(tx db.DBTX) *Tx {
	e := l.engine
	e.inTx = true
	e.batches = nil
	e.config.Timeout = -1
	e.store = postgres{runner: inTx{tx}, tx: true}
	if _, ok := l.engine.store.(*memory); ok {
		e.store = noTx{}
	}
	return &Tx{e}
}

// one is decide for the verbs that need no more than the Result.
func (e *engine) one(ctx context.Context, v verb, ask Ask) (Result, error) {
	r, _, err := e.decide(ctx, v, ask, 0, nil)
	return r, err
}

func (e *engine) do(ctx context.Context, ask Ask) (Result, error) {
	if ask.IdempotencyKey == "" {
		return e.one(ctx, verbTake, ask)
	}
	h, err := e.holding(ask, stateSpent)
	if err != nil {
		return Result{}, err
	}
	r, _, err := e.decide(ctx, verbTake, ask, 0, h)
	return r, err
}

func (e *engine) reset(ctx context.Context, p Policy, key string) error {
	return e.command(ctx, p, key, e.store.reset)
}

func (e *engine) block(ctx context.Context, p Policy, key string, d time.Duration) error {
	if reason := badDuration(d); reason != "" || d == 0 {
		return invalid("duration", d.String(), "must be positive whole microseconds, at most a hundred years")
	}
	return e.command(ctx, p, key, func(ctx context.Context, q *question) error {
		return e.store.block(ctx, q, d.Microseconds())
	})
}

func (e *engine) unblock(ctx context.Context, p Policy, key string) error {
	return e.command(ctx, p, key, func(ctx context.Context, q *question) error { return e.store.unblock(ctx, q, 0) })
}

// command runs a verb that has no Result.
func (e *engine) command(ctx context.Context, p Policy, key string, f func(context.Context, *question) error) error {
	var q question
	if err := e.subject(&p, key, &q); err != nil {
		return err
	}
	_, err := e.config.bounded(ctx, func(ctx context.Context) (outcome, error) { return outcome{}, f(ctx, &q) })
	e.denied.lift(p, key)
	return err
}

// noTx is the store of a memory limiter's Tx: memory cannot roll back.
type noTx struct{ store }

func (noTx) deny() error {
	return fmt.Errorf("%w: a transaction on a memory limiter: what it counts could not be rolled back", ErrUnsupported)
}
func (n noTx) take(context.Context, *question) (outcome, error)   { return outcome{}, n.deny() }
func (n noTx) fill(context.Context, *question) (outcome, error)   { return outcome{}, n.deny() }
func (n noTx) refund(context.Context, *question) (outcome, error) { return outcome{}, n.deny() }
func (n noTx) undo(context.Context, *question, algorithm.Grant) (outcome, error) {
	return outcome{}, n.deny()
}
func (n noTx) statement(context.Context, *question) (standing, error) { return standing{}, n.deny() }
func (n noTx) get(context.Context, *question) (outcome, error)        { return outcome{}, n.deny() }
func (n noTx) block(context.Context, *question, int64) error          { return n.deny() }
func (n noTx) unblock(context.Context, *question, int64) error        { return n.deny() }
func (n noTx) reset(context.Context, *question) error                 { return n.deny() }
func (n noTx) due(context.Context, *question) ([]string, error)       { return nil, n.deny() }
func (n noTx) reserve(context.Context, *question, *holding) (outcome, error) {
	return outcome{}, n.deny()
}
func (n noTx) settle(context.Context, *settlement) (settled, error) { return settled{}, n.deny() }
