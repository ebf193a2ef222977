// Package httplimit limits HTTP requests: New puts a limiter in front of a
// net/http handler, and Transport in front of the requests that a program sends.
//
//	l, err := limiter.New(pool, nil)
//	perClient := limiter.Policy{Name: "client", Algorithm: limiter.TokenBucket, Limit: 100, Period: time.Minute, Burst: 20}
//	limit := httplimit.New(l, httplimit.Each(httplimit.Address{}.Key, perClient))
//	err = http.ListenAndServe(":8080", limit(mux))
//
// A function of type Limits maps each HTTP request to the limiter requests that it must pass.
// So plans, costs, routes and several limits at once need no further API:
//
//	limits := func(r *http.Request) ([]limiter.Request, error) {
//		u := userOf(r) // set by authentication
//		cost := 1.0
//		if r.URL.Path == "/export" {
//			cost = 20
//		}
//		return []limiter.Request{plans[u.Plan].Request(u.Name, cost), everybody.Request("all", 1)}, nil
//	}
//
// All limiter requests of an HTTP request are granted, or none. The next handler reads the
// results with FromContext. A handler that decides itself, without New, answers a denial with
// Deny and reports a granted request with SetHeader. NewAttempts is for logins, of which only
// those that fail count.
//
// # Choosing a key
//
// Address finds the client's address, behind trusted proxies too. Header and User read
// the key from elsewhere in the request; Join combines keys. Any function of type Key
// works. Keys from clients have a bounded length and cannot be forged: see Address and
// Header.
package httplimit
