package frameworks

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
)

// Fiber serves orders with fiber.
func Fiber(limit func(http.Handler) http.Handler, create func(idempotencyKey string) string) *fiber.App {
	app := fiber.New()
	app.Use(FiberMiddleware(limit))
	app.Post("/orders", func(c fiber.Ctx) error {
		return c.SendString(create(strings.Clone(c.Get("Idempotency-Key"))))
	})
	return app
}

// FiberMiddleware adapts the middleware to fiber, for all routes or one. Fiber's adaptor makes a
// request whose strings change when the connection's next request arrives. A limiter keeps keys
// for longer, so they are copied first. The request's context is reused too, and ends only with the
// server, so the limiter gets one that does not end. Fiber does not notice clients that go away.
func FiberMiddleware(limit func(http.Handler) http.Handler) fiber.Handler {
	return adaptor.HTTPMiddleware(func(next http.Handler) http.Handler {
		limited := limit(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, values := range r.Header {
				for i := range values {
					values[i] = strings.Clone(values[i])
				}
			}
			r.Host = strings.Clone(r.Host)
			if u, err := url.ParseRequestURI(strings.Clone(r.RequestURI)); err == nil { // as the adaptor has parsed it
				r.URL = u
			}
			limited.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
		})
	})
}
