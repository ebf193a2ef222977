package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// described is a server with the validator of the document that it serves.
type described struct {
	*server
	token string
	valid validator.Validator
	seen  map[string]bool // methods and paths of the document
}

// send sends a request and validates it, if it shall be valid, and its answer.
func (d *described) send(t *testing.T, status int, method, path, body string, headers ...string) string {
	t.Helper()
	request := func() *http.Request {
		r := must.OK(http.NewRequestWithContext(t.Context(), method, d.HTTP+path, strings.NewReader(body)))(t)
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		r.Header.Set("Authorization", "Bearer "+d.token)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return r
	}
	answer := must.OK(http.DefaultClient.Do(request()))(t)
	defer answer.Body.Close()
	text := must.OK(io.ReadAll(answer.Body))(t)
	if answer.StatusCode != status {
		t.Errorf("%s %s %s: %d %s, want %d", method, path, body, answer.StatusCode, text, status)
	}
	answer.Body = io.NopCloser(bytes.NewReader(text))
	faults := []string{}
	if status < 400 || status == http.StatusTooManyRequests {
		_, errs := d.valid.ValidateHttpRequest(request())
		for _, e := range errs {
			faults = append(faults, "request: "+e.Error())
		}
	}
	_, errs := d.valid.ValidateHttpResponse(request(), answer)
	for _, e := range errs {
		faults = append(faults, "answer: "+e.Error())
	}
	if len(faults) > 0 {
		t.Errorf("%s %s %s\n%d %s\n%s", method, path, body, status, text, strings.Join(faults, "\n"))
	}
	path, _, _ = strings.Cut(path, "?")
	if strings.HasPrefix(path, "/check/") {
		path = "/check/{policy}" + strings.Repeat("/{options}", min(1, strings.Count(path, "/")-2))
	}
	d.seen[strings.ToLower(method)+" "+path] = true
	return string(text)
}

// TestOpenAPI: every operation of the document is answered as it says, and every operation of
// the document is tried.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	secret, line := token(t, "all", "decide,spend,operate")
	d := &described{server: start(t, testworld.NewDatabase(t), "--trusted-proxies", "127.0.0.1,::1", "--tokens", file(t, "tokens", line)), token: secret, seen: map[string]bool{}}
	_, text := call(t, "GET", d.HTTP+"/openapi.json", "")
	document := must.OK(libopenapi.NewDocument([]byte(text)))(t)
	var errs []error
	if d.valid, errs = validator.NewValidator(document); len(errs) > 0 {
		t.Fatal(errs)
	}
	if ok, errs := d.valid.ValidateDocument(); !ok {
		for _, e := range errs {
			t.Error(e)
			for _, c := range e.SchemaValidationErrors {
				t.Error(c.Reason)
			}
		}
	}
	send := func(status int, method, path, body string, headers ...string) string {
		t.Helper()
		return d.send(t, status, method, path, body, headers...)
	}
	send(200, "GET", "/openapi.json", "")
	send(200, "GET", "/healthz", "")

	send(200, "POST", "/v1/allow", `{"policy":"login","key":"a"}`)
	send(200, "POST", "/v1/allow", `{"policy":"login","key":"a","cost":2,"idempotency_key":"x"}`)
	send(200, "POST", "/v1/allow", `{"policy":"login","key":"a","cost":2}`, "Idempotency-Key", `"x"`) // replayed
	send(200, "POST", "/v1/allow", `{"policy":"login","key":"a"}`)                                    // denied
	send(200, "POST", "/v1/allow", `{"policy":"login","key":"a","cost":4}`)                           // never
	send(200, "POST", "/v1/allow", `{"policy":"queue","key":"a"}`)
	send(400, "POST", "/v1/allow", `{"policy":"login","key":""}`)
	send(404, "POST", "/v1/allow", `{"policy":"none","key":"a"}`)
	send(415, "POST", "/v1/allow", ``)
	send(401, "POST", "/v1/allow", `{"policy":"login","key":"a"}`, "Authorization", "")
	send(200, "POST", "/v1/allow-up-to", `{"policy":"login","key":"b","cost":5}`)
	send(200, "POST", "/v1/check", `{"policy":"login","key":"b","cost":0}`)
	send(200, "POST", "/v1/allow-all", `{"requests":[{"policy":"login","key":"c"},{"policy":"budget","key":"c","cost":5}]}`)
	send(200, "POST", "/v1/allow-all", `{"requests":[{"policy":"login","key":"c","cost":3},{"policy":"budget","key":"c","cost":5}]}`) // denied
	send(200, "POST", "/v1/allow-any", `{"requests":[{"policy":"login","key":"any"},{"policy":"budget","key":"any"}]}`)
	send(200, "POST", "/v1/allow-any", `{"requests":[{"policy":"login","key":"any","cost":9},{"policy":"budget","key":"any","cost":9}],"split":true}`)
	send(200, "POST", "/v1/allow-any", `{"requests":[{"policy":"login","key":"any","cost":1e6}]}`) // never
	send(200, "POST", "/v1/allow-batch", `{"requests":[{"policy":"login","key":"c"},{"policy":"none","key":"c"}]}`)
	ids := func(body string) string {
		var made struct{ IDs json.RawMessage }
		must.Succeed(t, json.Unmarshal([]byte(body), &made))
		return string(made.IDs)
	}
	const budgets = `{"requests":[{"policy":"budget","key":"r","cost":5},{"policy":"budget","key":"s","cost":5}],"ttl":"1m"}`
	made := ids(send(200, "POST", "/v1/reserve-all", budgets))
	send(200, "POST", "/v1/reserve-all", `{"requests":[{"policy":"login","key":"r","cost":3},{"policy":"login","key":"s","cost":30}]}`) // denied
	send(200, "POST", "/v1/settle-all", `{"ids":`+made+`,"units":2}`)
	send(200, "POST", "/v1/settle-all", `{"ids":`+made+`,"units":[2,2]}`)
	send(409, "POST", "/v1/settle-all", `{"ids":`+made+`,"units":[2,3]}`)
	made = ids(send(200, "POST", "/v1/reserve-all", budgets, "Idempotency-Key", `"x"`))
	send(204, "POST", "/v1/cancel-all", `{"ids":`+made+`}`)
	send(400, "POST", "/v1/cancel-all", `{"ids":[]}`)
	send(200, "POST", "/v1/charge", `{"policy":"budget","key":"d","cost":20}`)
	send(200, "POST", "/v1/refund", `{"policy":"budget","key":"d","cost":5}`)

	reserve := func(body string, headers ...string) string {
		t.Helper()
		var hold struct{ ID *string }
		must.Succeed(t, json.Unmarshal([]byte(send(200, "POST", "/v1/reserve", body, headers...)), &hold))
		if hold.ID == nil {
			return ""
		}
		return *hold.ID
	}
	id := reserve(`{"policy":"budget","key":"d","cost":10,"ttl":"1h"}`, "Idempotency-Key", "once")
	if again := reserve(`{"policy":"budget","key":"d","cost":10,"ttl":"1h"}`, "Idempotency-Key", `"once"`); again != id {
		t.Errorf("reserved again: %s and %s", id, again)
	}
	other := reserve(`{"policy":"budget","key":"d"}`)
	if text := send(200, "POST", "/v1/reserve-up-to", `{"policy":"budget","key":"part","cost":5000,"ttl":"1h","estimate":true}`); !strings.Contains(text, `"granted":100,`) {
		t.Error("what fits:", text)
	}
	if id := reserve(`{"policy":"budget","key":"d","cost":99}`); id != "" {
		t.Error("a denied reservation has the ID", id)
	}
	if text := send(200, "GET", "/v1/usage?policy=budget&key=d", ""); !strings.Contains(text, `"spent":15,"reserved":11,"reservations":2,"remaining":74,`) {
		t.Error("usage:", text)
	}
	send(200, "GET", "/v1/keys?key=d", "")
	send(200, "POST", "/v1/settle", fmt.Sprintf(`{"id":%q,"units":7}`, id))
	send(409, "POST", "/v1/settle", fmt.Sprintf(`{"id":%q,"units":8}`, id))
	send(204, "POST", "/v1/cancel", fmt.Sprintf(`{"id":%q}`, other))
	if text := send(200, "GET", "/v1/usage?policy=budget&key=d", ""); !strings.Contains(text, `"spent":22,"reserved":0,`) {
		t.Error("usage:", text)
	}

	for _, route := range []string{"/v1/succeeded", "/v1/failed", "/v1/failed", ""} {
		var ticket struct{ ID *string }
		must.Succeed(t, json.Unmarshal([]byte(send(200, "POST", "/v1/attempt", `{"policy":"code","key":"f","from":"home","ttl":"1h"}`)), &ticket))
		if (ticket.ID == nil) != (route == "") {
			t.Fatalf("before %q: %v", route, ticket.ID)
		} else if route == "" {
			break // two failures made it wait
		}
		id := fmt.Sprintf(`{"id":%q}`, *ticket.ID)
		send(map[string]int{"/v1/succeeded": 204, "/v1/failed": 200}[route], "POST", route, id)
		send(404, "POST", route, id)
	}
	send(200, "GET", "/v1/usage?policy=code&key=f", "")

	acquire := func() (slot struct{ ID *string }) {
		must.Succeed(t, json.Unmarshal([]byte(send(200, "POST", "/v1/acquire", `{"policy":"exports","key":"g","cost":2,"ttl":"1h"}`)), &slot))
		return slot
	}
	held, denied := acquire(), acquire()
	if held.ID == nil || denied.ID != nil {
		t.Fatalf("acquired %v and %v", held.ID, denied.ID)
	}
	slot := fmt.Sprintf(`{"id":%q}`, *held.ID)
	send(200, "POST", "/v1/renew", slot)
	send(204, "POST", "/v1/release", slot)
	send(404, "POST", "/v1/release", slot)
	send(404, "POST", "/v1/renew", slot)
	send(200, "POST", "/v1/grant", `{"policy":"credits","key":"f","units":5,"expires":"2100-01-01T00:00:00Z","priority":1,"source":"gift","idempotency_key":"x"}`)
	send(200, "POST", "/v1/grant", `{"policy":"credits","key":"f","units":2}`)
	send(200, "GET", "/v1/usage?policy=credits&key=f", "")

	send(204, "POST", "/v1/block", `{"policy":"budget","key":"e","for":"1d"}`)
	if text := send(200, "POST", "/v1/allow", `{"policy":"budget","key":"e"}`); !strings.Contains(text, `"reason":"blocked"`) {
		t.Error("blocked:", text)
	}
	send(204, "POST", "/v1/unblock", `{"policy":"budget","key":"e"}`)
	send(204, "POST", "/v1/reset", `{"policy":"budget","key":"d"}`)
	send(200, "GET", "/v1/keys?prefix=a&policy=login&algorithm=fixed_window&limit=10", "")
	send(400, "GET", "/v1/keys?prefix=a&limit=10001", "")
	send(200, "GET", "/v1/policies", "")

	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		send(200, method, "/check/budget/by=address&by=header:X-Api-Key&cost=2", "", "X-Api-Key", "k")
		send(200, method, "/check/budget", "")
	}
	send(429, "GET", "/check/login/by=header:X-Api-Key", "", "X-Api-Key", "a")
	send(403, "GET", "/check/login/by=header:X-Api-Key&denied=403", "", "X-Api-Key", "a")
	send(413, "GET", "/check/login/cost=4", "")
	send(403, "GET", "/check/login/by=header:X-Api-Key", "")
	send(404, "GET", "/check/none", "")

	var all struct {
		Paths map[string]map[string]json.RawMessage
	}
	must.Succeed(t, json.Unmarshal([]byte(text), &all))
	operations := 0
	for path, methods := range all.Paths {
		for method := range methods {
			if method == "parameters" {
				continue
			}
			operations++
			if !d.seen[method+" "+path] {
				t.Errorf("%s %s of the document was not tried", method, path)
			}
		}
	}
	if operations != len(d.seen) {
		t.Errorf("the document has %d operations, tried were %d: %v", operations, len(d.seen), slices.Sorted(func(yield func(string) bool) {
			for name := range d.seen {
				if !yield(name) {
					return
				}
			}
		}))
	}
}
