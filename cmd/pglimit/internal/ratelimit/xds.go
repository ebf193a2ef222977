package ratelimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
)

// configType is the type of the resources.
const configType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// XDS is a server of aggregated discovery that has the configuration, a resource for each domain.
type XDS struct {
	Conn *grpc.ClientConn
	Node *core.Node
	// Headers are sent with each stream.
	Headers map[string]string
	// Merge lets several resources have parts of one domain.
	Merge bool
	// FirstWait and LongestWait bound the time until a stream that ended is opened again.
	FirstWait, LongestWait time.Duration
}

// FollowXDS uses what the server sends, until ctx ends. What is not valid is refused, and the
// last configuration stays. So it does while the server is away.
func (s *Server) FollowXDS(ctx context.Context, x XDS) {
	wait := x.FirstWait
	for ctx.Err() == nil {
		answered, err := s.stream(ctx, x)
		if answered {
			wait = x.FirstWait
		}
		if ctx.Err() != nil {
			return
		}
		s.options.Logger.Error("the stream of the configuration ended; it is opened again", "in", wait, "error", err)
		timer := time.NewTimer(wait/2 + rand.N(wait/2+1))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		wait = min(2*wait, x.LongestWait)
	}
}

// stream opens a stream and reads it to its end. It reports whether the server sent anything.
func (s *Server) stream(ctx context.Context, x XDS) (answered bool, err error) {
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(x.Headers)))
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(x.Conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	request := &discovery.DiscoveryRequest{Node: x.Node, TypeUrl: configType}
	for {
		if err = stream.Send(request); err != nil {
			_, err = stream.Recv() // which has the reason
			return answered, err
		}
		response, err := stream.Recv()
		if err != nil {
			return answered, err
		}
		answered = true
		request = &discovery.DiscoveryRequest{Node: x.Node, TypeUrl: configType, ResponseNonce: response.GetNonce(), VersionInfo: request.GetVersionInfo()}
		c, err := fromResources(x.Merge, response.GetResources())
		if s.SetConfig(c, err); err != nil {
			request.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		} else {
			request.VersionInfo = response.GetVersionInfo()
		}
	}
}

// fromResources returns the configuration of all resources of a response.
func fromResources(merge bool, resources []*anypb.Any) (*Config, error) {
	domains := make([]*Domain, len(resources))
	for i, r := range resources {
		var c rlsconf.RateLimitConfig
		if err := r.UnmarshalTo(&c); err != nil {
			return nil, fmt.Errorf("resources[%d]: %w", i, err)
		}
		domains[i] = FromProto(&c)
	}
	return NewConfig(merge, domains...)
}
