package ratelimit

import (
	"math"
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pglimit/pglimit/limiter"
)

// response returns the response to a decided request.
func (s *Server) response(request *pb.RateLimitRequest, all []*asked, passes bool) *pb.RateLimitResponse {
	response := &pb.RateLimitResponse{OverallCode: s.code(passes)}
	for _, a := range all {
		response.Statuses = append(response.Statuses, a.status())
	}
	if s.options.Headers != nil {
		response.ResponseHeadersToAdd = s.headers(all, response.GetStatuses())
	}
	if s.options.Metadata {
		response.DynamicMetadata = dynamicMetadata(request, all, response.GetStatuses())
	}
	return response
}

// code returns the code of a request that passes, or does not. A shadow counts what it lets pass.
func (s *Server) code(passes bool) pb.RateLimitResponse_Code {
	switch {
	case passes:
		return pb.RateLimitResponse_OK
	case s.options.Shadow:
		s.metrics.shadowed.Add(1)
		return pb.RateLimitResponse_OK
	}
	return pb.RateLimitResponse_OVER_LIMIT
}

// status returns a descriptor's answer. It has no numbers if no limit decided.
func (a *asked) status() *pb.RateLimitResponse_DescriptorStatus {
	st := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	switch {
	case a.unlimited:
		st.LimitRemaining = math.MaxUint32
		return st
	case a.limit == nil || !a.known:
		return st
	case a.over && !a.shadow:
		st.Code = pb.RateLimitResponse_OVER_LIMIT
	}
	st.CurrentLimit = &pb.RateLimitResponse_RateLimit{Name: a.name, RequestsPerUnit: a.perUnit, Unit: a.unit, UnitMultiplier: a.times}
	st.LimitRemaining = uint32(min(a.result.Remaining, math.MaxUint32))
	st.DurationUntilReset = a.untilReset()
	return st
}

// untilReset returns a time in whole seconds; nil is never. Of a limit per unit it is the time
// until the window ends. Of another limit it is the time until the key is empty or, after a
// denial, until the request fits.
func (a *asked) untilReset() *durationpb.Duration {
	p, r := &a.policy, &a.result
	switch {
	case p.Algorithm == limiter.FixedWindow && p.Aligned && p.Period%time.Second == 0:
		seconds := int64(p.Period / time.Second)
		return &durationpb.Duration{Seconds: seconds - r.At.Unix()%seconds}
	case a.over && r.RetryAfter == limiter.Never, !a.over && r.ResetAfter == limiter.Never:
		return nil
	case a.over:
		return durationpb.New(r.RetryAfter)
	}
	return durationpb.New(r.ResetAfter)
}

// headers returns the headers for the limit that is closest to its end: the last one that is
// over and enforced, else the first with the least left.
func (s *Server) headers(all []*asked, statuses []*pb.RateLimitResponse_DescriptorStatus) []*core.HeaderValue {
	var closest *pb.RateLimitResponse_DescriptorStatus
	least := uint32(math.MaxUint32)
	for i, st := range statuses {
		if st.GetCurrentLimit() == nil {
			continue
		}
		if st.GetLimitRemaining() < least {
			closest, least = st, st.GetLimitRemaining()
		}
		if st.GetCode() == pb.RateLimitResponse_OVER_LIMIT && !s.isQuota(all[i]) {
			closest, least = st, 0
		}
	}
	if closest == nil {
		return nil
	}
	reset := closest.GetDurationUntilReset().GetSeconds()
	if closest.GetDurationUntilReset().GetNanos() > 0 {
		reset++
	}
	return []*core.HeaderValue{
		{Key: s.options.Headers.Limit, Value: strconv.FormatUint(uint64(closest.GetCurrentLimit().GetRequestsPerUnit()), 10)},
		{Key: s.options.Headers.Remaining, Value: strconv.FormatUint(uint64(closest.GetLimitRemaining()), 10)},
		{Key: s.options.Headers.Reset, Value: strconv.FormatInt(reset, 10)},
	}
}

// dynamicMetadata returns the request, and the metadata of the limits under which it passed.
func dynamicMetadata(request *pb.RateLimitRequest, all []*asked, statuses []*pb.RateLimitResponse_DescriptorStatus) *structpb.Struct {
	passed := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	list := make([]*structpb.Value, len(all))
	for i, d := range request.GetDescriptors() {
		entries := make([]*structpb.Value, len(d.GetEntries()))
		for j, e := range d.GetEntries() {
			entries[j] = structpb.NewStringValue(e.GetKey() + "=" + e.GetValue())
		}
		fields := map[string]*structpb.Value{"entries": listValue(entries)}
		if d.GetLimit() != nil {
			fields["limit"] = structpb.NewStringValue(d.GetLimit().String())
		}
		if d.GetHitsAddend() != nil {
			fields["hitsAddend"] = structpb.NewNumberValue(float64(d.GetHitsAddend().GetValue()))
		}
		list[i] = structpb.NewStructValue(&structpb.Struct{Fields: fields})
		if all[i].limit != nil && statuses[i].GetCode() == pb.RateLimitResponse_OK {
			merge(passed, all[i].metadata)
		}
	}
	fields := map[string]*structpb.Value{"domain": structpb.NewStringValue(request.GetDomain()), "descriptors": listValue(list)}
	if request.GetHitsAddend() != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(request.GetHitsAddend()))
	}
	if len(passed.GetFields()) > 0 {
		fields["metadata"] = structpb.NewStructValue(passed)
	}
	return &structpb.Struct{Fields: fields}
}

func listValue(values []*structpb.Value) *structpb.Value {
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

// merge adds the fields that into does not have. Where both have a mapping, their fields.
func merge(into, from *structpb.Struct) {
	for name, value := range from.GetFields() {
		had := into.GetFields()[name]
		switch {
		case had == nil:
			into.Fields[name] = proto.CloneOf(value)
		case had.GetStructValue() != nil && value.GetStructValue() != nil:
			merge(had.GetStructValue(), value.GetStructValue())
		}
	}
}
