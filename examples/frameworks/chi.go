package frameworks

import (
	"net/http"

	"github.com/go-chi/chi/v5"
)

// Chi serves orders with chi. The middleware fits as it is, for all routes or with r.With for one.
func Chi(limit func(http.Handler) http.Handler, create func(idempotencyKey string) string) http.Handler {
	r := chi.NewRouter()
	r.Use(limit)
	r.Post("/orders", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(create(r.Header.Get("Idempotency-Key"))))
	})
	return r
}
