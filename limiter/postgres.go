package limiter

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

// table is how one algorithm's statements are called.
type table struct {
	take     func(context.Context, db.DBTX, *question) (outcome, error)
	takeMany func(context.Context, db.DBTX, *statement) error
	held     func(context.Context, db.DBTX, db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error)
	fill     func(context.Context, db.DBTX, *question) (outcome, error)
	refund   func(context.Context, db.DBTX, *question) (outcome, error)
	undo     func(context.Context, db.DBTX, *question, algorithm.Grant) (outcome, error)
	get      func(context.Context, db.DBTX, *question) (outcome, error)
	stand    func(context.Context, db.DBTX, *question) (standing, error)
	block    func(context.Context, db.DBTX, db.TokenBucketBlockParams) error
	unblock  func(context.Context, db.DBTX, db.TokenBucketUnblockParams) error
	reset    func(context.Context, db.DBTX, db.TokenBucketResetParams) (int64, error)
}

var tables = map[Algorithm]*table{
	LeakyBucket:          &leakyBucketTable,
	LeakyBucketQueue:     &leakyBucketQueueTable,
	TokenBucket:          &tokenBucketTable,
	GCRA:                 &gcraTable,
	FixedWindow:          &fixedWindowTable,
	SlidingWindowCounter: &slidingWindowCounterTable,
	SlidingWindowLog:     &slidingWindowLogTable,
}

var queries = db.New()

// pool runs each statement on a connection of its own.
type pool struct {
	connections
	// explicit is set once a statement failed to serialize: the database's
	// default isolation is stricter than read committed, under which a
	// decision cannot, so from then on each asks for that by itself.
	explicit atomic.Bool
}

// connections is pgx's pool or database/sql's.
type connections interface {
	db.DBTX
	// once runs f in a transaction at read committed.
	once(ctx context.Context, f func(db.DBTX) error) error
}

// maxTries bounds how often one decision is tried.
const maxTries = 5

// runner runs a store's statements on connections of its own or on the
// caller's.
type runner interface {
	// do runs f, which sends one statement; on a connection of its own again
	// after a conflict.
	do(ctx context.Context, f func(db.DBTX) error) error
	// within runs f, which may send several, as one transaction: it commits if f
	// returns nil and rolls back if not; again after a conflict. In the caller's
	// transaction it only runs f.
	within(ctx context.Context, f func(db.DBTX) error) error
}

// do runs f, again after a conflict.
func (p *pool) do(ctx context.Context, f func(db.DBTX) error) (err error) {
	for range maxTries {
		if p.explicit.Load() {
			err = p.once(ctx, f)
		} else {
			err = f(p.connections)
		}
		if !conflict(err) {
			return err
		}
		if sqlState(err) == serializationFailure {
			p.explicit.Store(true)
		}
	}
	return err
}

func (p *pool) within(ctx context.Context, f func(db.DBTX) error) (err error) {
	for range maxTries {
		if err = p.once(ctx, f); !conflict(err) {
			return err
		}
	}
	return err
}

// pgxConnections are those of a pgx pool.
type pgxConnections struct{ *pgxpool.Pool }

// inTx runs everything in the caller's transaction.
type inTx struct{ db.DBTX }

func (t inTx) do(_ context.Context, f func(db.DBTX) error) error { return f(t.DBTX) }

func (t inTx) within(_ context.Context, f func(db.DBTX) error) error { return f(t.DBTX) }

// postgres is the store in a database.
type postgres struct {
	runner runner
	tx     bool
}

func (p postgres) source() Source { return SourceDatabase }

// decide runs one statement that answers with an outcome, and once more if the
// database's clock was in another period.
func (p postgres) decide(ctx context.Context, q *question, f func(context.Context, db.DBTX, *question) (outcome, error)) (o outcome, err error) {
	for {
		err = p.runner.do(ctx, func(tx db.DBTX) (err error) {
			o, err = f(ctx, tx, q)
			return err
		})
		if err != errOtherPeriod {
			break
		}
		if err = p.compare(ctx, q); err != nil {
			return o, err
		}
	}
	if q.now != nil {
		o.now = *q.now
	}
	return o, translate(err, p.tx)
}

func (p postgres) take(ctx context.Context, q *question) (outcome, error) {
	return p.decide(ctx, q, tables[q.algorithm].take)
}

func (p postgres) fill(ctx context.Context, q *question) (outcome, error) {
	return p.decide(ctx, q, tables[q.algorithm].fill)
}

func (p postgres) refund(ctx context.Context, q *question) (outcome, error) {
	return p.decide(ctx, q, tables[q.algorithm].refund)
}

func (p postgres) undo(ctx context.Context, q *question, g algorithm.Grant) (outcome, error) {
	return p.decide(ctx, q, func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		return tables[q.algorithm].undo(ctx, tx, q, g)
	})
}

func (p postgres) get(ctx context.Context, q *question) (outcome, error) {
	return p.decide(ctx, q, tables[q.algorithm].get)
}

func (p postgres) statement(ctx context.Context, q *question) (s standing, err error) {
	s.outcome, err = p.decide(ctx, q, func(ctx context.Context, tx db.DBTX, q *question) (_ outcome, err error) {
		s, err = tables[q.algorithm].stand(ctx, tx, q)
		return s.outcome, err
	})
	return s, err
}

// exec runs one statement that answers nothing.
func (p postgres) exec(ctx context.Context, f func(db.DBTX) error) error {
	return translate(p.runner.do(ctx, f), p.tx)
}

func (p postgres) block(ctx context.Context, q *question, forUs int64) error {
	return p.exec(ctx, func(tx db.DBTX) error {
		return tables[q.algorithm].block(ctx, tx, db.TokenBucketBlockParams{Policy: q.policy, Key: q.key, ForUs: forUs, NowUs: q.now, Commit: q.commit})
	})
}

func (p postgres) unblock(ctx context.Context, q *question, until int64) error {
	return p.exec(ctx, func(tx db.DBTX) error {
		return tables[q.algorithm].unblock(ctx, tx, db.TokenBucketUnblockParams{Policy: q.policy, Key: q.key, UntilUs: until, Commit: q.commit})
	})
}

// reset deletes the row and frees the key's holds. A Reserve that had the row when
// the first statement began has made a hold that only a second one sees: none can
// be made after that, since it would have to wait for the row that is gone.
func (p postgres) reset(ctx context.Context, q *question) error {
	err := p.runner.within(ctx, func(tx db.DBTX) error {
		deleted, err := tables[q.algorithm].reset(ctx, tx, db.TokenBucketResetParams{Policy: q.policy, Key: q.key, Commit: q.commit})
		if err != nil || deleted == 0 {
			return err
		}
		return queries.HoldsFree(ctx, tx, db.HoldsFreeParams{Policy: q.policy, Key: q.key, Algorithm: string(q.algorithm)})
	})
	return translate(err, p.tx)
}

func (p postgres) leave(ctx context.Context, q *question, ticket int64) error {
	return p.exec(ctx, func(tx db.DBTX) error {
		_, err := queries.LeakyBucketQueueLeave(ctx, tx, db.LeakyBucketQueueLeaveParams{
			Policy: q.policy, Key: q.key, Ticket: ticket, Units: q.units, NowUs: q.now, Commit: q.commit,
		})
		return err
	})
}

// continued brings what a Get returned to the moment of the question.
func continued(q *question, s algorithm.State, now, updatedAt, blockedUntil int64) outcome {
	at := max(now, updatedAt)
	return outcome{now: now, updatedAt: at, blockedUntil: blockedUntil, view: s.Seen(&q.Rules, now, at, q.room, q.rest(0))}
}
