package replays

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"

	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/site/api"
)

const maxReports = 8 // reports kept; the oldest is dropped first

// reportPolicy is the Content-Security-Policy of reports. It allows only their style,
// and lets the page show them in a frame.
var reportPolicy = "default-src 'none'; style-src '" + replay.StyleHash + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

// reports keeps the last reports. Its zero value is ready for use.
type reports struct {
	mu    sync.Mutex
	ids   []string // the oldest first
	pages map[string][]byte
}

func (r *reports) add(page []byte) (id string) {
	id = rand.Text()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ids) == maxReports {
		delete(r.pages, r.ids[0])
		r.ids = r.ids[1:]
	}
	if r.pages == nil {
		r.pages = map[string][]byte{}
	}
	r.ids = append(r.ids, id)
	r.pages[id] = page
	return id
}

func (r *reports) get(id string) (page []byte, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	page, known = r.pages[id]
	return page, known
}

// ServeHTTP sends a report, as a file with ?download.
func (r *reports) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	page, known := r.get(request.PathValue("id"))
	if !known {
		api.Send(w, nil, &api.Problem{Status: http.StatusNotFound, Message: fmt.Sprintf("only the last %d reports are kept: replay the log again", maxReports)})
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", reportPolicy)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if request.URL.Query().Has("download") {
		h.Set("Content-Disposition", `attachment; filename="pglimit-replay.html"`)
	}
	_, _ = w.Write(page) // fails if the client is gone
}
