package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// noKeys finds nothing.
type noKeys struct{}

func (noKeys) Find(context.Context, inspect.Keys, inspect.Filter, int) (inspect.Found, error) {
	return inspect.Found{}, nil
}

// newHandler returns a handler over memory with the policies login, of 3 in 1000 hours, queue,
// code, of attempts, and exports, of two slots.
func newHandler(t *testing.T, set func(*Config)) *Handler {
	t.Helper()
	p := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 3, Period: 1000 * time.Hour}
	queue := limiter.Policy{Name: "queue", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: 1000 * time.Hour, Burst: 2}
	code := limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 2, Period: 1000 * time.Hour, BlockFor: time.Hour}
	exports := limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 2, Period: time.Hour}
	live := must.OK(policies.New(p, queue, code, exports))(t)
	c := Config{
		Limiter: limiter.NewMemory(&limiter.Config{Policies: live}), Policies: live, Keys: noKeys{}, Gate: &auth.Gate{},
		Address: httplimit.Address{Proxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, Logger: slog.New(slog.DiscardHandler),
	}
	if set != nil {
		set(&c)
	}
	return must.OK(New(c))(t)
}

// call sends a request from 192.0.2.1, with headers as names and values.
func call(t *testing.T, h http.Handler, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Host, r.RemoteAddr = "localhost:8080", "192.0.2.1:1234"
	r.Header.Set(GatewayHeader, "1")
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

// TestScopes: every route below /v1 and /check needs a token with its scope.
func TestScopes(t *testing.T) {
	t.Parallel()
	h := newHandler(t, nil)
	tokens, file := map[auth.Scope]string{}, ""
	for _, s := range []auth.Scope{auth.Decide, auth.Spend, auth.Operate} {
		tokens[s] = auth.NewToken()
		file += must.OK(auth.Line(s.String(), s, tokens[s]))(t) + "\n"
	}
	h.Gate.Set(must.OK(auth.Parse("f", []byte(file)))(t))
	guarded := 0
	for path, route := range routes {
		method := route.method
		if method == "" {
			method = http.MethodPut
		}
		if route.needs == 0 {
			if r, body := call(t, h, method, path, ""); r.StatusCode != 200 {
				t.Errorf("%s: %d %s", path, r.StatusCode, body)
			}
			continue
		}
		guarded++
		for s, token := range tokens {
			for _, header := range [][]string{{"Authorization", "Bearer " + token}, {TokenHeader, token}, {TokenHeader, token, "Authorization", "Bearer of the client"}} {
				r, body := call(t, h, method, path, "", header...)
				if refused := r.StatusCode == 403; refused != (s != route.needs) || r.StatusCode == 401 || refused && !strings.Contains(body, `"scope"`) {
					t.Errorf("%s with %v by %v: %d %s", path, s, header[0], r.StatusCode, body)
				}
			}
		}
		for _, header := range [][]string{nil, {"Authorization", "Bearer " + auth.NewToken()}, {"Authorization", "Basic " + tokens[auth.Decide]}} {
			if r, body := call(t, h, method, path, "", header...); r.StatusCode != 401 || r.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s with %q: %d %s", path, header, r.StatusCode, body)
			}
		}
	}
	if guarded != len(routes)-2 {
		t.Errorf("%d of %d routes need a token", guarded, len(routes))
	}
}

// TestHostileInput: an error names the field and its value, and nothing is counted.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	h := newHandler(t, nil)
	long := strings.Repeat("x", maxBody)
	for _, c := range []struct {
		method, path, body string
		headers            []string
		status             int
		want               string
	}{
		{"POST", "/v1/allow", `{"policy":"login","key":"a"}`, []string{"Content-Type", "text/plain"}, 200, ""}, // the first value counts
		{"POST", "/v1/reset", `{"policy":"login","key":"a"}`, nil, 204, ""},
		{"POST", "/v1/allow", ``, nil, 415, `Content-Type: application/json`},
		{"POST", "/v1/allow", ` `, nil, 400, `the body is empty`},
		{"POST", "/v1/allow", `{`, nil, 400, `unexpected EOF`},
		{"POST", "/v1/allow", `[]`, nil, 400, `body is a JSON array: must be an object`},
		{"POST", "/v1/allow", `{}{}`, nil, 400, `more than one JSON value`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","kost":1}`, nil, 400, `"field":"kost"`},
		{"GET", "/v1/usage?policy=login&key=a&since=7d", ``, nil, 400, `"field":"since"`},
		{"POST", "/v1/renew", `{"id":"x"}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/allow", `{"policy":"login","Key":"a"}`, nil, 400, `unknown field \"Key\"`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","coſt":1}`, nil, 400, `unknown field \"coſt\"`},
		{"POST", "/v1/allow", `{"policy":"login","key":"","key":"a"}`, nil, 400, `field \"key\" is there twice`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","cost":1.5,"cost":2}`, nil, 400, `field \"cost\" is there twice`},
		{"POST", "/v1/allow-all", `{"requests":[{"policy":"login","key":"a","k\u0065y":"b"}]}`, nil, 400, `field \"key\" is there twice`},
		{"POST", "/v1/allow", `{"policy":"login","key":7}`, nil, 400, `"field":"key"`},
		{"POST", "/v1/allow", `{"policy":"login","key":"\ud800"}`, nil, 400, `surrogate`},
		{"POST", "/v1/allow", `{"policy":"login","key":"` + "\xff" + `"}`, nil, 400, `UTF-8`},
		{"POST", "/v1/allow", `{"policy":"login","key":"\u0000"}`, nil, 400, `"field":"key"`},
		{"POST", "/v1/allow", `{"policy":"login","key":""}`, nil, 400, `key \"\": is empty`},
		{"POST", "/v1/allow", `{"policy":"","key":"a"}`, nil, 400, `"field":"policy"`},
		{"POST", "/v1/allow", `{"policy":"LOGIN'--","key":"a"}`, nil, 404, `"field":"policy"`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","cost":0}`, nil, 400, `"field":"cost"`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","cost":-1}`, nil, 400, `cost -1`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","cost":1e999}`, nil, 400, `1e999`},
		{"POST", "/v1/allow", `{"policy":"login","key":"` + long + `"}`, nil, 413, `longer than`},
		{"POST", "/v1/check", `{"policy":"login","key":"a","idempotency_key":"x"}`, nil, 400, `idempotency_key`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","floor":1}`, nil, 400, `"field":"floor"`},
		{"POST", "/v1/check", `{"policy":"login","key":"a","floor":0.5}`, nil, 400, `"field":"floor"`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","note":"` + strings.Repeat("n", 256) + `"}`, nil, 400, `"field":"note"`},
		{"POST", "/v1/reserve", `{"policy":"login","key":"a","note":"\u0000"}`, nil, 400, `"field":"note"`},
		{"POST", "/v1/allow-all", `{"requests":[{"policy":"login","key":"a"},{"policy":"login","key":"b","note":"\u0000"}]}`, nil, 400, `requests[1]`},
		{"POST", "/v1/charge", `{"policy":"login","key":"a","floor":0.5}`, nil, 400, `"field":"floor"`},
		{"POST", "/v1/charge", `{"policy":"login","key":"a"}`, []string{"Idempotency-Key", "x"}, 400, `Idempotency-Key`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a","idempotency_key":"x"}`, []string{"Idempotency-Key", `"y"`}, 400, `Idempotency-Key is \"y\"`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a"}`, []string{"Idempotency-Key", "x", "Idempotency-Key", "y"}, 400, `2 lines`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a"}`, []string{"Idempotency-Key", `"x`}, 400, `Idempotency-Key`},
		{"POST", "/v1/allow", `{"policy":"login","key":"a"}`, []string{"Idempotency-Key", `""`}, 400, `Idempotency-Key`},
		{"POST", "/v1/allow-all", `{"requests":[]}`, nil, 400, `requests has 0`},
		{"POST", "/v1/allow-any", `{"requests":[]}`, nil, 400, `requests has 0`},
		{"POST", "/v1/reserve-all", `{"requests":[]}`, nil, 400, `requests has 0`},
		{"POST", "/v1/reserve-all", `{"requests":[{"policy":"login","key":"a"}],"ttl":"soon"}`, nil, 400, `"field":"ttl"`},
		{"POST", "/v1/reserve-all", `{"requests":[{"policy":"login","key":"a"}],"ttl":"1ms"}`, nil, 400, `"field":"ttl"`},
		{"POST", "/v1/reserve-all", `{"requests":[{"policy":"login","key":"a"},{"policy":"none","key":"a"}]}`, nil, 404, `"field":"requests[1].policy"`},
		{"POST", "/v1/reserve-all", `{"requests":[{"policy":"login","key":"a"},{"policy":"login","key":"a"}]}`, nil, 400, `requests[0] and requests[1]`},
		{"POST", "/v1/reserve-all", `{"requests":[{"policy":"login","key":"a","estimate":true}]}`, nil, 400, `estimate`},
		{"POST", "/v1/settle-all", `{"units":1}`, nil, 400, `"field":"ids"`},
		{"POST", "/v1/settle-all", `{"ids":["x"]}`, nil, 400, `"field":"units"`},
		{"POST", "/v1/settle-all", `{"ids":["x"],"units":null}`, nil, 400, `"field":"units"`},
		{"POST", "/v1/settle-all", `{"ids":["x"],"units":"1"}`, nil, 400, `units is \"1\": must be the units spent`},
		{"POST", "/v1/settle-all", `{"ids":["x"],"units":[null]}`, nil, 400, `"field":"units"`},
		{"POST", "/v1/settle-all", `{"ids":["x"],"units":[1,2]}`, nil, 400, `"field":"units"`},
		{"POST", "/v1/settle-all", `{"ids":["x"],"units":[-1]}`, nil, 400, `"field":"units[0]"`},
		{"POST", "/v1/settle-all", `{"ids":["x"],"units":1}`, nil, 400, `"field":"ids[0]"`},
		{"POST", "/v1/settle-all", `{"ids":["fixed_window:2QJ6XJZK4R3PLD5W7NBAHT6EYC:login:YQ"],"units":1}`, nil, 404, `"field":"ids"`},
		{"POST", "/v1/cancel-all", `{"ids":["` + strings.Repeat(`a","`, 1000) + `a"]}`, nil, 400, `ids 1001: must be from 1 to 1000`},
		{"POST", "/v1/cancel-all", `{"ids":["` + strings.Repeat("a", maxManyBody) + `"]}`, nil, 413, `longer than`},
		{"POST", "/v1/allow-any", `{"requests":[{"policy":"login","key":"a"},{"policy":"login","key":"b","cost":2}]}`, nil, 400, `"field":"requests[1].cost"`},
		{"POST", "/v1/allow-any", `{"requests":[{"policy":"login","key":"a"},{"policy":"none","key":"a"}]}`, nil, 404, `requests[1]`},
		{"POST", "/v1/allow-any", `{"requests":[{"policy":"login","key":"a"},{"policy":"login","key":"a"}],"split":true}`, nil, 400, `requests[0] and requests[1]`},
		{"POST", "/v1/allow-batch", `{"requests":[` + strings.Repeat(`{},`, 1000) + `{}]}`, nil, 400, `requests has 1001`},
		{"POST", "/v1/allow-all", `{"requests":[{"policy":"login","key":"a"},{"policy":"none","key":"a"}]}`, nil, 404, `requests[1]`},
		{"POST", "/v1/allow-all", `{"requests":[{"policy":"login","key":"a"},{"policy":"login","key":"b","cost":-2}]}`, nil, 400, `"field":"cost"`},
		{"POST", "/v1/reserve", `{"policy":"login","key":"a","ttl":"soon"}`, nil, 400, `ttl is \"soon\"`},
		{"POST", "/v1/reserve", `{"policy":"login","key":"a","ttl":"1ms"}`, nil, 400, `"field":"ttl"`},
		{"POST", "/v1/reserve", `{"policy":"queue","key":"a"}`, nil, 400, `"unsupported"`},
		{"POST", "/v1/settle", `{"id":"x"}`, nil, 400, `"field":"units"`},
		{"POST", "/v1/settle", `{"id":"","units":1}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/settle", `{"id":"x","units":1}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/settle", `{"id":"x","units":-1}`, nil, 400, `"field":"units"`},
		{"POST", "/v1/settle", `{"id":"fixed_window:2QJ6XJZK4R3PLD5W7NBAHT6EYC:login:YWxpY2U","units":1}`, nil, 404, `"no_reservation"`},
		{"POST", "/v1/cancel", `{}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/attempt", `{"policy":"code","key":"a","ttl":"soon"}`, nil, 400, `ttl is \"soon\"`},
		{"POST", "/v1/attempt", `{"policy":"code","key":"a","ttl":"1ms"}`, nil, 400, `"field":"ttl"`},
		{"POST", "/v1/attempt", `{"policy":"code","key":"a","from":"\u0000"}`, nil, 400, `"field":"from"`},
		{"POST", "/v1/attempt", `{"policy":"code","key":""}`, nil, 400, `"field":"key"`},
		{"POST", "/v1/attempt", `{"policy":"login","key":"a"}`, nil, 400, `"unsupported"`},
		{"POST", "/v1/attempt", `{"policy":"none","key":"a"}`, nil, 404, `"no_policy"`},
		{"POST", "/v1/allow", `{"policy":"code","key":"a"}`, nil, 400, `"unsupported"`},
		{"POST", "/v1/succeeded", `{}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/succeeded", `{"id":"x"}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/succeeded", `{"id":"attempts:2QJ6XJZK4R3PLD5W7NBAHT6EYC:code:YWxpY2U"}`, nil, 404, `"no_ticket"`},
		{"POST", "/v1/failed", `{"id":""}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/failed", `{"id":"fixed_window:2QJ6XJZK4R3PLD5W7NBAHT6EYC:login:YWxpY2U"}`, nil, 400, `not the ID`},
		{"POST", "/v1/failed", `{"id":"attempts:2QJ6XJZK4R3PLD5W7NBAHT6EYC:code:YWxpY2U"}`, nil, 404, `"no_ticket"`},
		{"POST", "/v1/acquire", `{"policy":"exports","key":"a","ttl":"soon"}`, nil, 400, `ttl is \"soon\"`},
		{"POST", "/v1/acquire", `{"policy":"exports","key":"a","ttl":"1ms"}`, nil, 400, `ttl 1ms`},
		{"POST", "/v1/acquire", `{"policy":"exports","key":"a","cost":0}`, nil, 400, `"field":"cost"`},
		{"POST", "/v1/acquire", `{"policy":"exports","key":""}`, nil, 400, `"field":"key"`},
		{"POST", "/v1/acquire", `{"policy":"login","key":"a"}`, nil, 400, `"unsupported"`},
		{"POST", "/v1/acquire", `{"policy":"none","key":"a"}`, nil, 404, `"no_policy"`},
		{"POST", "/v1/allow", `{"policy":"exports","key":"a"}`, nil, 400, `"unsupported"`},
		{"POST", "/v1/renew", `{}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/renew", `{"id":"x"}`, nil, 400, `not the ID`},
		{"POST", "/v1/renew", `{"id":"x","ttl":"soon"}`, nil, 400, `ttl is \"soon\"`},
		{"POST", "/v1/renew", `{"id":"concurrency:2QJ6XJZK4R3PLD5W7NBAHT6EYC:exports:YWxpY2U"}`, nil, 404, `"no_slot"`},
		{"POST", "/v1/release", `{}`, nil, 400, `"field":"id"`},
		{"POST", "/v1/release", `{"id":"concurrency:2QJ6XJZK4R3PLD5W7NBAHT6EYC:exports:YWxpY2U"}`, nil, 404, `"no_slot"`},
		{"POST", "/v1/block", `{"policy":"login","key":"a"}`, nil, 400, `for is \"\"`},
		{"POST", "/v1/block", `{"policy":"login","key":"a","for":"-1s"}`, nil, 400, `"field":"for"`},
		{"POST", "/v1/reserve", `{"policy":"login","key":"a","idempotency_key":"` + strings.Repeat("x", 256) + `"}`, nil, 400, `"field":"idempotency_key"`},
		{"GET", "/v1/usage?policy=login", ``, nil, 400, `"field":"key"`},
		{"GET", "/v1/usage?policy=login&key=a&key=b", ``, nil, 400, `key is given 2 times`},
		{"GET", "/v1/usage?policy=login&key=a&%zz", ``, nil, 400, `query`},
		{"GET", "/v1/policies?all=1", ``, nil, 400, `all`},
		{"GET", "/v1/keys", ``, nil, 400, `"field":"key"`},
		{"GET", "/v1/keys?key=a&prefix=b", ``, nil, 400, `"field":"key"`},
		{"GET", "/v1/keys?key=a&limit=x", ``, nil, 400, `limit is \"x\"`},
		{"GET", "/v1/allow", ``, nil, 405, `must be POST`},
		{"GET", "/v1", ``, nil, 404, `"no_route"`},
		{"GET", "/check/", ``, nil, 400, `"field":"policy"`},
		{"GET", "/check/none", ``, nil, 404, `"no_policy"`},
		{"GET", "/check/login/by=cookie:x", ``, nil, 400, `by is \"cookie:x\"`},
		{"GET", "/check/login/by=header:", ``, nil, 400, `by is`},
		{"GET", "/check/login/by=header:a%20b", ``, nil, 400, `by is`},
		{"GET", "/check/login/by=header:X-Key", ``, nil, 403, `"no_key"`},
		{"GET", "/check/login/cost=many", ``, nil, 400, `cost is \"many\"`},
		{"GET", "/check/login/cost=-1", ``, nil, 400, `cost -1`},
		{"GET", "/check/login/cost=1&cost=2", ``, nil, 400, `cost is given 2 times`},
		{"GET", "/check/login/denied=200", ``, nil, 400, `denied is \"200\"`},
		{"GET", "/check/login/policy=other", ``, nil, 400, `policy`},
	} {
		r, body := call(t, h, c.method, c.path, c.body, c.headers...)
		if r.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %.60s %.80s: %d %s, want %d and %s", c.method, c.path, c.body, r.StatusCode, body, c.status, c.want)
		}
		if r.StatusCode >= 400 {
			var p problem
			if r.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal([]byte(body), &p) != nil || p.Status != r.StatusCode || p.Title == "" || p.Code == "" || p.Detail == "" {
				t.Errorf("%s %s: not a problem: %s", c.method, c.path, body)
			}
		}
	}
	if _, body := call(t, h, "GET", "/v1/usage?policy=login&key=a", ""); !strings.Contains(body, `"spent":0`) {
		t.Error("something was counted:", body)
	}
}

// TestAllowAny: the answer says which pool gave, and what each did of a split. After a denial
// Retry-After is the least of the pools', and the fields are those of one pool.
func TestAllowAny(t *testing.T) {
	t.Parallel()
	h := newHandler(t, nil)
	for _, c := range []struct{ cost, more, want, retry string }{
		{"2", "", `{"allowed":true,"granted_by":0,"retry_after_s":0,"per_request":[{"policy":"login",`, ""},
		{"2", "", `{"allowed":true,"granted_by":1,"retry_after_s":0,`, ""},
		{"2", `,"split":true`, `{"allowed":true,"granted_by":0,"retry_after_s":0,`, ""},
		{"1", "", `{"allowed":false,"granted_by":null,"retry_after_s":3`, "3600000"},
		{"4", "", `{"allowed":false,"granted_by":null,"retry_after_s":null,`, ""},
		{"6", `,"split":true`, `{"allowed":false,"granted_by":null,"retry_after_s":3`, "3600000"},
	} {
		r, body := call(t, h, "POST", "/v1/allow-any", `{"requests":[{"policy":"login","key":"a","cost":`+c.cost+`},{"policy":"login","key":"b","cost":`+c.cost+`}]`+c.more+`}`)
		if got := r.Header.Get("Retry-After"); r.StatusCode != 200 || !strings.HasPrefix(body, c.want) || got != c.retry || strings.Count(r.Header.Get("RateLimit"), "login") != 1 {
			t.Errorf("%d %s %v, want %s", r.StatusCode, body, r.Header, c.want)
		}
		if c.more != "" && c.retry == "" && strings.Count(body, `"granted":1,`) != 2 {
			t.Errorf("a split: %s", body)
		}
	}
}

// TestReserveAll: several keys are reserved at once, or nothing where one is denied. All are settled
// with one number or one each, or none where one has ended; and cancelled likewise.
func TestReserveAll(t *testing.T) {
	t.Parallel()
	h := newHandler(t, nil)
	post := func(status int, path, body, want string) string {
		t.Helper()
		r, text := call(t, h, "POST", path, body)
		if r.StatusCode != status || !strings.Contains(text, want) {
			t.Errorf("%s %s: %d %s, want %d and %s", path, body, r.StatusCode, text, status, want)
		}
		return text
	}
	spent := func(key, want string) {
		t.Helper()
		if _, body := call(t, h, "GET", "/v1/usage?policy=login&key="+key, ""); !strings.Contains(body, want) {
			t.Errorf("%s: %s, want %s", key, body, want)
		}
	}
	ids := func(text string) string {
		t.Helper()
		var made struct {
			IDs       []string  `json:"ids"`
			ExpiresAt time.Time `json:"expires_at"`
		}
		if err := json.Unmarshal([]byte(text), &made); err != nil || len(made.IDs) != 2 || made.ExpiresAt.IsZero() {
			t.Fatalf("%s: %v", text, err)
		}
		return string(must.OK(json.Marshal(made.IDs))(t))
	}
	const both = `{"requests":[{"policy":"login","key":"a","cost":2},{"policy":"login","key":"b","cost":2}],"ttl":"1h"}`
	first := ids(post(200, "/v1/reserve-all", both, `{"results":{"allowed":true,"denied_by":null,"per_request":[{"policy":"login",`))
	post(200, "/v1/reserve-all", `{"requests":[{"policy":"login","key":"c","cost":2},{"policy":"login","key":"b","cost":2}]}`, `"ids":null}`)
	spent("c", `"reserved":0`)
	post(200, "/v1/settle-all", `{"ids":`+first+`,"units":1}`, `{"results":[{"policy":"login",`)
	post(200, "/v1/settle-all", `{"ids":`+first+`,"units":[1,1]}`, `"replayed":true`)
	spent("a", `"spent":1,"reserved":0`)
	second := ids(post(200, "/v1/reserve-all", strings.ReplaceAll(both, `"cost":2`, `"cost":2,"idempotency_key":"x"`), `"allowed":true`))
	if again := ids(post(200, "/v1/reserve-all", strings.ReplaceAll(both, `"cost":2`, `"cost":2,"idempotency_key":"x"`), `"replayed":true`)); again != second {
		t.Errorf("%s, then %s", second, again)
	}
	mixed := `["` + strings.Split(first, `"`)[1] + `","` + strings.Split(second, `"`)[3] + `"]`
	post(409, "/v1/settle-all", `{"ids":`+mixed+`,"units":2}`, `"code":"reservation_ended","field":"ids"`)
	spent("b", `"spent":1,"reserved":2`)
	post(204, "/v1/cancel-all", `{"ids":`+second+`}`, "")
	post(204, "/v1/cancel-all", `{"ids":`+second+`}`, "")
	spent("b", `"spent":1,"reserved":0`)
	post(409, "/v1/cancel-all", `{"ids":`+first+`}`, `"field":"ids"`)
}

// TestFloor: each route that requests units leaves the floor free.
func TestFloor(t *testing.T) {
	t.Parallel()
	for path, c := range map[string]struct{ body, denied string }{
		"/v1/allow":       {`{"policy":"login","key":"a","floor":0.5}`, `"allowed":false`},
		"/v1/reserve":     {`{"policy":"login","key":"a","floor":0.5,"ttl":"1h"}`, `"allowed":false`},
		"/v1/allow-all":   {`{"requests":[{"policy":"login","key":"a","floor":0.5},{"policy":"login","key":"b"}]}`, `"denied_by":0`},
		"/v1/allow-any":   {`{"requests":[{"policy":"login","key":"a","floor":0.5}]}`, `"granted_by":null`},
		"/v1/reserve-all": {`{"requests":[{"policy":"login","key":"a","floor":0.5}]}`, `"denied_by":0`},
		"/v1/allow-batch": {`{"requests":[{"policy":"login","key":"a","floor":0.5}]}`, `"allowed":false`},
		"/check/login/by=header:X-Key&floor=0.5&denied=403": {"", ""},
	} {
		h := newHandler(t, nil)
		for i := range 2 {
			method := "POST"
			if c.body == "" {
				method = "GET"
			}
			r, body := call(t, h, method, path, c.body, "X-Key", "a")
			denied := strings.Contains(body, c.denied)
			if c.body == "" {
				denied = r.StatusCode == 403
			}
			if denied != (i == 1) {
				t.Errorf("%s %d: %d %s", path, i, r.StatusCode, body)
			}
		}
		if _, body := call(t, h, "POST", "/v1/allow", `{"policy":"login","key":"a","cost":2}`); !strings.Contains(body, `"allowed":true`) {
			t.Errorf("%s: without a floor: %s", path, body)
		}
	}
}

// TestIdempotencyKey: the header and the field are the same, with and without quotes.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	h := newHandler(t, nil)
	const body = `{"policy":"login","key":"a"}`
	for i, header := range []string{`"o\"n\\e"`, `o"n\e`, `"o\"n\\e"`} {
		if _, got := call(t, h, "POST", "/v1/allow", body, "Idempotency-Key", header); strings.Contains(got, `"replayed":true`) != (i > 0) || !strings.Contains(got, `"remaining":2`) {
			t.Errorf("%s: %s", header, got)
		}
	}
	if _, got := call(t, h, "POST", "/v1/allow", `{"policy":"login","key":"a","idempotency_key":"o\"n\\e"}`); !strings.Contains(got, `"replayed":true`) {
		t.Error(got)
	}
}

// TestLocal: without tokens a page of another site reaches no route by a foreign name of this
// machine, and spends by no request that a browser sends without a preflight.
func TestLocal(t *testing.T) {
	t.Parallel()
	h := newHandler(t, func(c *Config) { c.Local = true })
	if r, body := call(t, h, "GET", "/check/login", "", GatewayHeader, ""); r.StatusCode != 200 {
		t.Error("a gateway:", r.StatusCode, body)
	}
	for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS"} {
		r := httptest.NewRequestWithContext(t.Context(), method, "/check/login", nil)
		r.Host = "localhost"
		r.Header.Set("Content-Type", "text/plain")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != 403 || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s of a browser: %d %v", method, w.Code, w.Header())
		}
	}
	for host, want := range map[string]int{"localhost:80": 200, "127.0.0.1": 200, "[::1]:8080": 200, "evil.example": 403, "localhost.evil.example:8080": 403} {
		for path, want := range map[string]int{"/v1/policies": want, "/check/login": want} {
			r := httptest.NewRequestWithContext(t.Context(), "GET", path, nil)
			r.Host = host
			r.Header.Set(GatewayHeader, "1")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s of %s: %d, want %d", path, host, w.Code, want)
			}
		}
		call(t, h, "POST", "/v1/reset", `{"policy":"login","key":"192.0.2.1"}`)
	}
}

// TestCheck: a gateway's clients are counted by the address that it names and by headers, and a
// denial has the status that the gateway passes on, and is observed as a denial.
func TestCheck(t *testing.T) {
	t.Parallel()
	h, observed := newHandler(t, nil), 0
	h.Observe = func(_ *http.Request, _, _ string, status int, _ time.Duration) { observed = status }
	for i, c := range []struct {
		method, path string
		headers      []string
		status       int
	}{
		{"GET", "/check/login", []string{"X-Forwarded-For", "203.0.113.1"}, 200},
		{"POST", "/check/login/by=address&cost=2", []string{"X-Forwarded-For", "203.0.113.9, 203.0.113.1"}, 200},
		{"GET", "/check/login?by=header:X-Foo&cost=4&page=2", []string{"X-Forwarded-For", "203.0.113.1, 192.0.2.7"}, 429}, // 192.0.2.7 is a gateway, the query its client's
		{"DELETE", "/check/login/denied=403", []string{"X-Forwarded-For", "203.0.113.1"}, 403},
		{"HEAD", "/check/login/denied=401&cost=4", []string{"X-Forwarded-For", "203.0.113.1"}, 401},
		{"GET", "/check/login/cost=4", []string{"X-Forwarded-For", "203.0.113.1"}, 413},
		{"GET", "/check/login/cost=3", []string{"X-Forwarded-For", "203.0.113.2"}, 200},
		{"GET", "/check/login/by=address&by=header:X-Api-Key", []string{"X-Forwarded-For", "203.0.113.2", "X-Api-Key", "k"}, 200},
		{"GET", "/check/queue/by=header:X-Api-Key", []string{"X-Api-Key", "k"}, 200},
		{"GET", "/check/queue/by=header:X-Api-Key", []string{"X-Api-Key", "k"}, 429}, // its turn is too far away
	} {
		r, body := call(t, h, c.method, c.path, "", c.headers...)
		if r.StatusCode != c.status || r.Header.Get("RateLimit-Policy") == "" || (r.StatusCode == 200) != (body == "") {
			t.Errorf("%d: %s %s: %d %s %v", i, c.method, c.path, r.StatusCode, body, r.Header)
		}
		if denied := strings.Contains(c.path, "denied="); denied && observed != 429 || !denied && observed != c.status {
			t.Errorf("%d: %s %s is observed as %d", i, c.method, c.path, observed)
		}
	}
	if r, body := call(t, h, "GET", "/v1/usage?policy=login&key=203.0.113.2:k", ""); !strings.Contains(body, `"spent":1,`) {
		t.Errorf("the joined key: %d %s", r.StatusCode, body)
	}
	h = newHandler(t, func(c *Config) { c.Address = httplimit.Address{} })
	if r, body := call(t, h, "GET", "/check/login", ""); r.StatusCode != 400 || !strings.Contains(body, "--trusted-proxies") {
		t.Errorf("without trusted proxies: %d %s", r.StatusCode, body)
	}
}

// TestUnavailable: what the database says is logged, not answered.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	h := newHandler(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	must.Succeed(t, h.Limiter.Close())
	seen := 0
	h.Observe = func(r *http.Request, route, _ string, status int, _ time.Duration) {
		if seen++; status != 503 || route != r.URL.Path {
			t.Error(route, status)
		}
	}
	r, body := call(t, h, "POST", "/v1/allow", `{"policy":"login","key":"secret customer"}`)
	if r.StatusCode != 503 || r.Header.Get("Retry-After") != "1" || !strings.Contains(body, `"code":"closed"`) || seen != 1 {
		t.Errorf("%d %s %v, %d seen", r.StatusCode, body, r.Header, seen)
	}
	if !strings.Contains(log.String(), "limiter is closed") || strings.Contains(log.String(), "secret") {
		t.Error(log.String())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("a client that has gone: %v", p)
		}
	}()
	h = newHandler(t, nil)
	h.Observe = func(_ *http.Request, _, _ string, status int, _ time.Duration) {
		if status != clientClosedRequest {
			t.Error(status)
		}
	}
	q := httptest.NewRequestWithContext(ctx, "POST", "/v1/allow", strings.NewReader(`{"policy":"login","key":"a"}`))
	q.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(httptest.NewRecorder(), q)
}

// TestRefusals: an error that its client cannot correct is a 503 without host, role and database.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`"code":"unavailable"`:   errors.New("dial tcp secret-host: connection refused"),
		`"code":"misconfigured"`: &pgconn.PgError{Severity: "FATAL", Code: "22023", Message: `role "secret-role" does not exist`},
	} {
		config := must.OK(pgxpool.ParseConfig("postgres://secret-role@192.0.2.1/secret-db?sslmode=disable"))(t)
		config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, err }
		pool := must.OK(pgxpool.NewWithConfig(t.Context(), config))(t)
		t.Cleanup(pool.Close)
		h := newHandler(t, nil)
		h.Limiter = must.OK(limiter.New(pool, &limiter.Config{Policies: h.Policies, Logger: h.Logger}))(t)
		const key, one = `{"policy":"login","key":"k"`, `{"policy":"login","key":"k","cost":1}`
		for path, body := range map[string]string{
			"/v1/allow": one, "/v1/allow-up-to": one, "/v1/check": one, "/v1/charge": one, "/v1/refund": one, "/v1/reset": key + "}", "/v1/unblock": key + "}",
			"/v1/allow-all": `{"requests":[` + one + `]}`, "/v1/allow-any": `{"requests":[` + one + `]}`, "/v1/allow-batch": `{"requests":[` + one + `]}`, "/v1/reserve-all": `{"requests":[` + one + `]}`,
			"/v1/settle-all": `{"ids":["fixed_window:2QJ6XJZK4R3PLD5W7NBAHT6EYC:login:YQ"],"units":[1]}`, "/v1/cancel-all": `{"ids":["fixed_window:2QJ6XJZK4R3PLD5W7NBAHT6EYC:login:YQ"]}`, "/v1/reserve": key + `,"cost":1,"ttl":"1m"}`, "/v1/reserve-up-to": key + `,"cost":1,"estimate":true}`,
			"/v1/block": key + `,"for":"1h"}`, "/v1/usage?policy=login&key=k": "", "/check/login": "",
		} {
			method := map[bool]string{true: "GET", false: "POST"}[body == ""]
			r, answer := call(t, h, method, path, body, "X-Forwarded-For", "203.0.113.1")
			if batch := path == "/v1/allow-batch"; (r.StatusCode != 503) != batch || !strings.Contains(answer, want) || strings.Contains(answer, "secret") || strings.Contains(answer, "192.0.2.1") {
				t.Errorf("%s: %d %s, want %s", path, r.StatusCode, answer, want)
			}
		}
	}
}
