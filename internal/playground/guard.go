package playground

import (
	"net"
	"net/http"
	"strings"

	"github.com/pglimit/pglimit/internal/playground/api"
)

// pagePolicy is the page's Content-Security-Policy. It allows only files of this
// server, and no inline script or style.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard refuses requests for other hosts than the one listened on, and requests that
// another site's page sends. It sets the headers that restrict the page.
func guard(listening string, next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	other := refuse("a page of another site may not send requests to the playground")
	origin.SetDenyHandler(other)
	next = origin.Handler(next)
	foreign := refuse("this is not the host that the playground listens on: open the address that it printed, or name the host with --addr")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/limited/") { // curl shows only the limiter's headers there
			h := w.Header()
			h.Set("Content-Security-Policy", pagePolicy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Cross-Origin-Resource-Policy", "same-origin")
		}
		if !knownHost(listening, r.Host) {
			foreign.ServeHTTP(w, r)
			return
		}
		// Other sites may link here. An image or a frame on them must not send requests
		// or open a stream, even on another port of this machine.
		site := r.Header.Get("Sec-Fetch-Site")
		if (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Dest") != "document" {
			other.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func refuse(message string) http.Handler {
	return api.Answer(func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, &api.Problem{Status: http.StatusForbidden, Message: message}
	})
}

// knownHost reports whether a server that listens on the host listening answers
// requests with that Host header.
func knownHost(listening, header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return Loopback(host) || everywhere(listening) || strings.EqualFold(host, listening)
}
