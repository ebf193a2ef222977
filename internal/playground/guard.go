package playground

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// pagePolicy is what the page's Content-Security-Policy allows: this server alone,
// and no script or style in the page itself.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard stands in front of everything: it refuses what another site makes a browser
// ask, and tells browsers what they must not do.
func (s *Server) guard(next http.Handler) http.Handler {
	origin := http.NewCrossOriginProtection()
	other := refuse("a page of another site must not ask this of the playground")
	origin.SetDenyHandler(other)
	next = origin.Handler(next)
	foreign := refuse("this is not the host that the playground listens on: open the address that it printed, or name the host with --addr")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/limited/") { // there the limiter's headers are all that is to be seen
			h := w.Header()
			h.Set("Content-Security-Policy", pagePolicy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			h.Set("Cross-Origin-Resource-Policy", "same-origin")
		}
		if !knownHost(s.config.Host, r.Host) {
			foreign.ServeHTTP(w, r)
			return
		}
		// A link may lead here; an image or a frame, of another port of this machine's
		// either, must not count, nor take a stream.
		site := r.Header.Get("Sec-Fetch-Site")
		if (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Dest") != "document" {
			other.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func refuse(message string) http.Handler {
	return answer(func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, &problem{status: http.StatusForbidden, Message: message}
	})
}

// knownHost reports whether a request's Host header may stand before a server that
// listens on the host listening.
func knownHost(listening, header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return Loopback(host) || everywhere(listening) || strings.EqualFold(host, listening)
}

// Loopback reports whether a host, as an address names it, is this machine alone.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// everywhere reports whether to listen on host is to listen on all addresses.
func everywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.Unmap().IsUnspecified()
}
