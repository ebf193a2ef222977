package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// noon is a clock that stands still, to make the outputs below reproducible.
func noon() time.Time { return time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC) }

// memory is a limiter for these examples; use limiter.New(pool, nil).
func memory() *limiter.Limiter { return limiter.NewMemory(&limiter.Config{Now: noon}) }

var perClient = limiter.Policy{Name: "client", Algorithm: limiter.TokenBucket, Limit: 6, Period: time.Minute, Burst: 1}

var hello = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })

// show prints the parts of a response that a client sees.
func show(h http.Handler, r *http.Request) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Code)
	for _, field := range []string{"RateLimit-Policy", "RateLimit", "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"} {
		if w.Header().Get(field) != "" {
			fmt.Println(field+":", w.Header().Get(field))
		}
	}
	fmt.Print(w.Body)
}

func request() *http.Request { return httptest.NewRequest("GET", "/", nil) }

func Example() {
	limit := httplimit.New(memory(), httplimit.Each(httplimit.Address{}.Key, perClient))
	h := limit(hello) // http.ListenAndServe(":8080", limit(mux))
	show(h, request())
	show(h, request())
	// Output:
	// 200
	// RateLimit-Policy: "client";q=6;w=60;pglimit-burst=1
	// RateLimit: "client";r=0;t=10
	// hello
	// 429
	// RateLimit-Policy: "client";q=6;w=60;pglimit-burst=1
	// RateLimit: "client";r=0;t=10
	// Retry-After: 10
	// {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Try again in 10 s.","violated-policies":["client"]}
}

// account is what authentication puts into a request's context.
type account struct{ name, plan string }

type accountKey struct{}

// authenticated returns a request as authentication passes it on.
func authenticated(r *http.Request, a account) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), accountKey{}, a))
}

// Plans, costs and layers: each user's plan has its rate, exports cost more, and all
// users together have another limit.
func ExampleNew() {
	plans := map[string]limiter.Policy{
		"free": {Name: "user", Algorithm: limiter.TokenBucket, Limit: 60, Period: time.Minute},
		"paid": {Name: "user", Algorithm: limiter.TokenBucket, Limit: 600, Period: time.Minute},
	}
	everybody := limiter.Policy{Name: "all", Algorithm: limiter.SlidingWindowCounter, Limit: 100_000, Period: time.Hour}
	limit := httplimit.New(memory(), func(r *http.Request) ([]limiter.Request, error) {
		user, ok := r.Context().Value(accountKey{}).(account)
		if !ok {
			return nil, httplimit.ErrNoKey
		}
		cost := 1.0
		if r.URL.Path == "/export" {
			cost = 20
		}
		return []limiter.Request{plans[user.plan].Request(user.name, cost), everybody.Request("all", cost)}, nil
	})
	for _, plan := range []string{"free", "paid"} {
		show(limit(hello), authenticated(httptest.NewRequest("GET", "/export", nil), account{"the " + plan + " one", plan}))
	}
	// Output:
	// 200
	// RateLimit-Policy: "user";q=60;w=60, "all";q=100000;w=3600
	// RateLimit: "user";r=40;t=20, "all";r=99980;t=7200
	// hello
	// 200
	// RateLimit-Policy: "user";q=600;w=60, "all";q=100000;w=3600
	// RateLimit: "user";r=580;t=2, "all";r=99960;t=7200
	// hello
}

func ExampleEach() {
	perHour := limiter.Policy{Name: "hour", Algorithm: limiter.SlidingWindowCounter, Limit: 1000, Period: time.Hour}
	requests, err := httplimit.Each(httplimit.Address{}.Key, perClient, perHour)(request())
	for _, request := range requests {
		fmt.Println(request.Policy.Name, request.Key, request.Cost)
	}
	fmt.Println(err)
	// Output:
	// client 192.0.2.1 1
	// hour 192.0.2.1 1
	// <nil>
}

// Operators change the limits with `pglimit policy set` and give single clients their own
// with `pglimit override set`. Here policies.New stands for policies.Open.
func ExampleEachNamed() {
	live, err := policies.New(perClient) // a default until the database has the policy
	if err != nil {
		panic(err)
	}
	l := limiter.NewMemory(&limiter.Config{Now: noon, Policies: live}) // Policies has the overrides
	limit := httplimit.New(l, httplimit.EachNamed(httplimit.Address{}.Key, live, "client"))
	show(limit(hello), request())

	change := func(edit policies.Edit) {
		if _, err := live.Apply(context.Background(), edit); err != nil {
			panic(err)
		}
	}
	larger := perClient
	larger.Limit, larger.Burst = 60, 20
	change(policies.Edit{Set: []policies.Stored{{Policy: larger, Note: "launch"}}})
	show(limit(hello), request())

	contract := 600.0
	change(policies.Edit{SetOverrides: []policies.Override{{Policy: "client", Key: "192.0.2.1", Limit: &contract}}})
	show(limit(hello), request())
	// Output:
	// 200
	// RateLimit-Policy: "client";q=6;w=60;pglimit-burst=1
	// RateLimit: "client";r=0;t=10
	// hello
	// 200
	// RateLimit-Policy: "client";q=60;w=60;pglimit-burst=20
	// RateLimit: "client";r=18;t=2
	// hello
	// 200
	// RateLimit-Policy: "client";q=600;w=60;pglimit-burst=200
	// RateLimit: "client";r=197;t=1
	// hello
}

func ExampleAddress_Key() {
	r := request()
	r.RemoteAddr = "10.0.0.1:4711"                              // our proxy, which appended the last entry
	r.Header.Set("X-Forwarded-For", "198.51.100.66, 192.0.2.7") // the client forged the first
	for _, a := range []httplimit.Address{
		{},                      // no proxy is trusted
		{Hops: 1},               // the nearest proxy is trusted
		{Hops: 1, IPv4Bits: 24}, // and a network counts as one client
		{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
	} {
		fmt.Println(a.Key(r))
	}
	r.RemoteAddr = "[2001:db8:1:2:3:4:5:6]:4711"
	fmt.Println(httplimit.Address{}.Key(r))
	// Output:
	// 10.0.0.1 <nil>
	// 192.0.2.7 <nil>
	// 192.0.2.0/24 <nil>
	// 192.0.2.7 <nil>
	// 2001:db8:1:2::/64 <nil>
}

func ExampleAddress_Validate() {
	fmt.Println(httplimit.Address{Header: "Forwarded"}.Validate())
	// Output: pglimit: invalid: Address.Header "Forwarded": needs Hops or Proxies, which select the trusted proxies
}

// Behind the authentication that knows the API keys.
func ExampleHeader() {
	key := httplimit.Header("X-Api-Key")
	r := request()
	_, err := key(r)
	fmt.Println(errors.Is(err, httplimit.ErrNoKey))
	r.Header.Set("X-Api-Key", "k-1234")
	fmt.Println(key(r))
	r.Header.Set("X-Api-Key", "\xff")
	fmt.Println(key(r))
	// Output:
	// true
	// k-1234 <nil>
	// sha256:qBAK5qoZQNC2Y7sxzUZhQuu9vVGHExuS2TgYmHgy64k <nil>
}

func ExampleJoin() {
	user := httplimit.User(func(r *http.Request) string { name, _, _ := r.BasicAuth(); return name })
	key := httplimit.Join(user, httplimit.Address{}.Key)
	r := request()
	r.SetBasicAuth("alice", "secret")
	fmt.Println(key(r))
	// Output: alice:192.0.2.1 <nil>
}

func ExampleWithNoKey() {
	user := httplimit.User(func(r *http.Request) string { a, _ := r.Context().Value(accountKey{}).(account); return a.name })
	limits := httplimit.Each(user, perClient)
	show(httplimit.New(memory(), limits)(hello), request())
	show(httplimit.New(memory(), limits, httplimit.WithNoKey(httplimit.Pass))(hello), request())
	// Output:
	// 403
	// {"type":"about:blank","title":"Forbidden","status":403,"detail":"The request has no key for the rate limit."}
	// 200
	// hello
}

// The next handler answers preflights itself, as CORS middleware does.
func ExampleWithPassPreflight() {
	cors := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://app.example")
		w.WriteHeader(http.StatusNoContent)
	})
	limit := httplimit.New(memory(), httplimit.Each(httplimit.Address{}.Key, perClient), httplimit.WithPassPreflight())
	for range 3 { // the client may send one request, and any number of preflights
		r := httptest.NewRequest("OPTIONS", "/", nil)
		r.Header.Set("Origin", "https://app.example")
		r.Header.Set("Access-Control-Request-Method", "PUT")
		show(limit(cors), r)
	}
	// Output:
	// 204
	// 204
	// 204
}

func ExampleWithXRateLimit() {
	limits := httplimit.Each(httplimit.Address{}.Key, perClient)
	show(httplimit.New(memory(), limits, httplimit.WithXRateLimit())(hello), request())
	// Output:
	// 200
	// RateLimit-Policy: "client";q=6;w=60;pglimit-burst=1
	// RateLimit: "client";r=0;t=10
	// X-RateLimit-Limit: 1
	// X-RateLimit-Remaining: 0
	// X-RateLimit-Reset: 1780315210
	// hello
}

func ExampleWithOnDeny() {
	limits := func(r *http.Request) ([]limiter.Request, error) {
		return []limiter.Request{perClient.Request("alice", 2)}, nil // more than the burst
	}
	h := httplimit.New(memory(), limits, httplimit.WithOnDeny(func(w http.ResponseWriter, r *http.Request, denied *limiter.DeniedError) {
		if r.Header.Get("Accept") == "application/problem+json" {
			httplimit.Deny(w, denied)
			return
		}
		http.Error(w, "too much of "+denied.Result.Policy.Name, http.StatusTooManyRequests)
	}))(hello)
	show(h, request())
	// Output:
	// 429
	// RateLimit-Policy: "client";q=6;w=60;pglimit-burst=1
	// RateLimit: "client";r=1
	// too much of client
}

func ExampleWithOnError() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	limits := func(*http.Request) ([]limiter.Request, error) { return nil, errors.New("no such plan") }
	show(httplimit.New(memory(), limits, httplimit.WithLogger(logger))(hello), request())
	show(httplimit.New(memory(), limits, httplimit.WithOnError(func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}))(hello), request())
	// Output:
	// level=ERROR msg="httplimit: no decision" error="no such plan"
	// 500
	// {"type":"about:blank","title":"Internal Server Error","status":500}
	// 400
	// no such plan
}

// Only failed logins count, for an account from one address. After two of them even the
// right password is denied there. The account's owner still gets in from elsewhere.
func ExampleWithRefundIf() {
	l := memory()
	logins := limiter.Policy{Name: "login", Algorithm: limiter.SlidingWindowCounter, Limit: 2, Period: time.Hour}
	name := httplimit.User(func(r *http.Request) string { name, _, _ := r.BasicAuth(); return strings.ToLower(name) })
	both := httplimit.Join(name, httplimit.Address{}.Key)
	limit := httplimit.New(l, httplimit.Each(both, logins), httplimit.WithRefundIf(func(status int) bool { return status != http.StatusUnauthorized }))
	h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "right" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	try := func(address, name, password string) {
		r := request()
		r.RemoteAddr = address + ":4711"
		r.SetBasicAuth(name, password)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		fmt.Println(password, w.Code)
	}
	for _, password := range []string{"right", "right", "wrong", "right", "wrong", "right"} {
		try("192.0.2.1", "alice", password)
	}
	try("192.0.2.1", "ALICE", "wrong")
	try("198.51.100.7", "alice", "right")
	// Output:
	// right 200
	// right 200
	// wrong 401
	// right 200
	// wrong 401
	// right 429
	// wrong 429
	// right 200
}

// Calls to an external API wait for their turn in a queue that all processes share.
func ExampleTransport() {
	server := httptest.NewServer(hello)
	defer server.Close()
	mails := limiter.Policy{Name: "mail-api", Algorithm: limiter.LeakyBucketQueue, Limit: 100, Period: time.Second, Burst: 2}
	client := &http.Client{Transport: httplimit.Transport(memory(), func(r *http.Request) ([]limiter.Request, error) {
		return []limiter.Request{mails.Request(r.URL.Hostname(), 1)}, nil
	}, nil)}
	for range 3 { // the clock stands still, so the third finds the queue full
		res, err := client.Get(server.URL)
		var denied *limiter.DeniedError
		if errors.As(err, &denied) {
			fmt.Println("retry after", denied.Result.RetryAfter)
			continue
		}
		fmt.Println(res.StatusCode, err)
		res.Body.Close()
	}
	// Output:
	// 200 <nil>
	// 200 <nil>
	// retry after 10ms
}

// A server refuses a request, and header fields that only this server sends have the time until it
// accepts another. Until then no process sends one.
func ExampleWithPause() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ratelimit-Remaining-Requests", "0")
		w.Header().Set("X-Ratelimit-Reset-Requests", "1m30s")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	models := limiter.Policy{Name: "models", Algorithm: limiter.TokenBucket, Limit: 100, Period: time.Minute}
	pause := func(res *http.Response) (longest time.Duration) {
		for _, of := range []string{"Requests", "Tokens"} {
			if res.Header.Get("X-Ratelimit-Remaining-"+of) == "0" {
				d, _ := time.ParseDuration(res.Header.Get("X-Ratelimit-Reset-" + of))
				longest = max(longest, d)
			}
		}
		return longest
	}
	client := &http.Client{Transport: httplimit.Transport(memory(), func(r *http.Request) ([]limiter.Request, error) {
		return []limiter.Request{models.Request("our account", 1)}, nil
	}, nil, httplimit.WithPause(time.Hour, pause))}
	for range 2 {
		res, err := client.Get(server.URL)
		var denied *limiter.DeniedError
		if errors.As(err, &denied) {
			fmt.Println("not sent, retry after", denied.Result.RetryAfter)
			continue
		}
		fmt.Println(res.StatusCode, err)
		res.Body.Close()
	}
	// Output:
	// 429 <nil>
	// not sent, retry after 1m30s
}
