// Command echo serves an API in which each request passes several limits at once, all or
// nothing: of the user's plan, of the tenant and of the client's address.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v5"

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
	perTenant  = limiter.Policy{Name: "tenant", Algorithm: limiter.FixedWindow, Limit: 40, Calendar: limiter.Day, TimeZone: "Europe/Vienna"}
	perAddress = limiter.Policy{Name: "address", Algorithm: limiter.GCRA, Limit: 100, Period: time.Second}
)

// client returns the client's address. Behind a proxy that appends to X-Forwarded-For:
// httplimit.Address{Hops: 1}.
var client httplimit.Address

// user stands for a row of the application's database. users' keys have the form that
// account returns.
type user struct{ name, tenant, plan, password string }

var users = map[string]user{
	"alice": {"alice", "acme", "free", "wonderland"},
	"bob":   {"bob", "acme", "paid", "builder"},
}

func newHandler(l *limiter.Limiter) http.Handler {
	e := echo.New()
	api := e.Group("", authenticate, limit(httplimit.New(l, requests, httplimit.WithXRateLimit())))
	api.GET("/items/:id", func(c *echo.Context) error { return c.String(http.StatusOK, "item "+c.Param("id")+"\n") })
	api.GET("/export", func(c *echo.Context) error { return c.String(http.StatusOK, "all items\n") })

	e.POST("/login", login, limit(httplimit.New(l, loginLimits, failed)))
	return e
}

// limit turns net/http middleware into echo middleware. It answers handlers' errors
// itself, so that RefundIf sees their status.
func limit(middleware func(http.Handler) http.Handler) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return echo.WrapMiddleware(middleware)(func(c *echo.Context) error {
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err)
			}
			return nil
		})
	}
}

// requests returns the limits of a request. They are granted together or not at all.
// echo.WrapMiddleware sets r.Pattern.
func requests(r *http.Request) ([]limiter.Request, error) {
	u := r.Context().Value(userKey{}).(user)
	cost := 1.0
	if r.Pattern == "/export" {
		cost = 20
	}
	address, err := client.Key(r)
	return []limiter.Request{plans[u.plan].Request(u.name, cost), perTenant.Request(u.tenant, cost), perAddress.Request(address, 1)}, err
}

type userKey struct{}

// authenticate stands for the application's authentication. It puts the user into the
// request's context.
func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		u, known := users[c.Request().Header.Get("X-Api-Key")]
		if !known {
			return echo.ErrUnauthorized
		}
		c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), userKey{}, u)))
		return next(c)
	}
}

func login(c *echo.Context) error {
	_, password, _ := c.Request().BasicAuth()
	if u, known := users[account(c.Request())]; !known || password != u.password {
		return echo.ErrUnauthorized
	}
	return c.String(http.StatusOK, "welcome\n")
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
