package limiter

import (
	"context"
	"time"
)

// begin returns when a call began, if Observe wants to know.
func (s *shared) begin() (at time.Time) {
	if s.observe != nil {
		at = time.Now()
	}
	return at
}

// seen calls Observe, if it is set, for a call that began at that time.
func (s *shared) seen(ctx context.Context, v Verb, in *Request, r *Result, err error, began time.Time, rows int) {
	if s.observe != nil {
		s.observe(ctx, Observation{
			Verb: v, Request: *in, Result: *r, Err: err, Duration: time.Since(began), Rows: rows, Waiting: s.waiting(),
		})
	}
}

// unseen is seen for a call that fails before it begins. It returns err.
func (s *shared) unseen(ctx context.Context, v Verb, in Request, err error) error {
	s.seen(ctx, v, &in, &Result{}, err, s.begin(), 0)
	return err
}

// waiting is Limiter.Waiting.
func (s *shared) waiting() int {
	if s.dispatcher == nil {
		return 0
	}
	return s.dispatcher.Callers()
}

// rows returns Observation.Rows of an answer, if the statement that decided it had n
// requests; 0 for one. It reads n only if one did: a statement in flight may write it.
func (s *shared) rows(r *Result, err error, n *int) int {
	// Reset, Cancel, Block and Unblock have no Result and no Source.
	if err != nil || s.source == SourceMemory || r.Source != "" && r.Source != s.source {
		return 0
	}
	return max(1, *n)
}

// countRows sets the rows of the groups' requests, which were decided together, unless it
// is nil.
func countRows(groups []*group, rows []int) {
	n := 0
	for _, g := range groups {
		n = max(n+len(g.indexes), g.rows)
	}
	for _, g := range groups {
		for _, i := range g.indexes {
			if rows != nil {
				rows[i] = n
			}
		}
	}
}

// finish ends a call that began at that time. A shadow policy lets it pass, and Observe sees
// it.
func (e *engine) finish(ctx context.Context, c *call, r *Result, err error, began time.Time) {
	if err == nil && c.request.Policy.Shadow {
		r.shadow(c.verb, &c.request)
		r.Shadow = true
	}
	if err == nil {
		e.denialLog.add(e.logSecret, c.verb, &c.request, r)
	}
	e.seen(ctx, c.verb.name, &c.request, r, err, began, e.rows(r, err, &c.op.Rows))
}
