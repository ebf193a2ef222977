package httplimit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestNewQueueOfLeavers is an attack on a queue that all clients share: 270 requests a
// second come and go after 3 ms. A client that waits still gets its turn.
func TestNewQueueOfLeavers(t *testing.T) {
	shared := limiter.Policy{Name: "shared", Algorithm: limiter.LeakyBucketQueue, Limit: 50, Period: time.Second, Burst: 20}
	perClient := limiter.Policy{Name: "client", Algorithm: limiter.TokenBucket, Limit: 1000, Period: time.Second}
	for name, requests := range map[string]func(client string) []limiter.Request{
		"alone": func(string) []limiter.Request { return []limiter.Request{shared.Request("all", 1)} },
		"with another": func(client string) []limiter.Request {
			return []limiter.Request{perClient.Request(client, 1), shared.Request("all", 1)}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := New(limiter.NewMemory(nil), func(r *http.Request) ([]limiter.Request, error) { return requests(r.RemoteAddr), nil })(&answering{status: 200})
			var clients sync.WaitGroup
			visit := func(client string, patience time.Duration) (passed bool) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				defer time.AfterFunc(patience, leave).Stop()
				r := request().WithContext(ctx)
				r.RemoteAddr = client
				w := httptest.NewRecorder()
				return !aborted(func() { h.ServeHTTP(w, r) }) && w.Code == 200
			}
			random := rand.New(rand.NewPCG(1, 5))
			for i := range 270 * 20 {
				at := time.Duration(random.Int64N(int64(20 * time.Second)))
				clients.Go(func() {
					time.Sleep(at)
					visit(fmt.Sprint("leaver ", i), 3*time.Millisecond)
				})
			}
			var came, passed atomic.Int64
			for i := range 40 * 17 {
				clients.Go(func() {
					time.Sleep(2*time.Second + time.Duration(i)*time.Second/40)
					came.Add(1)
					if visit(fmt.Sprint("honest ", i), 5*time.Second) {
						passed.Add(1)
					}
				})
			}
			clients.Wait()
			t.Logf("%s: %d of %d passed", name, passed.Load(), came.Load())
			if passed.Load()*10 < came.Load()*9 {
				t.Errorf("%s: %d of %d honest requests passed, want 9 of 10", name, passed.Load(), came.Load())
			}
		})
	}
}
