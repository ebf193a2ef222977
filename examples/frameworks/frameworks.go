// Package frameworks shows httplimit's middleware in front of the handlers of chi, gin, echo and
// fiber, and an HTTP client that keeps to the limits of a server.
package frameworks

import (
	"net/http"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

var perClient = limiter.Policy{Name: "client", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Second, Burst: 3}

// Limit returns the middleware that each framework gets. A repeated Idempotency-Key is not counted
// again, which is safe only because the handlers create an order once for each key. Orders of one
// client that have no key count each.
func Limit(l *limiter.Limiter) func(http.Handler) http.Handler {
	client := httplimit.Header("X-Api-Key") // verified by the authentication outside
	return httplimit.New(l, func(r *http.Request) ([]limiter.Request, error) {
		key, err := client(r)
		request := perClient.Request(key, 1)
		request.IdempotencyKey = r.Header.Get("Idempotency-Key")
		return []limiter.Request{request}, err
	})
}
