package ratelimit

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/limiter"
)

// pipe is a stream of quotas whose messages arrive late, but in their order.
type pipe struct {
	grpc.ServerStream
	ctx         context.Context
	up          chan *quotapb.RateLimitQuotaUsageReports
	down, later chan *quotapb.RateLimitQuotaResponse
}

func (p *pipe) Context() context.Context { return p.ctx }

func (p *pipe) Recv() (*quotapb.RateLimitQuotaUsageReports, error) {
	select {
	case r, ok := <-p.up:
		if !ok {
			return nil, io.EOF
		}
		return r, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

func (p *pipe) Send(r *quotapb.RateLimitQuotaResponse) error { return deliver(p.ctx, p.later, r) }

func deliver[T any](ctx context.Context, to chan T, message T) error {
	select {
	case to <- message:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// delayed passes messages on after a time each.
func delayed[T any](ctx context.Context, from, to chan T, delay func() time.Duration) {
	for {
		select {
		case m := <-from:
			select {
			case <-time.After(delay()):
			case <-ctx.Done():
				return
			}
			if deliver(ctx, to, m) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// fleet is many clients of a limit. passed counts the requests that they let pass, and excess is
// the most above the bound.
type fleet struct {
	plan           bound.Plan
	from           time.Time
	mu             sync.Mutex
	passed, excess float64
}

// pass notes a request that passes.
func (f *fleet) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passed++
	f.excess = max(f.excess, f.passed-bound.Allowed([]bound.Plan{f.plan}, f.from, time.Now()))
}

// proxy is a client that works as Envoy does, and denies requests without an assignment.
type proxy struct {
	*fleet
	server          *Server // which it has for itself, over the limiter of all
	counts          *counts
	random          *rand.Rand
	every           time.Duration // reports
	delay           time.Duration // of messages, at most
	known           bool          // has a bucket
	strategy        *typev3.RateLimitStrategy
	tokens          uint32
	ends            time.Time
	allowed, denied uint64
	last            time.Time // report
}

// request lets a request pass or not. It reports whether the bucket is new.
func (p *proxy) request() (isNew bool) {
	isNew = !p.known
	p.known = true
	s := p.strategy
	if time.Now().After(p.ends) {
		s = nil
	}
	switch {
	case s.GetTokenBucket() != nil && p.tokens > 0:
		p.tokens--
	case s.GetTokenBucket() == nil && s != nil && s.GetBlanketRule() == typev3.RateLimitStrategy_ALLOW_ALL:
	default:
		p.denied++
		return isNew
	}
	p.allowed++
	p.pass()
	p.counts.pass()
	return isNew
}

// act takes actions over.
func (p *proxy) act(r *quotapb.RateLimitQuotaResponse) {
	for _, a := range r.GetBucketAction() {
		if a.GetAbandonAction() != nil {
			p.known, p.strategy, p.allowed, p.denied = false, nil, 0, 0
			continue
		}
		if !p.known {
			continue
		}
		s := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
		bucket, had := s.GetTokenBucket(), p.strategy.GetTokenBucket()
		same := had != nil && !time.Now().After(p.ends) && had.GetMaxTokens() == bucket.GetMaxTokens() && had.GetFillInterval().GetNanos() == bucket.GetFillInterval().GetNanos()
		if !same {
			p.tokens = bucket.GetMaxTokens()
		}
		p.strategy, p.ends = s, time.Now().Add(a.GetQuotaAssignmentAction().GetAssignmentTimeToLive().AsDuration())
	}
}

// report returns the usage since the last one.
func (p *proxy) report() *quotapb.RateLimitQuotaUsageReports {
	u := &quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId:    &quotapb.BucketId{Bucket: map[string]string{"name": "shop", "env": "prod"}},
		TimeElapsed: durationpb.New(time.Since(p.last).Truncate(time.Second)), NumRequestsAllowed: p.allowed, NumRequestsDenied: p.denied,
	}
	p.allowed, p.denied, p.last = 0, 0, time.Now()
	return &quotapb.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{u}}
}

// serve works over one stream until it has lasted for a time. Between two pauses requests
// come at a rate; in a pause there are none.
func (p *proxy) serve(ctx context.Context, lasts time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	s := &pipe{ctx: ctx, up: make(chan *quotapb.RateLimitQuotaUsageReports), down: make(chan *quotapb.RateLimitQuotaResponse), later: make(chan *quotapb.RateLimitQuotaResponse, 100)}
	sent := make(chan *quotapb.RateLimitQuotaUsageReports, 100)
	late := rand.New(rand.NewPCG(p.random.Uint64(), 1))
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var mu sync.Mutex
	delay := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(late.Int64N(int64(p.delay) + 1))
	}
	running.Go(func() { _ = p.server.StreamRateLimitQuotas(s) })
	running.Go(func() { delayed(ctx, sent, s.up, delay) })
	running.Go(func() { delayed(ctx, s.later, s.down, delay) })
	reports := time.NewTicker(p.every)
	defer reports.Stop()
	gap := time.Duration(20+p.random.IntN(400)) * time.Millisecond
	next, pause := time.After(gap), time.Now().Add(time.Duration(p.random.IntN(60))*time.Second)
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-s.down:
			p.act(r)
		case <-reports.C:
			if p.known && deliver(ctx, sent, p.report()) != nil {
				return
			}
		case <-next:
			if p.request() {
				p.last = time.Now()
				if deliver(ctx, sent, p.report()) != nil {
					return
				}
			}
			wait := gap
			if time.Now().After(pause) {
				wait, pause = time.Duration(p.random.IntN(45))*time.Second, time.Now().Add(time.Duration(p.random.IntN(90))*time.Second)
			}
			next = time.After(wait)
		}
	}
}

// counts counts what a server takes from a limiter for a client, and gives back. What it charges
// is what the client had of an earlier stream, and counted when that took it. excess is the most
// that the client let pass above it.
type counts struct {
	*limiter.Limiter
	mu                         sync.Mutex
	taken, back, lower, excess float64
}

func (c *counts) AllowUpTo(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error) {
	r, err := c.Limiter.AllowUpTo(ctx, p, key, cost)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken += r.Granted
	return r, err
}

// Undo also counts what has leaked meanwhile, which the limiter does not give back.
func (c *counts) Undo(ctx context.Context, p limiter.Policy, key string, r limiter.Result) (limiter.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lower += r.Granted
	r, err := c.Limiter.Undo(ctx, p, key, r)
	c.back += r.Granted
	return r, err
}

func (c *counts) pass() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lower++
	c.excess = max(c.excess, c.lower-c.taken)
}

// TestQuotaFleet: what all clients of a limit let pass never exceeds its bound, while some
// vanish and come again, pause, or get and send their messages late. Most of the bound is used.
func TestQuotaFleet(t *testing.T) {
	t.Parallel()
	back := 0.0
	for name, own := range map[string]string{
		"bucket": "algorithm: token_bucket, burst: 100", "window": "", "log": "algorithm: sliding_window_log", "counter": "algorithm: sliding_window_counter",
	} {
		for seed := range uint64(5) {
			synctest.Test(t, func(t *testing.T) {
				rule := "unit: minute, requests_per_unit: 300"
				if own != "" {
					rule += ", pglimit: {" + own + "}"
				}
				l := limiter.NewMemory(nil)
				config := mustConfig(t, "domain: d\ndescriptors: [{key: name, descriptors: [{key: env, value: prod, rate_limit: {"+rule+"}}]}]\n")
				m, err := config.quota("d", map[string]string{"name": "shop", "env": "prod"}, []string{"env", "name"})
				if err != nil || m.limit == nil {
					t.Fatal(m, err)
				}
				p := m.policy
				f := &fleet{from: time.Now(), plan: bound.Plan{Algorithm: algorithm.Name(p.Algorithm), Limit: p.Limit, Burst: p.Burst, Period: p.Period, Aligned: p.Aligned}}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				random := rand.New(rand.NewPCG(seed, 0))
				var running sync.WaitGroup
				var all []*proxy
				for i := range 8 {
					counts := &counts{Limiter: l}
					c := &proxy{fleet: f, counts: counts, server: NewServer(counts, config, Options{Logger: slog.New(slog.DiscardHandler)}), random: rand.New(rand.NewPCG(random.Uint64(), 0)), every: time.Duration(1+random.IntN(5)) * time.Second, delay: 50 * time.Millisecond}
					if i%4 == 3 {
						c.delay = time.Duration(random.IntN(40)) * time.Second
					}
					all = append(all, c)
					running.Go(func() {
						for ctx.Err() == nil { // a new stream each time
							c.serve(ctx, time.Duration(1+c.random.IntN(300))*time.Second)
						}
					})
				}
				running.Wait()
				for i, c := range all {
					if c.counts.excess > 0 {
						t.Errorf("%s, seed %d: client %d let pass %v more than was taken for it", name, seed, i, c.counts.excess)
					}
					back += c.counts.back
				}
				most := bound.Allowed([]bound.Plan{f.plan}, f.from, time.Now())
				t.Logf("%s, seed %d: %v passed of %v", name, seed, f.passed, most)
				if f.excess > bound.Slack {
					t.Errorf("%s, seed %d: %v units above the bound", name, seed, f.excess)
				}
				if f.passed < most/2 {
					t.Errorf("%s, seed %d: only %v of %v units were used", name, seed, f.passed, most)
				}
			})
		}
	}
	if back == 0 {
		t.Error("nothing was given back")
	}
}
