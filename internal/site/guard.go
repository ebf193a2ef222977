package site

import (
	"net"
	"net/http"
	"strings"

	"github.com/pglimit/pglimit/internal/site/api"
)

// Guard restricts which requests reach a page's server, and what the page may do.
type Guard struct {
	// Name of the page in messages, such as "playground".
	Name string
	// Host of the address that the server listens on. Requests for other hosts are
	// refused, except for names of the loopback. Otherwise a foreign name that resolves
	// to this machine could give another site access. Empty, 0.0.0.0 and :: listen on
	// all addresses and accept any host.
	Host string
	// Policy is the page's Content-Security-Policy.
	Policy string
	// Bare reports whether answers on a path have no security headers. nil: none.
	Bare func(path string) bool
}

// Handler refuses requests for other hosts than g.Host, and requests that another
// site's page sends. It passes all others to next, with headers that restrict the page.
func (g Guard) Handler(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	other := refuse("a page of another site may not send requests to the " + g.Name)
	origin.SetDenyHandler(other)
	next = origin.Handler(next)
	foreign := refuse("this is not the host that the " + g.Name + " listens on: open the address that it printed, or name the host with --addr")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Bare == nil || !g.Bare(r.URL.Path) {
			h := w.Header()
			h.Set("Content-Security-Policy", g.Policy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Cross-Origin-Resource-Policy", "same-origin")
		}
		if !knownHost(g.Host, r.Host) {
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
