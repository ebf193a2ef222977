package ratelimit

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pglimit/pglimit/internal/must"
)

// control is a server of discovery whose test reads requests and writes responses.
type control struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	requests  chan *discovery.DiscoveryRequest
	responses chan *discovery.DiscoveryResponse // nil ends the stream
	header    chan string
}

func (c *control) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	c.header <- append(md.Get("x-tenant"), "")[0]
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		c.requests <- request
		select {
		case response := <-c.responses:
			if response == nil {
				return nil
			}
			if err := stream.Send(response); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func response(t *testing.T, version string, resources ...*rlsconf.RateLimitConfig) *discovery.DiscoveryResponse {
	r := &discovery.DiscoveryResponse{VersionInfo: version, Nonce: "nonce " + version, TypeUrl: configType}
	for _, c := range resources {
		packed := must.OK(anypb.New(c))(t)
		r.Resources = append(r.Resources, packed)
	}
	return r
}

// TestFollowXDS checks what is used, what is refused, and that a stream that ends is opened again.
func TestFollowXDS(t *testing.T) {
	t.Parallel()
	listener := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	c := &control{requests: make(chan *discovery.DiscoveryRequest), responses: make(chan *discovery.DiscoveryResponse), header: make(chan string, 10)}
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, c)
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(listener) })
	conn := must.OK(grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	s := server(t, oneLimit("first"), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() {
		s.FollowXDS(ctx, XDS{Conn: conn, Node: &core.Node{Id: "n"}, Headers: map[string]string{"x-tenant": "a"}, FirstWait: time.Millisecond, LongestWait: time.Millisecond})
	})
	good := func(domain string) *rlsconf.RateLimitConfig {
		return &rlsconf.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*rlsconf.RateLimitDescriptor{{Key: "k", RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_DAY}}}}
	}
	other := must.OK(anypb.New(&core.Node{}))(t)
	for i, step := range []struct {
		send            *discovery.DiscoveryResponse
		version, nonce  string // of the request before
		refused, domain string
	}{
		{response(t, "1", good("a")), "", "", "", "first"},
		{response(t, "2", good("b"), good("b")), "1", "nonce 1", "", "a"},
		{&discovery.DiscoveryResponse{VersionInfo: "3", Nonce: "nonce 3", Resources: []*anypb.Any{other}}, "1", "nonce 2", `b: domain: "b" is that of b, too`, "a"},
		{response(t, "4", good("c")), "1", "nonce 3", "resources[0]: ", "a"},
		{nil, "4", "nonce 4", "", "c"},
		{response(t, "5"), "", "", "", "c"}, // a new stream
		{nil, "5", "nonce 5", "", ""},
	} {
		request := <-c.requests
		refused := request.GetErrorDetail().GetMessage()
		if request.GetNode().GetId() != "n" || request.GetTypeUrl() != configType || request.GetVersionInfo() != step.version || request.GetResponseNonce() != step.nonce ||
			(refused != "") != (step.refused != "") || len(refused) < len(step.refused) || refused[:len(step.refused)] != step.refused {
			t.Errorf("step %d: request %v, want version %q, nonce %q, refusal %q", i, request, step.version, step.nonce, step.refused)
		}
		if _, has := s.Config().domains[step.domain]; has != (step.domain != "") || len(s.Config().domains) > 1 {
			t.Errorf("step %d: domains %v, want %s", i, s.Config().domains, step.domain)
		}
		c.responses <- step.send
	}
	if header := <-c.header; header != "a" {
		t.Errorf("header %q, want a", header)
	}
	cancel()
	_ = conn.Close()
	g.Stop()
	running.Wait()
}
