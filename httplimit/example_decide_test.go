package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// One middleware in front of the mux, and the limits of each route in a table. mux.Handler
// returns the pattern that will serve the request.
func ExampleLimits() {
	mux := http.NewServeMux()
	mux.Handle("POST /login", hello)
	mux.Handle("GET /health", hello)
	mux.Handle("GET /items/{id}", hello)

	client := httplimit.Address{}.Key
	others := httplimit.Each(client, limiter.PerMinute("client", 100))
	routes := map[string]httplimit.Limits{
		"POST /login": httplimit.Each(client, limiter.PerMinute("login", 5), limiter.PerMinute("client", 100)),
		"GET /health": func(*http.Request) ([]limiter.Request, error) { return nil, nil }, // no limit
	}
	limit := httplimit.New(memory(), func(r *http.Request) ([]limiter.Request, error) {
		_, pattern := mux.Handler(r)
		if limits, ok := routes[pattern]; ok {
			return limits(r)
		}
		return others(r)
	})
	h := limit(mux) // http.ListenAndServe(":8080", h)
	for _, route := range []string{"POST /login", "GET /health", "GET /items/7"} {
		var method, path string
		fmt.Sscan(route, &method, &path)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		fmt.Printf("%s: %d %s.\n", route, w.Code, w.Header().Get("RateLimit"))
	}
	// Output:
	// POST /login: 200 "login";r=4;t=12, "client";r=99;t=1.
	// GET /health: 200 .
	// GET /items/7: 200 "client";r=98;t=2.
}

// A handler that decides itself, here to reserve what a job will cost.
func ExampleDeny() {
	l := memory()
	tokens := limiter.PerHour("tokens", 1000)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hold, err := l.Reserve(r.Context(), tokens.Request("alice", 600), time.Minute)
		if err == nil {
			err = hold.Result.Err()
		}
		switch {
		case httplimit.Deny(w, err): // 429 is written
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			httplimit.SetHeader(w.Header(), hold.Result)
			fmt.Fprintln(w, "accepted")
		}
	})
	show(h, request())
	show(h, request())
	// Output:
	// 200
	// RateLimit-Policy: "tokens";q=1000;w=3600
	// RateLimit: "tokens";r=400;t=2160
	// accepted
	// 429
	// RateLimit-Policy: "tokens";q=1000;w=3600
	// RateLimit: "tokens";r=400;t=720
	// Retry-After: 720
	// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Try again in 720 s.","violated-policies":["tokens"]}
}

// In a custom handler, without New.
func ExampleSetHeader() {
	l := memory()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all, err := l.AllowAll(r.Context(), perClient.Request("alice", 1), limiter.PerHour("all", 500).Request("all", 1))
		if err == nil {
			err = all.Err()
		}
		switch {
		case httplimit.Deny(w, err):
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			httplimit.SetHeader(w.Header(), all.PerRequest...)
			fmt.Fprintln(w, "hello")
		}
	})
	show(h, request())
	// Output:
	// 200
	// RateLimit-Policy: "client";q=6;w=60;pglimit-burst=1, "all";q=500;w=3600
	// RateLimit: "client";r=0;t=10, "all";r=499;t=8
	// hello
}

// The handler gives the units back for an answer from its cache, and shows what remains.
func ExampleFromContext() {
	l := memory()
	limit := httplimit.New(l, httplimit.Each(httplimit.Address{}.Key, limiter.PerMinute("client", 60)))
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests, all, ok := httplimit.FromContext(r.Context())
		if !ok { // nothing was requested
			return
		}
		left := all.PerRequest[0].Remaining
		if r.URL.Path == "/cached" {
			undone, err := l.Undo(r.Context(), requests[0].Policy, requests[0].Key, all.PerRequest[0])
			if err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			left = undone.Remaining
		}
		fmt.Fprintln(w, "remaining:", left)
	}))
	for _, path := range []string{"/", "/cached", "/"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Print(w.Body)
	}
	// Output:
	// remaining: 59
	// remaining: 59
	// remaining: 58
}
