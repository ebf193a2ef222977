package moving

import (
	"net/http"

	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
)

func ululeBefore(store limiter.Store, mux *http.ServeMux) (http.Handler, error) {
	rate, err := limiter.NewRateFromFormatted("5-M")
	if err != nil {
		return nil, err
	}
	return stdlib.NewMiddleware(limiter.New(store, rate)).Handler(mux), nil
}
