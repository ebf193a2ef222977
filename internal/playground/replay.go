package playground

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/internal/replay"
)

// Bounds of replays.
const (
	maxUpload   = 256 << 20
	maxUnpacked = 1 << 30
	maxClients  = 1_000_000 // each takes some 800 bytes while it is replayed
	maxReports  = 8         // kept; the oldest goes first
	maxReplays  = 2         // at once
	// maxWait is how long a replay waits for one that runs: one that was given up needs
	// a moment to end.
	maxWait = 10 * time.Second
)

// reportPolicy is the Content-Security-Policy of reports: their one style, and no
// more; the page may show them in a frame.
var reportPolicy = "default-src 'none'; style-src '" + replay.StyleHash + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

// reports are what replays came to.
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

// replayed is the answer of POST /api/replay.
type replayed struct {
	URL      string `json:"url"`
	Requests int    `json:"requests"`
	BadLines int    `json:"bad_lines"`
}

func (replayed) status() int { return http.StatusCreated }

// replay tells what up to three policies would have done to the access log that is
// the body, and keeps the report.
func (s *Server) replay(w http.ResponseWriter, r *http.Request) (any, error) {
	candidates, err := readCandidates(r.URL.Query())
	if err != nil {
		return nil, err
	}
	waiting, enough := context.WithTimeout(r.Context(), s.wait)
	defer enough()
	select {
	case s.replaying <- struct{}{}:
		defer func() { <-s.replaying }()
	case <-waiting.Done():
		return nil, unavailable(fmt.Sprintf("%d replays are running already: try again when one has ended", maxReplays))
	}
	// Who sends slowly, or not at all, does not hold up the end.
	defer context.AfterFunc(r.Context(), func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now()) })()
	// Reading ends with the body, which tells more than that the context has ended.
	log, err := s.readLog(context.WithoutCancel(r.Context()), http.MaxBytesReader(w, r.Body, s.upload))
	if err != nil {
		return nil, err
	}
	log.Name = r.URL.Query().Get("name")
	report, err := replay.Run(r.Context(), log, candidates, replay.InMemory, nil)
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	if err := report.WriteHTML(&page); err != nil {
		return nil, err
	}
	return replayed{"/reports/" + s.reports.add(page.Bytes()), report.Requests, report.BadLines}, nil
}

// readCandidates reads the query's policies, and costs, which has one for each or
// is left out: 1 of all.
func readCandidates(query url.Values) ([]replay.Candidate, error) {
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(query.Get("policies")), &list); err != nil {
		return nil, badField("policies", "is not a JSON array of policies: %s", sentence(err))
	}
	var costs []float64
	if text := query.Get("costs"); text != "" {
		if err := json.Unmarshal([]byte(text), &costs); err != nil {
			return nil, badField("costs", "is not a JSON array of numbers: %s", sentence(err))
		}
	}
	if len(list) < 1 || len(list) > replay.MaxCandidates {
		return nil, badField("policies", "are %d: must be from 1 to %d", len(list), replay.MaxCandidates)
	}
	if err := checkCosts(costs, list); err != nil {
		return nil, err
	}
	candidates := make([]replay.Candidate, len(list))
	for i, text := range list {
		p, err := readPolicy(text)
		ask := p.Ask("any", costOf(costs, i))
		if err == nil {
			err = check(ask)
		}
		if err != nil {
			return nil, err
		}
		candidates[i] = replay.Candidate{Policy: p, Cost: ask.Cost}
	}
	return candidates, nil
}

// readLog reads an access log, packed or not, of a length that memory can bear.
func (s *Server) readLog(ctx context.Context, body io.Reader) (*replay.Log, error) {
	unreadable := func(err error) *problem {
		var tooLong *http.MaxBytesError
		p := &problem{status: http.StatusUnprocessableEntity, Message: "the file cannot be read: " + sentence(err)}
		switch {
		case errors.As(err, &p):
		case errors.As(err, &tooLong):
			p.status, p.Message = http.StatusRequestEntityTooLarge, fmt.Sprintf("the file is larger than %d MiB: send a part of it, or take pglimit replay", s.upload>>20)
		case errors.Is(err, errUnpacked):
			p.status, p.Message = http.StatusRequestEntityTooLarge, fmt.Sprintf("the file is larger than %d MiB when unpacked: send a part of it, or take pglimit replay", s.unpacked>>20)
		}
		return p
	}
	text, err := accesslog.Open(body)
	if err != nil {
		return nil, unreadable(err)
	}
	// An empty line first, so that what was packed twice is not unpacked twice.
	log, err := replay.Read(ctx, io.MultiReader(strings.NewReader("\n"), &bounded{text, s.unpacked}), nil)
	var other *replay.NotALogError
	if errors.As(err, &other) {
		return nil, &problem{status: http.StatusUnprocessableEntity, Message: other.Error()}
	}
	if err != nil {
		return nil, unreadable(err)
	}
	if n := log.Clients(); n > s.clients {
		return nil, &problem{status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf(
			"the file has %d clients, more than %d: send a part of it, or take pglimit replay", n, s.clients)}
	}
	return log, nil
}

var errUnpacked = errors.New("too large when unpacked")

// bounded fails when more than left is read of r.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errUnpacked
	}
	return n, err
}

// report sends a report; with ?download, as a file.
func (s *Server) report(w http.ResponseWriter, r *http.Request) {
	page, known := s.reports.get(r.PathValue("id"))
	if !known {
		answer(func(http.ResponseWriter, *http.Request) (any, error) {
			return nil, &problem{status: http.StatusNotFound, Message: fmt.Sprintf("that report is not kept any more: the last %d are; replay the log again", maxReports)}
		})(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", reportPolicy)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if r.URL.Query().Has("download") {
		h.Set("Content-Disposition", `attachment; filename="pglimit-replay.html"`)
	}
	_, _ = w.Write(page) // a client that has gone needs no answer
}
