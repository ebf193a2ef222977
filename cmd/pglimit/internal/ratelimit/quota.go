package ratelimit

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bounds of quotas. A bucket beyond them gets none, and what its client used is counted.
const (
	maxBuckets = 10_000 // of a stream
	allBuckets = 50_000 // of all streams, of at most 2 kB each
	maxEntries = 10     // of a bucket's id
)

// stream is a client's stream of quotas.
type stream struct {
	*Server
	domain  string
	buckets map[string]*bucket // by the text of the id
}

// keep keeps a bucket. It reports false if there are too many.
func (q *stream) keep(name string, b *bucket) bool {
	switch {
	case q.buckets[name] != nil:
		return true
	case len(q.buckets) >= maxBuckets:
		return false
	case q.Server.buckets.Add(1) > allBuckets:
		q.Server.buckets.Add(-1)
		return false
	}
	q.buckets[name] = b
	return true
}

// drop forgets a bucket, if it is kept.
func (q *stream) drop(name string) {
	if q.buckets[name] != nil {
		delete(q.buckets, name)
		q.Server.buckets.Add(-1)
	}
}

// end forgets all buckets.
func (q *stream) end() { q.Server.buckets.Add(-int64(len(q.buckets))) }

// StreamRateLimitQuotas gives clients quotas for the buckets whose usage they report, until the
// stream ends or the Server drains. The entries of a bucket's id are those of a descriptor, in
// any order, and its limit is the descriptor's. A quota is a block of units that the limit has
// counted: see bucket.
func (s *Server) StreamRateLimitQuotas(g grpc.BidiStreamingServer[quotapb.RateLimitQuotaUsageReports, quotapb.RateLimitQuotaResponse]) error {
	ctx, cancel := context.WithCancel(g.Context())
	defer cancel()
	reports, ended := make(chan *quotapb.RateLimitQuotaUsageReports), make(chan error, 1)
	go func() {
		for {
			r, err := g.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case reports <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	q := &stream{Server: s, buckets: map[string]*bucket{}}
	defer q.end()
	for {
		select {
		case <-ctx.Done(): // the reader may have left by it, too
			return status.FromContextError(ctx.Err()).Err()
		case <-s.drain:
			return status.Error(codes.Unavailable, "the server shuts down")
		case err := <-ended:
			if err == io.EOF {
				return nil
			}
			return err
		case r := <-reports:
			answer, err := q.answer(ctx, r)
			if err == nil && len(answer.GetBucketAction()) > 0 {
				err = g.Send(answer)
			}
			if err != nil {
				return err
			}
		}
	}
}

// answer returns the actions for a message of reports, in their order.
func (q *stream) answer(ctx context.Context, r *quotapb.RateLimitQuotaUsageReports) (*quotapb.RateLimitQuotaResponse, error) {
	if err := q.check(r); err != nil {
		q.metrics.serviceErrors.Add(1)
		return nil, err
	}
	config, err := q.ready()
	if err != nil {
		return nil, err
	}
	response := &quotapb.RateLimitQuotaResponse{}
	for _, u := range r.GetBucketQuotaUsages() {
		action, err := q.report(ctx, config, u)
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		switch {
		case err != nil: // the client keeps what it has, and its next report tries again
			_ = q.failed(ctx, err)
		case action != nil:
			action.BucketId = u.GetBucketId()
			response.BucketAction = append(response.BucketAction, action)
		}
	}
	return response, nil
}

// check returns an error for reports that are not valid.
func (q *stream) check(r *quotapb.RateLimitQuotaUsageReports) error {
	switch {
	case q.domain == "" && r.GetDomain() == "":
		return status.Error(codes.InvalidArgument, "domain: must not be empty in the first report")
	case q.domain == "":
		q.domain = r.GetDomain()
	case r.GetDomain() != "" && r.GetDomain() != q.domain:
		return status.Errorf(codes.InvalidArgument, "domain: is %.80q after %.80q: open a stream for each domain", r.GetDomain(), q.domain)
	}
	for i, u := range r.GetBucketQuotaUsages() {
		id, elapsed := u.GetBucketId().GetBucket(), u.GetTimeElapsed()
		if len(id) == 0 {
			return status.Errorf(codes.InvalidArgument, "bucket_quota_usages[%d].bucket_id: must not be empty", i)
		}
		for key, value := range id {
			if key == "" || value == "" {
				return status.Errorf(codes.InvalidArgument, "bucket_quota_usages[%d].bucket_id: %.80q is %.80q: neither must be empty", i, key, value)
			}
		}
		if elapsed != nil && (elapsed.CheckValid() != nil || elapsed.AsDuration() < 0) {
			return status.Errorf(codes.InvalidArgument, "bucket_quota_usages[%d].time_elapsed: is %d s and %d ns: must not be negative", i, elapsed.GetSeconds(), elapsed.GetNanos())
		}
	}
	return nil
}

// report notes the usage of a bucket and returns the action that it needs; nil for none.
func (q *stream) report(ctx context.Context, config *Config, u *quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage) (*quotapb.RateLimitQuotaResponse_BucketAction, error) {
	id := u.GetBucketId().GetBucket()
	if len(id) > maxEntries {
		return abandon(), nil
	}
	keys := slices.Sorted(maps.Keys(id))
	var text []byte
	for _, key := range keys {
		text = fmt.Appendf(text, "%q=%q,", key, id[key])
	}
	name := string(text)
	if sum := sha256.Sum256(text); len(text) > len(sum) {
		name = string(sum[:])
	}
	b := q.buckets[name]
	if b == nil {
		b = &bucket{server: q.Server, isFirst: true}
	}
	if b.config != config {
		m, err := config.quota(q.domain, id, keys)
		if err != nil {
			return nil, err
		}
		b.set(config, m)
	}
	if b.limit == nil {
		q.drop(name)
		return abandon(), nil
	}
	allowed, denied := min(u.GetNumRequestsAllowed(), mostHits), min(u.GetNumRequestsDenied(), mostHits)
	c := q.metrics.series(b.metric)
	c.total.Add(allowed + denied)
	c.within.Add(allowed)
	c.over.Add(denied)
	b.note(float64(allowed), float64(denied), u.GetTimeElapsed().AsDuration(), time.Now())
	if b.isIdle() || !q.keep(name, b) {
		if err := b.charge(ctx); err != nil {
			return nil, err
		}
		q.drop(name)
		return abandon(), nil
	}
	strategy, err := b.assign(ctx)
	if strategy == nil {
		return nil, err
	}
	return b.action(strategy), nil
}

// quota returns the limit of a bucket's id, whose keys are sorted. It has none if no order of its
// entries matches.
func (c *Config) quota(domain string, id map[string]string, keys []string) (m match, err error) {
	root := c.domains[domain]
	if root == nil {
		return m, nil
	}
	entries := make([]*rlcommon.RateLimitDescriptor_Entry, len(keys))
	for i, key := range keys {
		entries[i] = &rlcommon.RateLimitDescriptor_Entry{Key: key, Value: id[key]}
	}
	if ordered := root.order(entries); ordered != nil {
		m, _, err = c.match(domain, &rlcommon.RateLimitDescriptor{Entries: ordered})
	}
	for class, rest := range root.classed(entries) {
		if ordered := root.order(rest); m.limit == nil && err == nil && ordered != nil {
			m, _, err = c.match(domain, &rlcommon.RateLimitDescriptor{Entries: append(ordered, class)})
		}
	}
	return m, err
}

// order returns the entries in an order that leads to a limit, or nil if there is none.
func (n *node) order(entries []*rlcommon.RateLimitDescriptor_Entry) []*rlcommon.RateLimitDescriptor_Entry {
	for i, e := range entries {
		child, _ := n.find(e)
		switch {
		case child == nil:
		case len(entries) > 1:
			if rest := child.order(slices.Delete(slices.Clone(entries), i, i+1)); rest != nil {
				return append([]*rlcommon.RateLimitDescriptor_Entry{e}, rest...)
			}
		case child.limit != nil:
			return entries
		}
	}
	return nil
}

func abandon() *quotapb.RateLimitQuotaResponse_BucketAction {
	return &quotapb.RateLimitQuotaResponse_BucketAction{BucketAction: &quotapb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
		AbandonAction: &quotapb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
	}}
}
