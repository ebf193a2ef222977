package httpapi

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestGrant: a grant adds units once for its idempotency key, in the body or the header, and
// requests spend them. Bad fields are errors that name them.
func TestGrant(t *testing.T) {
	t.Parallel()
	live := must.OK(policies.New(limiter.Policy{Name: "credits", Algorithm: limiter.Balance}, limiter.PerHour("rate", 5)))(t)
	h := newHandler(t, func(c *Config) {
		c.Policies, c.Limiter = live, limiter.NewMemory(&limiter.Config{Policies: live})
	})
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, c := range []struct {
		route, body string
		header      []string
		status      int
		want        string
	}{
		{"grant", fmt.Sprintf(`{"policy":"credits","key":"a","units":10,"expires":%q,"priority":-1,"source":"gift"}`, expires), nil, 200, `"granted":10,`},
		{"grant", `{"policy":"credits","key":"a","units":5,"idempotency_key":"one"}`, nil, 200, `"remaining":15,`},
		{"grant", `{"policy":"credits","key":"a","units":5}`, []string{"Idempotency-Key", "one"}, 200, `"replayed":true`},
		{"allow", `{"policy":"credits","key":"a","cost":12}`, nil, 200, `"remaining":3,`},
		{"allow", `{"policy":"credits","key":"a","cost":4}`, nil, 200, `"retry_after_s":null`},
		{"grant", `{"policy":"credits","key":"a"}`, nil, 400, `"field":"units"`},
		{"grant", `{"policy":"credits","key":"a","units":0}`, nil, 400, `units 0`},
		{"grant", `{"policy":"credits","key":"a","units":1,"expires":"2020-01-01T00:00:00Z"}`, nil, 400, `"field":"expires"`},
		{"grant", `{"policy":"credits","key":"a","units":1,"expires":"soon"}`, nil, 400, `expires is \"soon\": must be a time such as `},
		{"grant", `{"policy":"credits","key":"a","units":1,"source":"` + strings.Repeat("x", 256) + `"}`, nil, 400, `"field":"source"`},
		{"grant", `{"policy":"credits","key":"a","units":1,"priority":1001}`, nil, 400, `"field":"priority"`},
		{"grant", `{"policy":"rate","key":"a","units":1}`, nil, 400, `"unsupported"`},
		{"grant", `{"policy":"none","key":"a","units":1}`, nil, 404, `"no_policy"`},
	} {
		if r, body := call(t, h, "POST", "/v1/"+c.route, c.body, c.header...); r.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s: %d %s, want %d and %s", c.route, c.body, r.StatusCode, body, c.status, c.want)
		}
	}
	var u struct{ Lots []limiter.Lot }
	_, body := call(t, h, "GET", "/v1/usage?policy=credits&key=a", "")
	if must.Succeed(t, json.Unmarshal([]byte(body), &u)); len(u.Lots) != 1 || u.Lots[0].Units != 3 || u.Lots[0].Number != 2 {
		t.Errorf("usage: %s", body)
	}
}
