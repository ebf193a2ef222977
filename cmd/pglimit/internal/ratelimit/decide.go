package ratelimit

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Limiter is what a Server decides with: a *limiter.Limiter.
type Limiter interface {
	Do(context.Context, limiter.Request) (limiter.Result, error)
	AllowUpTo(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Charge(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	AllowAll(context.Context, ...limiter.Request) (limiter.Results, error)
	Check(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Refund(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Undo(ctx context.Context, p limiter.Policy, key string, r limiter.Result) (limiter.Result, error)
	Reserve(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error)
	Settle(ctx context.Context, id string, units float64) (limiter.Result, error)
	Cancel(ctx context.Context, id string) error
}

// asked is a descriptor of a request, and how it was decided.
type asked struct {
	match
	unlimited bool
	hits      uint64
	spent     bool // the descriptor has the hits itself
	negative  bool // the hits are given back

	result  limiter.Result
	counted bool // its hits are in result.Level
	known   bool // it was decided: result has numbers
	over    bool
	held    string // the ID of its reservation, or empty
}

// closed reports whether the limit is 0, which lets nothing pass.
func (a *asked) closed() bool { return a.policy.Limit == 0 }

// decide decides the descriptors of a request that have a limit, and reports whether it passes:
//
//   - Those that enforce their limit pass together, or nothing is counted for them.
//   - Those that never deny the others are decided one by one after them: those with
//     shadow_mode or quota_mode, and all if the server is a shadow.
//   - Those that count each by itself are counted whatever the others do, above the limit too. So
//     are those that have hits: a proxy sends them to check, with 0, and to report what a
//     response has cost, which is spent in any case. Algorithms other than fixed windows count
//     such hits up to the burst.
//   - Negative hits are given back last, and always pass.
//
// If all descriptors with quota_mode are over their limits, the request does not pass, and what
// was counted together is given back. After an error a denial that was decided stands, and so
// does an answer of which only limits that never deny are missing.
func (s *Server) decide(ctx context.Context, all []*asked) (passes bool, err error) {
	var each, spent, enforced, alone, back []*asked
	for _, a := range all {
		switch {
		case a.limit == nil:
		case a.negative:
			back = append(back, a)
		case a.policy.Algorithm == limiter.FixedWindow && (s.options.CountEach || a.each || a.spent && !a.closed()):
			each = append(each, a)
		case a.spent && a.hits > 0 && !a.closed():
			spent = append(spent, a)
		case a.shadow || s.isQuota(a) || s.options.Shadow:
			alone = append(alone, a)
		default:
			enforced = append(enforced, a)
		}
	}
	if err = s.countEach(ctx, each); err == nil {
		err = s.oneByOne(ctx, spent, s.spend)
	}
	denied := slices.ContainsFunc(all, s.denies)
	if err == nil && !denied {
		err = s.together(ctx, enforced)
		denied = slices.ContainsFunc(enforced, s.denies)
	}
	if err == nil && (!denied || s.options.Shadow) { // else nothing is to be counted for them
		err = s.oneByOne(ctx, alone, s.one)
	}
	if passes, err = s.outcome(ctx, all, err); err != nil {
		return false, err
	}
	for _, a := range slices.Concat(enforced, alone) {
		if passes || !a.counted || s.options.Shadow {
			continue
		}
		if _, err := s.limiter.Undo(ctx, a.policy, a.key, a.result); err != nil { // the answer does not depend on it
			_ = s.failed(ctx, err)
		}
	}
	if err := s.oneByOne(ctx, back, s.giveBack); err != nil {
		_ = s.failed(ctx, err)
	}
	return passes, nil
}

// outcome reports whether a request passes whose descriptors were decided, until err if that is
// not nil. It returns the gRPC error of a request without a decision.
func (s *Server) outcome(ctx context.Context, all []*asked, err error) (passes bool, _ error) {
	none, quotas := s.passes(all)
	if err == nil {
		return none && quotas, nil
	}
	failed := s.failed(ctx, err)
	for _, a := range all {
		if none && quotas && a.limit != nil && !a.negative && !a.known && !a.shadow && !s.options.Shadow {
			return false, failed
		}
	}
	return none && quotas, nil
}

// passes reports whether none of the decided descriptors denies the request, and whether the
// quotas let it pass: one is not over, or there is none.
func (s *Server) passes(all []*asked) (none, quotas bool) {
	none = true
	some, over := 0, 0
	for _, a := range all {
		switch {
		case a.unlimited:
		case s.isQuota(a):
			some++
			if a.over && !a.shadow {
				over++
			}
		case s.denies(a):
			none = false
		}
	}
	return none, some == 0 || over < some
}

// denies reports whether a descriptor keeps its request from passing.
func (s *Server) denies(a *asked) bool { return a.over && !s.isQuota(a) && !a.shadow }

// isQuota reports whether a descriptor passes unless all that are quotas are over. In quota
// mode those without a limit are, too.
func (s *Server) isQuota(a *asked) bool { return s.options.Quota || a.limit != nil && a.quota }

// oneByOne decides descriptors in their order, until an error.
func (s *Server) oneByOne(ctx context.Context, all []*asked, decide func(context.Context, *asked) error) error {
	for _, a := range all {
		if err := decide(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// together decides descriptors all or nothing. Those without hits are checked first. If two have
// the same entries and other limits, all are decided one by one until one is over its limit; the
// caller gives back what was counted before it.
func (s *Server) together(ctx context.Context, all []*asked) error {
	var consume []*asked
	for _, a := range all {
		if a.hits > 0 && !a.closed() {
			consume = append(consume, a)
		} else if err := s.check(ctx, a); err != nil {
			return err
		}
	}
	if len(consume) == 0 || slices.ContainsFunc(all, s.denies) {
		return nil
	}
	requests := make([]limiter.Request, len(consume))
	for i, a := range consume {
		requests[i] = a.request(a.policy)
	}
	if len(consume) == 1 || differ(requests) { // one may share a statement, or use a lease
		for _, a := range consume {
			if err := s.take(ctx, a, a.policy); err != nil || a.over {
				return err
			}
		}
		return nil
	}
	results, err := s.limiter.AllowAll(ctx, requests...)
	if err == nil {
		for i, a := range consume {
			a.set(results.PerRequest[i], results.Allowed)
		}
	}
	return err
}

// differ reports whether two requests have two policies for one key, which AllowAll refuses: those
// of the same entries with other limits.
func differ(requests []limiter.Request) bool {
	type row struct{ policy, key string }
	seen := make(map[row]limiter.Request, len(requests))
	for _, r := range requests {
		at := row{r.Policy.Name, r.Key}
		if before, ok := seen[at]; ok && (before.Policy != r.Policy || before.Floor != r.Floor) {
			return true
		}
		seen[at] = r
	}
	return false
}

// take decides one descriptor.
func (s *Server) take(ctx context.Context, a *asked, p limiter.Policy) error {
	r, err := s.limiter.Do(ctx, a.request(p))
	if err == nil {
		a.set(r, r.Allowed)
	}
	return err
}

// set notes the answer to a descriptor. counted reports whether its hits were counted if they
// fitted.
func (a *asked) set(r limiter.Result, counted bool) {
	a.result = r
	a.known = r.Source != limiter.SourceSkipped && (r.Source != limiter.SourceDegraded || r.Policy.OnError == limiter.FailLocal)
	a.over = a.known && (!r.Allowed || r.Shadowed)
	a.counted = a.known && counted && !a.over
}

// one decides a descriptor that never denies the others.
func (s *Server) one(ctx context.Context, a *asked) error {
	if a.hits == 0 || a.closed() {
		return s.check(ctx, a)
	}
	p := a.policy
	p.Shadow = !s.isQuota(a) || s.options.Shadow
	return s.take(ctx, a, p)
}

// spend decides a descriptor that has hits, and counts what does not fit too.
func (s *Server) spend(ctx context.Context, a *asked) error {
	if err := s.take(ctx, a, a.policy); err != nil || !a.over {
		return err
	}
	r, err := s.limiter.Charge(ctx, a.policy, a.key, float64(a.hits))
	if err == nil {
		a.result.Remaining, a.result.RetryAfter = r.Remaining, r.ResetAfter
	}
	return err
}

// giveBack gives negative hits back.
func (s *Server) giveBack(ctx context.Context, a *asked) error {
	if a.hits == 0 || a.closed() {
		return nil
	}
	r, err := s.limiter.Refund(ctx, a.policy, a.key, float64(a.hits))
	if err == nil {
		a.result, a.known = r, true
	}
	return err
}

// check decides a descriptor without hits, or with a limit of 0: it is over if more than the
// limit is in use, as after the limit was lowered, or if the key is blocked.
func (s *Server) check(ctx context.Context, a *asked) error {
	if a.closed() {
		a.known, a.over, a.result = true, a.hits > 0, limiter.Result{At: s.options.Now(), Policy: a.policy}
		return nil
	}
	r, err := s.limiter.Check(ctx, a.policy, a.key, 0)
	if err == nil {
		a.set(r, false)
		a.over = a.known && (a.over || r.Level > a.ceiling(r.Burst))
	}
	return err
}

// countEach counts the hits of each descriptor by itself, above its limit too.
func (s *Server) countEach(ctx context.Context, all []*asked) error {
	requests := make([]limiter.Request, len(all))
	checks := false
	for i, a := range all {
		requests[i] = counter(a.policy).Request(a.key, float64(a.hits))
		checks = checks || a.hits == 0
	}
	if len(all) > 1 && !checks && !differ(requests) {
		results, err := s.limiter.AllowAll(ctx, requests...)
		if err != nil {
			return err
		}
		for i, a := range all {
			a.count(results.PerRequest[i])
		}
		return nil
	}
	return s.oneByOne(ctx, all, func(ctx context.Context, a *asked) (err error) { // in their order, as some may be for one key
		var r limiter.Result
		if p := counter(a.policy); a.hits == 0 {
			r, err = s.limiter.Check(ctx, p, a.key, 0)
		} else {
			r, err = s.limiter.Do(ctx, p.Request(a.key, float64(a.hits)))
		}
		if err == nil {
			a.count(r)
		}
		return err
	})
}

// count notes a count. It is refused only if it is above what can be counted exactly.
func (a *asked) count(r limiter.Result) {
	a.known, a.counted = true, r.Allowed
	a.over = !r.Allowed || r.Level > a.ceiling(a.policy.Limit)
	r.Burst, r.Remaining, r.RetryAfter = a.policy.Limit, max(0, a.policy.Limit-r.Level), r.ResetAfter
	a.result = r
}
