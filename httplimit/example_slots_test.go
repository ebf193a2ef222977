package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

func ExampleNewSlots() {
	l := limiter.NewMemory(nil) // limiter.New(pool, nil) shares limits between processes
	exports := limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 1, Period: 30 * time.Second}
	one := httplimit.NewSlots(l, func(r *http.Request) (limiter.Request, error) {
		return exports.Request("acme", 1), nil
	})
	var h http.Handler
	h = one(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		second := httptest.NewRecorder() // while the first is served
		if r.URL.Path == "/first" {
			h.ServeHTTP(second, httptest.NewRequest("GET", "/second", nil))
			fmt.Println(second.Code)
		}
	}))
	first := httptest.NewRequest("GET", "/first", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, first)
	fmt.Println(w.Code)
	// Output:
	// 429
	// 200
}
