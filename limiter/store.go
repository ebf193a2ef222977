package limiter

import (
	"context"
	"sync/atomic"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// question is an Ask as a store takes it: valid, its policy compiled.
type question struct {
	algorithm.Rules
	algorithm Algorithm
	source    Policy  // what the rules were compiled from, valid
	policy    string  // the policy's name
	key       string  // the key as stored
	units     float64 // what is asked for
	cost      float64 // of one ask
	count     float64 // how many asks of that cost
	unit      float64 // RetryAfter is until that much more fits, or the rest if less
	room      float64 // how full the key may be after it: capacity, or less for a Wait
	now       *int64  // Config.Now's clock; nil for the store's own

	ahead    *atomic.Int64 // by how much the database's clock is, when last compared
	compared int           // how often it was, for this question

	commit      string // what synchronous_commit is to be: see commits
	lockTimeout string // as PostgreSQL writes it; empty for the session's
}

// rest is what RetryAfter is about when granted units were granted.
func (q *question) rest(granted float64) float64 { return min(q.unit, q.units-granted) }

// possible tells whether the ask fits into an empty key.
func (q *question) possible() bool { return algorithm.Fit(q.Capacity, 0, q.cost) >= 1 }

// What synchronous_commit is to be in a statement; empty leaves it as it is.
const (
	commitDurable = "on" // where it is off
	commitRelaxed = "off"
)

func (p *Policy) commit() string {
	if p.Durability == Relaxed {
		return commitRelaxed
	}
	return commitDurable
}

// outcome is what a store answers: the row after the decision.
type outcome struct {
	granted      float64 // asks of question.cost; -1 when denied by a block
	now          int64   // the clock as read; updatedAt where only that is known
	updatedAt    int64   // the clock that never moves back
	blockedUntil int64
	ticket       int64 // of a queue
	view         algorithm.View
	before       *held // admitted before, under the same idempotency key
}

// blocked is outcome.granted when the key was blocked.
const blocked = -1

// store keeps what keys hold. Each method is atomic for its key, takeAll for all
// of its keys.
type store interface {
	take(ctx context.Context, q *question) (outcome, error)
	// takeAll takes all joints, which are in lock order, or none, and leaves
	// the answers in them; if not possible, one of them never fits, and it only
	// reads. It tells whether all were taken.
	takeAll(ctx context.Context, joints []*joint, possible bool) (bool, error)
	fill(ctx context.Context, q *question) (outcome, error)
	refund(ctx context.Context, q *question) (outcome, error)
	// undo gives back what is left of units that were counted in g.
	undo(ctx context.Context, q *question, g algorithm.Grant) (outcome, error)
	get(ctx context.Context, q *question) (outcome, error)
	block(ctx context.Context, q *question, forUs int64) error
	// unblock lifts the block that ends at until; any if 0.
	unblock(ctx context.Context, q *question, until int64) error
	reset(ctx context.Context, q *question) error
	// leave gives a queue's place back if nobody came after.
	leave(ctx context.Context, q *question, ticket int64) error
	// reserve is take for one ask that is noted once it is granted.
	// outcome.before is set, and nothing decided, if it was before.
	reserve(ctx context.Context, q *question, h *holding) (outcome, error)
	// settle ends a hold; ErrNoHold if it is not known.
	settle(ctx context.Context, s *settlement) (settled, error)
	// due lists the key's open holds that have expired.
	due(ctx context.Context, q *question) (ids []string, err error)
	// nextDue is how long until the next open hold expires, of any key:
	// microseconds, negative if it has; noHold if there is none.
	nextDue(ctx context.Context) (wait int64, err error)
	// statement is get, and adds up the key's open holds at that same moment: of a
	// fixed window, those of the present one.
	statement(ctx context.Context, q *question) (standing, error)
	source() Source
}

// standing is how a key stands, with its open holds.
type standing struct {
	outcome outcome
	holds   int
	held    float64 // units
}
