// Command gin serves an API whose limits depend on values that gin knows: the route, and
// what other middleware has set.
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

	"github.com/gin-gonic/gin"
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
	strangers = limiter.Policy{Name: "stranger", Algorithm: limiter.GCRA, Limit: 10, Period: time.Minute, Burst: 2}
)

// costs are the routes' units. Default: 1.
var costs = map[string]float64{"/export": 20, "/search/:query": 5}

// client returns the client's address. Behind a proxy that appends to X-Forwarded-For:
// httplimit.Address{Hops: 1}.
var client httplimit.Address

// user stands for a row of the application's database. users' keys have the form that
// account returns.
type user struct{ name, plan, password string }

var users = map[string]user{"alice": {"alice", "free", "wonderland"}, "bob": {"bob", "paid", "builder"}}

// limit turns net/http middleware into gin middleware, with limits chosen from a
// gin.Context.
func limit(l *limiter.Limiter, requests func(*gin.Context) ([]limiter.Request, error), opts ...httplimit.Option) gin.HandlerFunc {
	type contextKey struct{}
	of := func(r *http.Request) *gin.Context { return r.Context().Value(contextKey{}).(*gin.Context) }
	h := httplimit.New(l, func(r *http.Request) ([]limiter.Request, error) { return requests(of(r)) }, opts...)(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := of(r)
			c.Next()
			w.WriteHeader(c.Writer.Status()) // already set; this reports it to RefundIf
		}))
	return func(c *gin.Context) {
		h.ServeHTTP(c.Writer, c.Request.WithContext(context.WithValue(c.Request.Context(), contextKey{}, c)))
		c.Abort() // an allowed request has already run the other handlers
	}
}

func newHandler(l *limiter.Limiter) http.Handler {
	r := gin.New()
	r.Use(gin.Recovery())
	r.POST("/login", limit(l, func(c *gin.Context) ([]limiter.Request, error) { return loginLimits(c.Request) }, failed), login)

	api := r.Group("/", authenticate, limit(l, perUser))
	api.GET("/items/:id", func(c *gin.Context) { c.String(http.StatusOK, "item %s\n", c.Param("id")) })
	api.GET("/search/:query", func(c *gin.Context) { c.String(http.StatusOK, "no %s\n", c.Param("query")) })
	api.GET("/export", func(c *gin.Context) { c.String(http.StatusOK, "all items\n") })
	return r
}

// perUser requests the route's cost, of a user's plan or of an unknown client's address.
func perUser(c *gin.Context) ([]limiter.Request, error) {
	cost := max(1, costs[c.FullPath()])
	if u, known := c.Get("user"); known {
		return []limiter.Request{plans[u.(user).plan].Request(u.(user).name, cost)}, nil
	}
	address, err := client.Key(c.Request)
	return []limiter.Request{strangers.Request(address, cost)}, err
}

// authenticate stands for the application's authentication. It puts the user into gin's
// context.
func authenticate(c *gin.Context) {
	if u, known := users[c.GetHeader("X-Api-Key")]; known {
		c.Set("user", u)
	}
}

func login(c *gin.Context) {
	_, password, _ := c.Request.BasicAuth()
	if u, known := users[account(c.Request)]; !known || password != u.password {
		c.String(http.StatusUnauthorized, "wrong\n")
		return
	}
	c.String(http.StatusOK, "welcome\n")
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
