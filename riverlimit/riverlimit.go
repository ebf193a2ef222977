// Package riverlimit limits the jobs that River works. Jobs above a limit are snoozed until it
// has room, and are not lost.
//
//	perKind := limiter.PerMinute("jobs", 100)
//	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
//		Middleware: []rivertype.Middleware{riverlimit.New(l, riverlimit.Each(riverlimit.Kind, perKind))},
//		...
//	})
//
// To limit only the jobs of one worker, return the middleware from its method Middleware.
//
// A function of type Limits maps a job to the limiter requests that it must pass. So costs,
// tenants and several limits at once need no further API: see the example of New.
//
// The limit counts each time a job is worked, so retries too. To count in the transaction in which
// a worker completes its job, use limiter.Limiter.InTx in the worker instead: see examples/river.
package riverlimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/pglimit/pglimit/limiter"
)

// Limits returns the limits that a job must pass: policies, keys and costs, which are granted
// all or none. If it returns none, the job is worked and nothing is counted. An error goes to
// River, which tries the job again. Limits must be safe for concurrent use, and must not change
// the job.
type Limits func(ctx context.Context, job *rivertype.JobRow) ([]limiter.Request, error)

// A Key returns the key that a job is counted for: 1 to 1,024 bytes of UTF-8 without NUL.
type Key func(job *rivertype.JobRow) (string, error)

// Kind is the Key that counts each kind of job separately.
func Kind(job *rivertype.JobRow) (string, error) { return job.Kind, nil }

// Each returns Limits that request one unit of each policy for the job's key. It panics if key is
// nil, or without policies, because then every job would pass.
func Each(key Key, policies ...limiter.Policy) Limits {
	require(key != nil, "Each: key is nil")
	require(len(policies) > 0, "Each: no policies")
	return func(_ context.Context, job *rivertype.JobRow) ([]limiter.Request, error) {
		k, err := key(job)
		if err != nil {
			return nil, err
		}
		requests := make([]limiter.Request, len(policies))
		for i, p := range policies {
			requests[i] = p.Request(k, 1)
		}
		return requests, nil
	}
}

// New returns a River middleware that works a job only if l grants all that limits returns for it.
// It panics if l or limits is nil, and is safe for concurrent use.
//
// A denied job is snoozed for the Result's RetryAfter, and its worker is free for others. A snooze
// uses up none of the job's attempts, so no number of denials discards it. The exceptions:
//
//   - A cost above the burst, or above what its Floor leaves of it, can never be granted: the job is
//     cancelled, with the denial as its error.
//   - A job whose key is blocked is snoozed for an hour at most, since a block can be lifted.
//
// Without a decision the job is not worked: River gets the limiter's error, and tries the job
// again as after an error of its worker. limiter.Policy.OnError can let it pass instead.
//
// With a LeakyBucketQueue the job waits for its turn in its worker, within the job's timeout. It is
// snoozed if the queue is full or the turn comes too late. Keep the queue short.
//
// A single request, other than for a LeakyBucketQueue, gets an IdempotencyKey for each time that
// River fetches the job, unless limits has set one. So a decision whose answer was lost
// (limiter.ErrUnavailable) is requested once more, and counts once. Such a request shares no
// statement, no remembered denial answers it, and it is remembered for
// limiter.Config.IdempotencyTTL.
func New(l *limiter.Limiter, limits Limits) rivertype.WorkerMiddleware {
	require(l != nil, "New: the limiter is nil")
	require(limits != nil, "New: limits is nil")
	return &middleware{l, limits}
}

type middleware struct {
	limiter *limiter.Limiter
	limits  Limits
}

// IsMiddleware implements rivertype.Middleware.
func (m *middleware) IsMiddleware() bool { return true }

// blocked is the longest snooze of a job whose key is blocked.
const blocked = time.Hour

// Work implements rivertype.WorkerMiddleware.
func (m *middleware) Work(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	requests, err := m.limits(ctx, job)
	if err == nil && len(requests) > 0 {
		err = m.decide(ctx, job, requests)
	}
	if err == nil {
		return work(ctx)
	}
	return unworked(err)
}

// unworked returns what River gets for a job that was denied or not decided.
func unworked(err error) error {
	denied, ok := errors.AsType[*limiter.DeniedError](err)
	switch {
	case !ok:
		return err
	case denied.Result.Reason == limiter.ReasonBlocked:
		return &rivertype.JobSnoozeError{Duration: min(denied.Result.RetryAfter, blocked)}
	case denied.Result.RetryAfter != limiter.Never:
		return &rivertype.JobSnoozeError{Duration: denied.Result.RetryAfter}
	}
	return rivertype.JobCancel(err)
}

// decide returns nil if the requests are granted, or else a DeniedError or the limiter's error.
func (m *middleware) decide(ctx context.Context, job *rivertype.JobRow, requests []limiter.Request) error {
	queues := slices.ContainsFunc(requests, func(r limiter.Request) bool { return r.Policy.Algorithm == limiter.LeakyBucketQueue })
	do, doAll, request := m.limiter.Do, m.limiter.AllowAll, requests[0]
	if queues {
		do, doAll = m.limiter.DoWait, m.limiter.WaitAll
	} else if request.IdempotencyKey == "" {
		request.IdempotencyKey = fetched(job)
	}
	if len(requests) > 1 {
		all, err := doAll(ctx, requests...)
		if err != nil {
			return err
		}
		return all.Err()
	}
	r, err := do(ctx, request)
	if errors.Is(err, limiter.ErrUnavailable) && !queues && ctx.Err() == nil {
		r, err = do(ctx, request) // it may have been counted
	}
	if err != nil {
		return err
	}
	return r.Err()
}

// fetched names the one time that River fetched the job: after a snooze the attempt has the same
// number again.
func fetched(job *rivertype.JobRow) string {
	var at time.Time
	if job.AttemptedAt != nil {
		at = *job.AttemptedAt
	}
	return fmt.Sprintf("river %d %d %d", job.ID, job.Attempt, at.UnixMicro())
}

// Slots returns a River middleware that works a job only while it holds the slot that slot returns
// for it, of a policy of the algorithm limiter.Concurrency: at most its Limit of jobs of a key at
// a time, on all workers. The slot is renewed while the job is worked, as limiter.Limiter.Keep does.
// If it is lost, the job's context ends, and River gets an error with limiter.ErrNoSlot.
//
// If no slot is free, the job is snoozed: until the first slot ends that is not renewed, and for
// five seconds at most, as slots may be released before. The denials of New apply otherwise.
//
// Slots panics if l or slot is nil, and is safe for concurrent use. slot must be too, and must not
// change the job.
func Slots(l *limiter.Limiter, slot func(ctx context.Context, job *rivertype.JobRow) (limiter.Request, error)) rivertype.WorkerMiddleware {
	require(l != nil, "Slots: the limiter is nil")
	require(slot != nil, "Slots: slot is nil")
	return &holder{l, slot}
}

type holder struct {
	limiter *limiter.Limiter
	slot    func(context.Context, *rivertype.JobRow) (limiter.Request, error)
}

// IsMiddleware implements rivertype.Middleware.
func (h *holder) IsMiddleware() bool { return true }

// occupied is the longest snooze of a job for which no slot is free.
const occupied = 5 * time.Second

// Work implements rivertype.WorkerMiddleware.
func (h *holder) Work(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	in, err := h.slot(ctx, job)
	if err != nil {
		return err
	}
	slot, err := h.limiter.DoAcquire(ctx, in, 0)
	switch r := slot.Result; {
	case err != nil:
		return err
	case r.Allowed:
		return h.limiter.Keep(ctx, slot, work)
	case r.Reason == limiter.ReasonLimit && r.RetryAfter != limiter.Never:
		return &rivertype.JobSnoozeError{Duration: min(r.RetryAfter, occupied)}
	default:
		return unworked(r.Err())
	}
}

// require panics with a programming error if ok is false.
func require(ok bool, what string) {
	if !ok {
		panic("riverlimit: " + what)
	}
}
