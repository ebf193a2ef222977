// Command chi serves an API whose limits are nested middleware: per client address for all
// requests, per plan for users, and for failed logins.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

var (
	// All plans share one name, so that a user who changes plans keeps the count.
	plans = map[string]limiter.Policy{
		"free": {Name: "plan", Algorithm: limiter.TokenBucket, Limit: 60, Period: time.Minute, Burst: 25},
		"paid": {Name: "plan", Algorithm: limiter.TokenBucket, Limit: 600, Period: time.Minute, Burst: 250},
	}
	perAddress = limiter.Policy{Name: "address", Algorithm: limiter.GCRA, Limit: 100, Period: time.Second}
)

// client returns the client's address. Behind a proxy that appends to X-Forwarded-For:
// httplimit.Address{Hops: 1}.
var client httplimit.Address

// user stands for a row of the application's database. users' keys have the form that
// account returns.
type user struct{ name, plan, password string }

var users = map[string]user{"alice": {"alice", "free", "wonderland"}, "bob": {"bob", "paid", "builder"}}

func newHandler(l *limiter.Limiter) http.Handler {
	r := chi.NewRouter()
	r.Use(httplimit.New(l, httplimit.Each(client.Key, perAddress)))
	r.With(guarded(l)...).Post("/login", login)

	r.Group(func(r chi.Router) {
		r.Use(authenticate)
		r.With(httplimit.New(l, costs(1))).Get("/items/{id}", func(w http.ResponseWriter, r *http.Request) {
			answer(w, http.StatusOK, "item "+chi.URLParam(r, "id"))
		})
		r.With(httplimit.New(l, costs(20))).Get("/export", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, "all items")
		})
	})
	return r
}

// costs requests units of the user's plan.
func costs(units float64) httplimit.Limits {
	return func(r *http.Request) ([]limiter.Request, error) {
		u := r.Context().Value(userKey{}).(user)
		return []limiter.Request{plans[u.plan].Request(u.name, units)}, nil
	}
}

type userKey struct{}

// authenticate stands for the application's authentication. It puts the user into the
// request's context.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, known := users[r.Header.Get("X-Api-Key")]
		if !known {
			answer(w, http.StatusUnauthorized, "who are you?")
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, u)))
	})
}

func login(w http.ResponseWriter, r *http.Request) {
	_, password, _ := r.BasicAuth()
	if u, known := users[account(r)]; !known || password != u.password {
		answer(w, http.StatusUnauthorized, "wrong")
		return
	}
	answer(w, http.StatusOK, "welcome")
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// run serves on the listener until ctx ends.
func run(ctx context.Context, url string, listener net.Listener) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	l, err := limiter.New(pool, nil)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: newHandler(l), ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	listener, err := net.Listen("tcp", "localhost:8080")
	if err == nil {
		log.Print("http://localhost:8080; Ctrl-C ends it")
		err = run(ctx, os.Getenv("DATABASE_URL"), listener)
	}
	if err != nil {
		log.Fatal(err)
	}
}
