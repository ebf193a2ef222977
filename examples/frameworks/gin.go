package frameworks

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin serves orders with gin.
func Gin(limit func(http.Handler) http.Handler, create func(idempotencyKey string) string) http.Handler {
	r := gin.New()
	r.Use(GinMiddleware(limit))
	r.POST("/orders", func(c *gin.Context) {
		c.String(http.StatusOK, "%s", create(c.GetHeader("Idempotency-Key")))
	})
	return r
}

// GinMiddleware adapts the middleware to gin, for all routes or one.
func GinMiddleware(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.Request = r // httplimit.FromContext reads the decision from its context
			c.Next()
			w.WriteHeader(c.Writer.Status()) // for WithRefundIf
		})).ServeHTTP(c.Writer, c.Request)
		c.Abort() // an allowed request has already run the other handlers
	}
}
