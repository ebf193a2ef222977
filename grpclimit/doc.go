// Package grpclimit limits gRPC calls as package httplimit limits HTTP requests: UnaryServer
// and StreamServer the calls that a server answers, UnaryClient and StreamClient those that
// a program makes. UnarySlots and StreamSlots limit the calls that are served at a time.
//
//	limits := httplimit.Each(httplimit.Address{Hops: 1}.Key, perClient)
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(grpclimit.UnaryServer(l, limits)),
//		grpc.ChainStreamInterceptor(grpclimit.StreamServer(l, limits)))
//
// # Choosing limits and a key
//
// Limits and keys are those of httplimit, because a gRPC call is an HTTP/2 request. The function
// gets an *http.Request with
//
//   - Method POST, and the full method, such as "/shop.Orders/Create", as URL.Path;
//   - the metadata as Header: "x-api-key" is X-Api-Key;
//   - a server's peer as RemoteAddr and its authority as Host; a client's target as URL.Host;
//   - the call's context, from which Message returns the call's message.
//
// So plans, costs and several limits at once need no further API:
//
//	limits := func(r *http.Request) ([]limiter.Request, error) {
//		u := userOf(r.Context()) // set by authentication, an interceptor outside
//		cost := 1.0
//		if r.URL.Path == "/shop.Orders/Export" {
//			cost = 20
//		}
//		return []limiter.Request{plans[u.Plan].Request(u.Name, cost)}, nil
//	}
//
// Take a limiter.Request's IdempotencyKey from metadata only if the handler repeats no work for
// a repeated key: such a call passes and is not counted.
//
// # Codes
//
//	ResourceExhausted  denied: with RetryInfo and QuotaFailure, see Deny
//	PermissionDenied   no key (httplimit.ErrNoKey), unless WithNoKey(httplimit.Pass) is set
//	InvalidArgument    a key of over 1,024 bytes, with a NUL byte or not in UTF-8
//	Internal           limits returned another error or an invalid request
//	Unavailable        no decision and a policy fails closed, or limiter.ErrMisconfigured
//	Canceled, DeadlineExceeded  the call's context ended before the decision
//
// The error wraps its cause, for interceptors outside: a *limiter.DeniedError, or an error of
// limits or package limiter. Remote clients see the code and a text without the cause.
package grpclimit
