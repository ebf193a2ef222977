// Package replay reports what policies would have done to the requests of a web access
// log.
//
//	log, err := replay.Read(ctx, file, replay.Bounds{}, nil)
//	report, err := replay.Run(ctx, log, []replay.Candidate{{Policy: strict, Cost: 1}, {Policy: lax, Cost: 1}},
//		replay.InMemory, nil)
//	err = report.WriteHTML(w)
//
// Each client address is a key, and the log's times are the clock. Each candidate
// decides independently. A request is allowed, delayed (allowed by a queue, after
// waiting for its turn) or denied. The replay does not guess what a denied client would
// have done next, such as retry.
package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// MaxCandidates is the most candidates of one Run: more would not fit on a page.
const MaxCandidates = 3

// Candidate is a policy to try, with the cost of each request.
type Candidate struct {
	Policy limiter.Policy
	Cost   float64 // units per request; required
}

// Validate returns nil if c is valid, or a *limiter.PolicyError or another
// limiter.ErrInvalid that names the invalid part.
func (c Candidate) Validate() error {
	_, err := limiter.NewMemory(nil).AllowN(context.Background(), c.Policy, "any", c.Cost)
	return err
}

// InMemory makes the limiters of a Run without a database.
func InMemory(config *limiter.Config) (*limiter.Limiter, error) {
	return limiter.NewMemory(config), nil
}

// Run decides each request of the log, at its time, under each of 1 to MaxCandidates
// candidates, one candidate after the other. Each gets a limiter from newLimiter, such as
// InMemory, which must have nothing counted. If progress is not nil, Run calls it after
// every thousand decisions with the number done, of log.Requests()*len(candidates).
//
// Run returns an error for an invalid candidate before it decides anything, or the error
// of newLimiter or of a decision.
func Run(ctx context.Context, log *Log, candidates []Candidate, newLimiter func(*limiter.Config) (*limiter.Limiter, error), progress func(done int)) (*Report, error) {
	switch n := len(candidates); {
	case n < 1 || n > MaxCandidates:
		return nil, fmt.Errorf("%d candidates: must be from 1 to %d", n, MaxCandidates)
	case len(log.events) == 0:
		return nil, &NotALogError{Lines: log.bad}
	}
	for i, c := range candidates {
		if err := c.Validate(); err != nil {
			return nil, fmt.Errorf("candidate %s: %w", Letter(i), err)
		}
	}
	report := newReport(log)
	for i, c := range candidates {
		var now int64
		l, err := newLimiter(&limiter.Config{Now: func() time.Time { return time.UnixMicro(now) }, DisableDenyCache: true, MaxKeys: len(log.keys)})
		if err != nil {
			return nil, err
		}
		count := newTally(report, c.Policy, c.Cost, log)
		for j, e := range log.events {
			now = e.at
			r, err := l.AllowN(ctx, c.Policy, log.keys[e.key], c.Cost)
			if err != nil {
				return nil, err
			}
			count.add(e, r)
			if j%1000 == 999 && progress != nil {
				progress(i*len(log.events) + j + 1)
			}
		}
		report.Candidates = append(report.Candidates, count.finish(log))
	}
	return report, nil
}
