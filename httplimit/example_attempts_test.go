package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// Three wrong passwords make strangers wait, first for a minute, then for two, four and eight.
// The owner still gets in from where they got in before.
func ExampleNewAttempts() {
	logins := limiter.Policy{Name: "login", Algorithm: limiter.Attempts, Limit: 3, Period: 24 * time.Hour, BlockFor: time.Minute}
	login := httplimit.NewAttempts(memory(), func(r *http.Request) (httplimit.Attempt, error) {
		name, _, ok := r.BasicAuth()
		if !ok {
			return httplimit.Attempt{}, httplimit.ErrNoKey
		}
		network, err := httplimit.Address{}.Key(r)
		return httplimit.Attempt{Policy: logins, Key: name, AttemptOptions: limiter.AttemptOptions{From: network}}, err
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "correct horse" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	send := func(address, password string) {
		r := httptest.NewRequest("POST", "/login", nil)
		r.RemoteAddr = address + ":1234"
		r.SetBasicAuth("alice", password)
		w := httptest.NewRecorder()
		login.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header()["Retry-After"])
	}
	send("192.0.2.1", "correct horse")
	for range 3 {
		send("198.51.100.7", "guess")
	}
	send("198.51.100.7", "correct horse")
	send("192.0.2.1", "correct horse")
	// Output:
	// 200 []
	// 401 []
	// 401 []
	// 401 []
	// 429 [60]
	// 200 []
}

// A handler that answers a wrong password with the form again, and a right one with a redirect.
func ExampleWithSucceededIf() {
	codes := limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 1, Period: time.Hour, BlockFor: time.Minute}
	l := memory()
	h := httplimit.NewAttempts(l, func(*http.Request) (httplimit.Attempt, error) {
		return httplimit.Attempt{Policy: codes, Key: "alice"}, nil
	}, httplimit.WithSucceededIf(func(status int) bool { return status == http.StatusSeeOther }))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "Wrong code. Try again.") }))
	for range 2 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("POST", "/code", nil))
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 429
}
