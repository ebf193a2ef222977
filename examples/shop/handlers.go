package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// client returns a client's address. Behind a proxy that appends to X-Forwarded-For:
// httplimit.Address{Hops: 1}.
var client httplimit.Address

// user stands for a row of the application's database.
type user struct{ name, plan, password string }

var users = map[string]user{"alice": {"alice", "free", "wonderland"}, "bob": {"bob", "paid", "builder"}}

func (s *shop) handler() http.Handler {
	mux := http.NewServeMux()
	// Only a failed login counts: any other status gives the unit back.
	failed := httplimit.WithRefundIf(func(status int) bool { return status != http.StatusUnauthorized })
	// It counts an account's failed logins from one address, so that an attacker elsewhere does
	// not use up the owner's. The account comes first in the key: `pglimit forget` of a person
	// finds it. User and Join make a key of any name, whatever a client sends.
	account := httplimit.User(func(r *http.Request) string { name, _, _ := r.BasicAuth(); return name })
	logins := httplimit.EachNamed(httplimit.Join(account, client.Key), s.policies, "login")
	mux.Handle("POST /login", httplimit.New(s.limits, logins, failed)(http.HandlerFunc(login)))
	plan := httplimit.New(s.limits, s.planLimits)
	mux.Handle("POST /orders", authenticate(plan(http.HandlerFunc(s.order))))
	mux.Handle("POST /answers", authenticate(plan(http.HandlerFunc(s.answer))))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}))
	return mux
}

// planLimits counts a user's requests by the policy of the user's plan.
func (s *shop) planLimits(r *http.Request) ([]limiter.Request, error) {
	u := userOf(r)
	policy, err := s.policies.Get(u.plan)
	return []limiter.Request{policy.Request(u.name, 1)}, err
}

func login(w http.ResponseWriter, r *http.Request) {
	name, password, _ := r.BasicAuth()
	if u, known := users[name]; !known || password != u.password {
		http.Error(w, "wrong name or password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "welcome")
}

type userKey struct{}

func userOf(r *http.Request) user { return r.Context().Value(userKey{}).(user) }

// authenticate stands for the application's authentication.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, known := users[r.Header.Get("X-Api-Key")]
		if !known {
			http.Error(w, "unknown API key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, u)))
	})
}

// order places an order: POST /orders?number=1&cents=6000.
func (s *shop) order(w http.ResponseWriter, r *http.Request) {
	number, bad := strconv.ParseUint(r.FormValue("number"), 10, 63)
	cents, err := strconv.ParseInt(r.FormValue("cents"), 10, 32)
	if bad != nil || err != nil || cents <= 0 {
		http.Error(w, "number and cents are needed: whole numbers, cents above 0", http.StatusBadRequest)
		return
	}
	s.reply(w, "ordered", s.place(r.Context(), userOf(r).name, strconv.FormatUint(number, 10), cents))
}

// answer answers a prompt within the user's tokens of the day: POST /answers?prompt=hello.
func (s *shop) answer(w http.ResponseWriter, r *http.Request) {
	used, err := s.complete(r.Context(), userOf(r).name, r.FormValue("prompt"))
	s.reply(w, fmt.Sprintf("%d tokens used", used), err)
}

// reply answers with 200 or, if a limit denied the work, as the middleware does. The text of
// another error is not for clients.
func (s *shop) reply(w http.ResponseWriter, text string, err error) {
	switch {
	case err == nil:
		fmt.Fprintln(w, text)
	case httplimit.Deny(w, err):
	case errors.Is(err, errTaken), errors.Is(err, limiter.ErrInvalid): // its number was used with other cents
		http.Error(w, "there is another order of that number", http.StatusConflict)
	default:
		log.Print(err)
		http.Error(w, "try again later", http.StatusServiceUnavailable)
	}
}
