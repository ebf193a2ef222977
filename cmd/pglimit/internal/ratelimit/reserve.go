package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit/kuadrantpb"
	"github.com/pglimit/pglimit/limiter"
)

// The ttl of a reservation: of a request without one, and the bounds of others.
const defaultTTL, shortestTTL, longestTTL = time.Minute, time.Second, time.Hour

// between separates the IDs of a request's reservations, of which it is not a part. There is one
// for each descriptor, in their order; it is empty if nothing was reserved for the descriptor.
const between = ","

// reserve holds the amount for each descriptor with a limit, or for none.
func (s *Server) reserve(ctx context.Context, request *kuadrantpb.ReserveRequest) (*kuadrantpb.ReserveResponse, error) {
	ttl, err := ttlOf(request.GetTtl())
	var all []*asked
	if err == nil {
		all, err = s.matchAmount(ctx, request, request.GetAmount())
	}
	if err != nil {
		s.metrics.serviceErrors.Add(1)
		return nil, err
	}
	passes, err := s.holdAll(ctx, all, ttl)
	if err != nil {
		return nil, err
	}
	response := &kuadrantpb.ReserveResponse{Code: s.code(passes)}
	ids := make([]string, len(all))
	for i, a := range all {
		ids[i] = a.held
		if a.over && response.GetCode() == pb.RateLimitResponse_OVER_LIMIT { // what passes is counted by Commit
			s.account(a)
		}
	}
	if joined := strings.Join(ids, between); strings.Trim(joined, between) != "" {
		response.ReservationId = joined
	}
	return response, nil
}

// ttlOf returns the ttl of a request, in whole microseconds.
func ttlOf(d *durationpb.Duration) (time.Duration, error) {
	switch {
	case d == nil:
		return defaultTTL, nil
	case d.CheckValid() != nil || d.AsDuration() < 0:
		return 0, status.Errorf(codes.InvalidArgument, "ttl: is %ds and %dns: must be a duration, not below 0", d.GetSeconds(), d.GetNanos())
	}
	return min(max(d.AsDuration(), shortestTTL), longestTTL).Truncate(time.Microsecond), nil
}

// matchAmount is match for a request with one amount for all descriptors.
func (s *Server) matchAmount(ctx context.Context, request interface {
	GetDomain() string
	GetDescriptors() []*rlcommon.RateLimitDescriptor
}, amount uint64) ([]*asked, error) {
	all, err := s.match(ctx, &pb.RateLimitRequest{Domain: request.GetDomain(), Descriptors: request.GetDescriptors()})
	for i, a := range all {
		if a.spent || a.negative {
			return nil, status.Errorf(codes.InvalidArgument, "descriptors[%d]: has hits_addend or is_negative_hits, and the amount is the request's", i)
		}
		a.hits = min(amount, mostHits)
	}
	return all, err
}

// holdAll reserves for all descriptors, and reports whether the request passes. If it does not,
// nothing stays reserved. Those that never deny the others come last, as in decide.
func (s *Server) holdAll(ctx context.Context, all []*asked, ttl time.Duration) (passes bool, err error) {
	var enforced, alone []*asked
	for _, a := range all {
		switch {
		case a.limit == nil:
		case a.shadow || s.isQuota(a) || s.options.Shadow:
			alone = append(alone, a)
		default:
			enforced = append(enforced, a)
		}
	}
	// In one order: otherwise two requests for the same limits could take from each other what
	// one of them needs.
	slices.SortStableFunc(enforced, func(a, b *asked) int {
		return cmp.Or(cmp.Compare(a.policy.Name, b.policy.Name), cmp.Compare(a.key, b.key))
	})
	denied := false
	for _, a := range enforced {
		if err = s.hold(ctx, a, ttl); err != nil || a.over {
			denied = true
			break
		}
	}
	for _, a := range alone {
		if denied || err != nil {
			break
		}
		err = s.hold(ctx, a, ttl)
	}
	if passes, err = s.outcome(ctx, all, err); err == nil && (passes || s.options.Shadow) {
		return passes, nil
	}
	for _, a := range all {
		if a.held == "" {
			continue
		}
		// Also for a caller that has left. What is not cancelled expires.
		if err := s.limiter.Cancel(context.WithoutCancel(ctx), a.held); err != nil {
			_ = s.failed(context.WithoutCancel(ctx), err)
		}
		a.held = ""
	}
	return false, err
}

// hold reserves for one descriptor. Without hits it is only checked. An amount that can never fit
// is an estimate still, so that it takes the whole limit.
func (s *Server) hold(ctx context.Context, a *asked, ttl time.Duration) error {
	if a.hits == 0 || a.closed() {
		return s.room(ctx, a)
	}
	p := a.policy
	p.Shadow = s.options.Shadow || a.shadow
	request := a.request(p)
	r, err := s.limiter.Reserve(ctx, request, ttl)
	most := math.Floor(a.ceiling(r.Result.Burst))
	if err == nil && (!r.Result.Allowed || r.Result.Shadowed) && most >= 1 && request.Cost > most {
		request.Cost = most
		r, err = s.limiter.Reserve(ctx, request, ttl)
	}
	if err != nil && p.OnError != limiter.FailClosed { // which does not apply to a Reserve
		if open, failed := s.limiter.Check(ctx, p, a.key, request.Cost); failed == nil && open.Source == limiter.SourceDegraded {
			a.set(open, false)
			return nil
		}
	}
	if err != nil {
		return err
	}
	if a.set(r.Result, true); a.counted {
		a.held = r.ID
	}
	return nil
}

// commit counts the amount for each descriptor: it settles the reservation if there is one.
func (s *Server) commit(ctx context.Context, request *kuadrantpb.CommitRequest) (*kuadrantpb.CommitResponse, error) {
	all, err := s.matchAmount(ctx, request, request.GetActualAmount())
	ids := make([]string, len(all))
	if id := request.GetReservationId(); id != "" {
		ids = strings.Split(id, between)
	}
	if err == nil && len(ids) != len(all) {
		err = status.Errorf(codes.InvalidArgument, "reservation_id: is of a request with %d descriptors, and this one has %d", len(ids), len(all))
	}
	if err != nil {
		s.metrics.serviceErrors.Add(1)
		return nil, err
	}
	released := request.GetReservationId() != ""
	for i, a := range all {
		if a.held = ids[i]; a.held == "" {
			continue
		}
		held, err := s.settle(ctx, a)
		if err != nil {
			return nil, err
		}
		released = released && held
	}
	// Last, since a repeated Commit counts these again.
	for _, a := range all {
		if a.held != "" {
			continue
		}
		if err := s.report(ctx, a); err != nil {
			return nil, s.failed(ctx, err)
		}
	}
	return &kuadrantpb.CommitResponse{ReservationReleased: released}, nil
}

// settle ends the reservation of a descriptor, and reports whether it was still held. If it is not
// known any more, the descriptor has none.
func (s *Server) settle(ctx context.Context, a *asked) (held bool, err error) {
	r, err := s.limiter.Settle(ctx, a.held, float64(a.hits))
	switch {
	case errors.Is(err, limiter.ErrReservationEnded):
		s.metrics.serviceErrors.Add(1)
		return false, status.Error(codes.FailedPrecondition, "reservation_id: was committed before, with another actual_amount")
	case errors.Is(err, limiter.ErrNoReservation):
		a.held = ""
		return false, nil
	case err != nil:
		return false, s.failed(ctx, err)
	case !r.Replayed:
		a.set(r, true)
		a.over = r.Level > a.ceiling(r.Burst)
		a.counted = true // also above the limit
		s.account(a)
	}
	return !r.Expired, nil
}
