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

// MaxProbes is the most streams of health and reflection, which need no token, that a connection
// has open at once.
const MaxProbes = 8

// FewProbes returns an interceptor that refuses streams beyond MaxProbes, unless shown reports
// that their caller has shown a token.
func FewProbes(shown func(context.Context) bool) grpc.StreamServerInterceptor {
	var mu sync.Mutex
	open := map[*peer.Peer]int{} // by connection
	add := func(conn *peer.Peer, n int) bool {
		mu.Lock()
		defer mu.Unlock()
		if n > 0 && open[conn] >= MaxProbes {
			return false
		}
		if open[conn] += n; open[conn] == 0 {
			delete(open, conn)
		}
		return true
	}
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		conn, known := peer.FromContext(stream.Context()) // one for all streams of a connection
		if !known || !strings.HasPrefix(info.FullMethod, "/grpc.") || shown(stream.Context()) {
			return next(srv, stream)
		}
		if !add(conn, 1) {
			return status.Errorf(codes.ResourceExhausted, "the connection has %d streams of health and reflection: end one first", MaxProbes)
		}
		defer add(conn, -1)
		return next(srv, stream)
	}
}
