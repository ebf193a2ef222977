package ratelimit

import (
	"cmp"
	"context"
	"math"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pglimit/pglimit/limiter"
)

// bucket is a client's bucket on one stream. Its client passes no more than the units that the
// limit has counted for it, however late messages arrive:
//
//   - A block of units is taken from the limit before it is assigned, as a token bucket that
//     does not refill. What a client uses late, it uses of units that count since then.
//   - Each assignment is a new block. Repeating one to extend its life would fill it again if it
//     arrived after its end.
//   - What is left of a block that another replaces is lost, as the client may use it until the
//     other arrives. So a block is replaced when it is nearly used.
//   - What is left of the last block is given back once it certainly cannot be used: see back.
//   - What a client passes without an assignment is counted when it reports it.
//
// If the stream ends, clients keep their blocks, which end by themselves.
type bucket struct {
	server *Server
	config *Config
	match

	taken, used float64       // since the last report; what was used without a block is taken, too
	demand      float64       // of the last report
	reported    time.Time     // the last report
	between     time.Duration // it and the one before
	clock       time.Duration // the client's: the sum of the times that it reported
	isFirst     bool          // no report yet
	isDry       bool          // at its first report the client had no units of an earlier stream

	assigned time.Time // the last assignment, of any kind
	life     time.Duration
	blocks   int32 // number of them

	block          limiter.Result // the last one; Granted is 0 if it is over
	lived          time.Duration  // its life
	sent           time.Time
	before, usedAt float64       // taken and used before it
	received       time.Duration // clock when it was in use for certain; negative: not known
	isOver         bool          // it certainly cannot be used any more
}

const (
	shortestLife, longestLife = 10 * time.Second, 10 * time.Minute // of an assignment
	// A block is for blockReports reports of the last one's demand, but at most maxShare of the
	// limit, if the policy has no Lease.
	blockReports = 4
	maxShare     = 0.1
)

// note adds a report.
func (b *bucket) note(allowed, denied float64, elapsed time.Duration, now time.Time) {
	if b.isFirst {
		b.isFirst, b.isDry = false, allowed == 0 && denied > 0
		b.assigned, b.received = now, -1
	} else {
		b.between = now.Sub(b.reported)
	}
	b.reported, b.demand = now, allowed+denied
	b.taken, b.before, b.usedAt, b.used = b.taken-b.used, b.before-b.used, b.usedAt-b.used, allowed // small, to be exact
	b.clock += min(elapsed, longestLife)                                                            // which is enough to be over
	switch {
	case b.received >= 0:
		b.isOver = denied > 0 || b.clock-b.received >= b.lived && now.Sub(b.sent) >= b.lived
	case b.isDry && b.used > b.before:
		b.received = b.clock
	}
}

// set sets the limit. Under a new one the client needs a new assignment.
func (b *bucket) set(config *Config, m match) {
	b.config, b.match = config, m
	b.life, b.block.Granted, b.received, b.isOver = 0, 0, -1, false
}

// isIdle reports whether the client has no use for the bucket.
func (b *bucket) isIdle() bool {
	return b.demand == 0 && b.reported.Sub(b.assigned) > 2*max(b.life, shortestLife)
}

// ends reports whether the last assignment may end before the next report.
func (b *bucket) ends() bool { return b.reported.Add(b.between).Sub(b.assigned) >= b.life }

// charge counts the units that were used without a block.
func (b *bucket) charge(ctx context.Context) error {
	more := min(b.used-b.taken, mostHits)
	if more <= 0 || b.unlimited || b.policy.Limit == 0 {
		return nil
	}
	_, err := b.server.limiter.Charge(ctx, b.policy, b.key, more)
	if err == nil {
		b.taken += more
	}
	return err
}

// assign returns what to assign next, or nil to keep the last assignment.
func (b *bucket) assign(ctx context.Context) (*typev3.RateLimitStrategy, error) {
	switch {
	case b.unlimited:
		return b.rule(typev3.RateLimitStrategy_ALLOW_ALL), nil
	case b.policy.Limit == 0:
		return b.rule(typev3.RateLimitStrategy_DENY_ALL), nil
	}
	if err := b.charge(ctx); err != nil {
		return nil, err
	}
	if b.shadow || b.server.options.Shadow {
		return b.rule(typev3.RateLimitStrategy_ALLOW_ALL), nil
	}
	if err := b.back(ctx); err != nil {
		return nil, err
	}
	left := b.left()
	if b.ends() {
		left = 0
	}
	if b.demand == 0 || left >= b.demand {
		return nil, nil
	}
	most := cmp.Or(b.policy.Burst, b.policy.Limit) * cmp.Or(b.policy.Lease, maxShare)
	n := math.Floor(max(1, min(blockReports*b.demand, most, math.MaxUint32)))
	l := b.server.limiter
	r, err := b.ask(ctx, n)
	switch {
	case err != nil:
		return nil, err
	case r.Granted < 1 && b.ends():
		return b.rule(typev3.RateLimitStrategy_DENY_ALL), nil
	case r.Granted < 1:
		return nil, nil
	case r.Granted <= left:
		_, err = l.Undo(ctx, b.policy, b.key, r) // it was not sent
		return nil, err
	}
	return b.give(r), nil
}

// ask takes up to n units, or under a floor what fits of n, its half, and so on.
func (b *bucket) ask(ctx context.Context, n float64) (r limiter.Result, err error) {
	if b.floor == 0 {
		return b.server.limiter.AllowUpTo(ctx, b.policy, b.key, n)
	}
	for ; n >= 1 && err == nil && !r.Allowed; n = math.Floor(n / 2) {
		r, err = b.server.limiter.Do(ctx, limiter.Request{Policy: b.policy, Key: b.key, Cost: n, Floor: b.floor})
	}
	return r, err
}

// give assigns a block. Blocks differ in the nanoseconds of the interval, so that a client does
// not take one for the last one: Envoy compares no other part of it.
func (b *bucket) give(r limiter.Result) *typev3.RateLimitStrategy {
	const year = 365 * 24 * 60 * 60 // seconds: it never fills
	b.before, b.usedAt, b.received = b.taken, b.used, -1
	b.taken += r.Granted
	b.block, b.sent = r, b.reported
	b.blocks = b.blocks%999_999_999 + 1
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: uint32(r.Granted), TokensPerFill: wrapperspb.UInt32(1), FillInterval: &durationpb.Duration{Seconds: year, Nanos: b.blocks},
	}}}
}

// left returns how many units of the last block are certainly left. It counts all use since
// the block was granted, although the client may have used units of an earlier block.
func (b *bucket) left() float64 { return max(0, b.block.Granted-(b.used-b.usedAt)) }

// back gives back what is left of the last block if it is over. The client certainly had it at
// one report if it had used more than was taken before, and had nothing of an earlier stream. It
// is over if the client has denied a request since, or reported a time of the block's life. Then
// all before it are over, too.
func (b *bucket) back(ctx context.Context) error {
	if !b.isOver {
		return nil
	}
	r := b.block
	r.Granted = b.left()
	b.block.Granted, b.received, b.isOver = 0, -1, false
	b.taken, b.before = b.used, b.used
	if r.Granted == 0 {
		return nil
	}
	_, err := b.server.limiter.Undo(ctx, b.policy, b.key, r)
	return err
}

// rule assigns a rule, unless the last assignment is in force until the next report.
func (b *bucket) rule(rule typev3.RateLimitStrategy_BlanketRule) *typev3.RateLimitStrategy {
	if !b.ends() {
		return nil
	}
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: rule}}
}

// action assigns a strategy for some reports, in whole seconds as Envoy reads them. A block does
// not outlive its window.
func (b *bucket) action(strategy *typev3.RateLimitStrategy) *quotapb.RateLimitQuotaResponse_BucketAction {
	b.assigned = b.reported
	b.life = min(max(shortestLife, (blockReports+1)*b.between), longestLife)
	isBlock := strategy.GetTokenBucket() != nil
	if isBlock && b.policy.Algorithm == limiter.FixedWindow {
		b.life = min(b.life, b.block.ResetAfter)
	}
	b.life = (b.life + time.Second - 1).Truncate(time.Second)
	if isBlock {
		b.lived = b.life
	}
	return &quotapb.RateLimitQuotaResponse_BucketAction{BucketAction: &quotapb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &quotapb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{AssignmentTimeToLive: durationpb.New(b.life), RateLimitStrategy: strategy},
	}}
}
