package playground

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/playground/event"
	"github.com/pglimit/pglimit/internal/playground/hub"
	"github.com/pglimit/pglimit/internal/playground/parse"
	"github.com/pglimit/pglimit/internal/site/api"
	"github.com/pglimit/pglimit/limiter"
)

// longestWait is the longest wait of a request to /limited/ for its turn in a queue.
// A request whose turn is later is denied.
const longestWait = time.Minute

// limited answers GET /limited/{algorithm} like an application behind the middleware.
// The query has the policy, the key and the cost.
func limited(h *hub.Hub, logger *slog.Logger) http.Handler {
	next := httplimit.New(h.Limiter, requestOf, httplimit.WithLogger(logger))(http.HandlerFunc(event.Allowed))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, err := parse.Query(limiter.Algorithm(r.PathValue("algorithm")), r.URL.RawQuery)
		if err == nil {
			err = h.Admit(request.Key)
		}
		if err != nil {
			api.Send(w, nil, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), longestWait)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, requestKey{}, request)))
	})
}

// requestKey is the context key of the limiter's request.
type requestKey struct{}

// requestOf returns the limiter's request of an HTTP request.
func requestOf(r *http.Request) ([]limiter.Request, error) {
	return []limiter.Request{r.Context().Value(requestKey{}).(limiter.Request)}, nil
}
