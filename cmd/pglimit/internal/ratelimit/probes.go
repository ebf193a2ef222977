package ratelimit

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// MaxProbes is the most streams of health and reflection that a connection has open at once.
const MaxProbes = 8

// Probes bounds the streams that need no token: those of health and reflection. The zero value
// has none open.
type Probes struct {
	mu   sync.Mutex
	open map[*peer.Peer]int // by connection
}

// Enter begins a stream of a method, and returns what ends it. It sets err if the connection has
// MaxProbes open. Other methods than those of health and reflection, whose names begin with grpc,
// are not counted.
func (p *Probes) Enter(ctx context.Context, method string, err *error) (end func()) {
	conn, known := peer.FromContext(ctx) // one for all streams of a connection
	if !known || !strings.HasPrefix(method, "/grpc.") {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open[conn] >= MaxProbes {
		*err = status.Errorf(codes.ResourceExhausted, "the connection has %d streams of health and reflection: end one first", MaxProbes)
		return func() {}
	}
	if p.open == nil {
		p.open = map[*peer.Peer]int{}
	}
	p.open[conn]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.open[conn]--; p.open[conn] == 0 {
			delete(p.open, conn)
		}
	}
}

// serve serves a stream within the bound.
func (p *Probes) serve(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer p.Enter(stream.Context(), info.FullMethod, &err)()
	if err != nil {
		return err
	}
	return next(srv, stream)
}
