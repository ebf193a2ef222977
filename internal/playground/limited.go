package playground

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/playground/api"
	"github.com/pglimit/pglimit/internal/playground/event"
	"github.com/pglimit/pglimit/internal/playground/hub"
	"github.com/pglimit/pglimit/internal/playground/parse"
	"github.com/pglimit/pglimit/limiter"
)

// longestWait is how long a request of /limited/ waits for its turn in a queue. A
// request whose turn is later is denied.
const longestWait = time.Minute

// limited answers GET /limited/{algorithm}, as an application behind the middleware
// would. The query is the ask.
func limited(h *hub.Hub, logger *slog.Logger) http.Handler {
	next := httplimit.New(h.Limiter, asked, httplimit.WithLogger(logger))(http.HandlerFunc(event.Allowed))
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
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, askedKey{}, request)))
	})
}

// askedKey is the key of a request's ask in its context.
type askedKey struct{}

// asked returns a request's ask.
func asked(r *http.Request) ([]limiter.Request, error) {
	return []limiter.Request{r.Context().Value(askedKey{}).(limiter.Request)}, nil
}
