// Package httplimit limits HTTP requests: New puts a limiter in front of a
// net/http handler, and Transport in front of the requests that a program sends.
//
//	l, err := limiter.New(pool, nil)
//	perClient := limiter.Policy{Name: "client", Algorithm: limiter.TokenBucket, Limit: 100, Period: time.Minute, Burst: 20}
//	limit := httplimit.New(l, httplimit.Each(httplimit.Address{}.Key, perClient))
//	err = http.ListenAndServe(":8080", limit(mux))
//
// A function tells what each request asks for, so that plans, costs and layers need
// nothing else:
//
//	requests := func(r *http.Request) ([]limiter.Request, error) {
//		u := userOf(r) // whom authentication has found
//		cost := 1.0
//		if r.URL.Path == "/export" {
//			cost = 20
//		}
//		return []limiter.Request{plans[u.Plan].Request(u.Name, cost), everybody.Request("all", 1)}, nil
//	}
//
// All of a request's asks are granted or none is. Clients are told where they stand
// by the fields of SetHeader; a denied one is answered by Deny.
//
// # Whom to count
//
// Address finds the client behind proxies that it is told to trust, Header and User
// take other names, and Join puts several together. Any function that is a Key will
// do. What clients send is bounded, and cannot pass for what it is not: see Address
// and Header.
package httplimit
