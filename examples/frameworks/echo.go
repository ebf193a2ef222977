package frameworks

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// Echo serves orders with echo, which wraps the middleware, for all routes or one. With
// WithRefundIf a handler must write its answer: echo answers an error after the middleware.
func Echo(limit func(http.Handler) http.Handler, create func(idempotencyKey string) string) http.Handler {
	e := echo.New()
	e.Use(echo.WrapMiddleware(limit))
	e.POST("/orders", func(c echo.Context) error {
		return c.String(http.StatusOK, create(c.Request().Header.Get("Idempotency-Key")))
	})
	return e
}
