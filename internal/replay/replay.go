// Package replay tells what policies would have done to the requests of a web
// access log.
//
//	log, err := replay.Read(ctx, file, nil)
//	report, err := replay.Run(ctx, log, []replay.Candidate{{Policy: strict, Cost: 1}, {Policy: lax, Cost: 1}},
//		replay.InMemory, nil)
//	err = report.WriteHTML(w)
//
// Each client address is a key, and the log's own times are the clock. Each
// candidate decides for itself, as if it were the only one: a request has one of
// three outcomes. It is allowed, or delayed (allowed by a queue that has it wait
// for its turn), or denied. What clients would have done instead, such as asking
// again, is not known and not guessed.
package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// MaxCandidates is how many candidates one Run takes: what fits side by side.
const MaxCandidates = 3

// Candidate is one policy to be tried.
type Candidate struct {
	Policy limiter.Policy
	Cost   float64 // units that each request asks for; there is no default
}

// Validate returns nil if decisions can be made by c, else a
// *limiter.PolicyError or another limiter.ErrInvalid that names what is wrong.
func (c Candidate) Validate() error {
	_, err := limiter.NewMemory(nil).AllowN(context.Background(), c.Policy, "any", c.Cost)
	return err
}

// InMemory makes the limiters of a Run without a database.
func InMemory(config *limiter.Config) (*limiter.Limiter, error) {
	return limiter.NewMemory(config), nil
}

// Run asks for each request of the log, at its time, once for each of 1 to
// MaxCandidates candidates: one after the other, each of a limiter of its own
// that newLimiter makes, such as InMemory. Every such limiter has to begin with
// nothing counted. progress, unless it is nil, is told after every thousand
// decisions how many of log.Requests() times len(candidates) are done.
//
// The error is that of an invalid candidate, before anything is decided, or what
// newLimiter or a decision said.
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
		l, err := newLimiter(&limiter.Config{Now: func() time.Time { return time.UnixMicro(now) }, DisableDenyCache: true})
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
