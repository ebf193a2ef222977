package ratelimit

import (
	"io"
	"net/http"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxBody bounds a request in JSON, in bytes.
const maxBody = 1 << 20

// JSON answers requests in JSON, for clients without gRPC: 200 if they pass, 429 if not, 400 if
// they are not valid. A request that a browser sends for a page of another site is refused.
func (s *Server) JSON() http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var request pb.RateLimitRequest
		if err == nil {
			err = protojson.Unmarshal(body, &request)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		response, err := s.ShouldRateLimit(r.Context(), &request)
		var text []byte
		if err == nil {
			text, err = protojson.Marshal(response)
		}
		switch {
		case status.Code(err) == codes.InvalidArgument:
			http.Error(w, status.Convert(err).Message(), http.StatusBadRequest)
			return
		case err != nil:
			http.Error(w, status.Convert(err).Message(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if response.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write(text) // the client has left if it fails
	}))
}

// Healthcheck answers OK while the Server can answer, else 500.
func (s *Server) Healthcheck() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !s.healthy.Load() || s.drained.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
}
