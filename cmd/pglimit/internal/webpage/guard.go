package webpage

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
)

// look has the style sheet and the icon that the pages share.
//
//go:embed look
var look embed.FS

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

// Handler returns the handler of a page with the paths of mux and the files, to which it
// adds those that all pages share. It refuses requests for other hosts than g.Host, and
// requests that another site's page sends. All answers have headers that restrict the page.
// It returns an error for a file whose content type it does not know.
func (g Guard) Handler(mux *http.ServeMux, files fs.FS) (http.Handler, error) {
	if err := errors.Join(addFiles(mux, look), addFiles(mux, files)); err != nil {
		return nil, err
	}
	mux.Handle("/api/", api.Answer(func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, &api.Problem{Status: http.StatusNotFound, Message: "nothing has that path and method"}
	}))
	origin := http.NewCrossOriginProtection()
	other := refuse("a page of another site may not send requests to the " + g.Name)
	origin.SetDenyHandler(other)
	next := origin.Handler(mux)
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
	}), nil
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

// kinds maps extensions to content types, because the system's table may be wrong.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".ico":  "image/x-icon",
}

// addFiles serves each of the files by its name, and index.html as /.
func addFiles(mux *http.ServeMux, files fs.FS) error {
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		kind, known := kinds[path.Ext(name)]
		if !known {
			return fmt.Errorf("webpage: %s: its content type is unknown", name)
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		at := "/" + path.Base(name)
		if at == "/index.html" {
			at = "/{$}"
		}
		tag := fmt.Sprintf(`"%x"`, sha256.Sum256(content))
		mux.HandleFunc("GET "+at, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Cache-Control", "no-cache") // revalidate: another version of pglimit may serve another page
			w.Header().Set("ETag", tag)
			http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
		})
		return nil
	})
}
