package ratelimit

import (
	"context"
	"slices"

	"github.com/pglimit/pglimit/limiter"
)

// Limiter is what a Server decides with: a *limiter.Limiter.
type Limiter interface {
	Do(context.Context, limiter.Request) (limiter.Result, error)
	AllowUpTo(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Charge(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	AllowAll(context.Context, ...limiter.Request) (limiter.Results, error)
	Check(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Undo(ctx context.Context, p limiter.Policy, key string, r limiter.Result) (limiter.Result, error)
}

// asked is a descriptor of a request, and how it was decided.
type asked struct {
	match
	unlimited bool
	hits      uint64
	spent     bool // the descriptor has the hits itself

	result  limiter.Result
	counted bool // its hits are in result.Level
	known   bool // it was decided: result has numbers
	over    bool
}

func (a *asked) request(p limiter.Policy) limiter.Request { return p.Request(a.key, cost(a.hits)) }

// closed reports whether the limit is 0, which lets nothing pass.
func (a *asked) closed() bool { return a.policy.Limit == 0 }

// decide decides the descriptors of a request that have a limit, and reports whether it passes:
//
//   - Those that enforce their limit pass together, or nothing is counted for them.
//   - Those that never deny the others are decided one by one after them: those with
//     shadow_mode or quota_mode, and all if the server is a shadow.
//   - Those that count each by itself are counted whatever the others do, above the limit too. So
//     are those with hits of their own: a proxy sends them to check, with 0, and to report what a
//     response has cost, which is spent in any case. Buckets only count what fits.
//
// If all descriptors with quota_mode are over their limits, the request does not pass, and what
// was counted together is given back.
func (s *Server) decide(ctx context.Context, all []*asked) (passes bool, err error) {
	var each, enforced, alone []*asked
	for _, a := range all {
		switch {
		case a.limit == nil:
		case a.policy.Algorithm == limiter.FixedWindow && (s.options.CountEach || a.each || a.spent && !a.closed()):
			each = append(each, a)
		case a.shadow || s.isQuota(a) || s.options.Shadow:
			alone = append(alone, a)
		default:
			enforced = append(enforced, a)
		}
	}
	if err = s.countEach(ctx, each); err != nil {
		return false, err
	}
	if passes = !slices.ContainsFunc(each, s.denies); passes {
		if passes, err = s.together(ctx, enforced); err != nil {
			return false, err
		}
	}
	if !passes && !s.options.Shadow { // nothing is to be counted for the others
		return false, nil
	}
	for _, a := range alone {
		if err = s.one(ctx, a); err != nil {
			return false, err
		}
	}
	none, quotas := s.passes(all)
	if quotas {
		return passes && none, nil
	}
	for _, a := range slices.Concat(enforced, alone) {
		if !a.counted || s.options.Shadow {
			continue
		}
		if _, err = s.limiter.Undo(ctx, a.policy, a.key, a.result); err != nil { // the answer is known all the same
			s.options.Logger.Warn("a denied request was counted", "limit", a.metric, "error", err)
		}
	}
	return false, nil
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

// together decides descriptors all or nothing. Those without hits are checked first.
func (s *Server) together(ctx context.Context, all []*asked) (passes bool, err error) {
	var consume []*asked
	passes = true
	for _, a := range all {
		if a.hits > 0 && !a.closed() {
			consume = append(consume, a)
			continue
		}
		if err = s.check(ctx, a); err != nil {
			return false, err
		}
		passes = passes && !a.over
	}
	switch {
	case !passes || len(consume) == 0:
		return passes, nil
	case len(consume) == 1: // may share a statement, or use a lease
		err = s.take(ctx, consume[0], consume[0].policy)
		return !consume[0].over, err
	}
	requests := make([]limiter.Request, len(consume))
	for i, a := range consume {
		requests[i] = a.request(a.policy)
	}
	results, err := s.limiter.AllowAll(ctx, requests...)
	if err != nil {
		return false, err
	}
	for i, a := range consume {
		a.set(results.PerRequest[i], results.Allowed)
	}
	return results.Allowed, nil
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
		a.over = a.known && (a.over || r.Level > r.Burst)
	}
	return err
}

// countEach counts the hits of each descriptor by itself, above its limit too.
func (s *Server) countEach(ctx context.Context, all []*asked) error {
	requests := make([]limiter.Request, len(all))
	checks := false
	for i, a := range all {
		requests[i] = a.request(counter(a.policy))
		checks = checks || a.hits == 0
	}
	if len(all) > 1 && !checks {
		results, err := s.limiter.AllowAll(ctx, requests...)
		if err != nil {
			return err
		}
		for i, a := range all {
			a.count(results.PerRequest[i])
		}
		return nil
	}
	for i, a := range all { // in their order, as some may be for one key
		var r limiter.Result
		var err error
		if a.hits == 0 {
			r, err = s.limiter.Check(ctx, requests[i].Policy, a.key, 0)
		} else {
			r, err = s.limiter.Do(ctx, requests[i])
		}
		if err != nil {
			return err
		}
		a.count(r)
	}
	return nil
}

// count notes a count. It is refused only if it is above what can be counted exactly.
func (a *asked) count(r limiter.Result) {
	a.known, a.counted = true, r.Allowed
	a.over = !r.Allowed || r.Level > a.policy.Limit
	r.Burst, r.Remaining = a.policy.Limit, max(0, a.policy.Limit-r.Level)
	a.result = r
}
