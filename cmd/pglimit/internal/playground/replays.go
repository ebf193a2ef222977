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
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
)

// maxUpload is the largest upload in bytes.
const maxUpload = 256 << 20

const (
	maxUnpacked = 1 << 30 // bytes
	maxClients  = replay.DefaultClients
	maxReplays  = 2 // at once
	// maxWait is how long a replay waits for another to end. A replay whose client has
	// disconnected ends soon.
	maxWait = 10 * time.Second
)

// replayer replays logs and serves the reports. Create it with newReplayer.
type replayer struct {
	reports          *lru.Cache[string, []byte] // the last pages, by ID
	turns            chan struct{}              // one token for each running replay
	upload, unpacked int64                      // largest log in bytes: as sent, and unpacked
	clients          int                        // most clients of a log
	wait             time.Duration              // longest wait of a replay for its turn
}

// newReplayer returns a replayer.
func newReplayer() *replayer {
	reports, _ := lru.New[string, []byte](maxReports) // fails for a size below 1
	return &replayer{reports: reports, turns: make(chan struct{}, maxReplays), upload: maxUpload, unpacked: maxUnpacked, clients: maxClients, wait: maxWait}
}

// add adds the handlers of POST /api/replay and of the reports.
func (s *replayer) add(mux *http.ServeMux) {
	mux.Handle("POST /api/replay", api.Answer(s.replay))
	mux.HandleFunc("GET /reports/{id}", s.report)
}

// replayed is the answer of POST /api/replay.
type replayed struct {
	URL      string `json:"url"`
	Requests int    `json:"requests"`
	BadLines int    `json:"bad_lines"`
}

// HTTPStatus returns 201: a report was created.
func (replayed) HTTPStatus() int { return http.StatusCreated }

// replay replays the access log in the body under up to three policies, and keeps the
// report.
func (s *replayer) replay(w http.ResponseWriter, r *http.Request) (any, error) {
	candidates, err := readCandidates(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if err := s.turn(r.Context()); err != nil {
		return nil, err
	}
	defer func() { <-s.turns }()
	// A slow or stalled client must not delay the end of the server.
	defer context.AfterFunc(r.Context(), func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now()) })()
	// Read without the context: the body's error says more than the context's.
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
	id := rand.Text()
	s.reports.Add(id, page.Bytes())
	return replayed{"/reports/" + id, report.Requests, report.BadLines}, nil
}

// readCandidates parses the parameters "policies", a JSON array of up to three, and
// "costs", a JSON array with one cost for each. Default: 1 each.
func readCandidates(query url.Values) ([]replay.Candidate, error) {
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(query.Get("policies")), &list); err != nil {
		return nil, api.BadField("policies", "is not a JSON array of policies: %s", api.Sentence(err))
	}
	var costs []float64
	if text := query.Get("costs"); text != "" {
		if err := json.Unmarshal([]byte(text), &costs); err != nil {
			return nil, api.BadField("costs", "is not a JSON array of numbers: %s", api.Sentence(err))
		}
	}
	if len(list) < 1 || len(list) > replay.MaxCandidates {
		return nil, api.BadField("policies", "are %d: must be from 1 to %d", len(list), replay.MaxCandidates)
	}
	costs, err := parseCosts(costs, len(list))
	if err != nil {
		return nil, err
	}
	candidates := make([]replay.Candidate, len(list))
	for i, text := range list {
		request, err := parseRequest(text, "any", costs[i])
		if err != nil {
			return nil, err
		}
		candidates[i] = replay.Candidate{Policy: request.Policy, Cost: request.Cost}
	}
	return candidates, nil
}

// readLog reads an access log, compressed or not, within the bounds of s.
func (s *replayer) readLog(ctx context.Context, body io.Reader) (*replay.Log, error) {
	unreadable := func(err error) *api.Problem {
		var tooLong *http.MaxBytesError
		p := &api.Problem{Status: http.StatusUnprocessableEntity, Message: "the file cannot be read: " + api.Sentence(err)}
		switch {
		case errors.As(err, &p):
		case errors.As(err, &tooLong):
			unpacked := ""
			if tooLong.Limit == s.unpacked {
				unpacked = " when unpacked"
			}
			p.Status, p.Message = http.StatusRequestEntityTooLarge, fmt.Sprintf("the file is larger than %d MiB%s: send a part of it, or use pglimit replay", tooLong.Limit>>20, unpacked)
		}
		return p
	}
	text, err := accesslog.Open(body)
	if err != nil {
		return nil, unreadable(err)
	}
	// The empty line prevents unpacking a log twice that was compressed twice.
	log, err := replay.Read(ctx, new(accesslog.Parser), io.MultiReader(strings.NewReader("\n"), http.MaxBytesReader(nil, io.NopCloser(text), s.unpacked)), replay.Bounds{Clients: s.clients}, nil)
	var other *replay.NotALogError
	var large *replay.TooLargeError
	switch {
	case errors.As(err, &other):
		return nil, &api.Problem{Status: http.StatusUnprocessableEntity, Message: other.Error()}
	case errors.As(err, &large):
		return nil, &api.Problem{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf(
			"the file has more than %d %s: send a part of it, or use pglimit replay --max-%s", large.Most, large.What, large.What)}
	case err != nil:
		return nil, unreadable(err)
	}
	return log, nil
}

const maxReports = 8 // reports kept; the oldest is dropped first

// reportPolicy is the Content-Security-Policy of reports. It allows only their style,
// and lets the page show them in a frame.
var reportPolicy = "default-src 'none'; style-src '" + replay.StyleHash + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"

// report sends a report, as a file with ?download.
func (s *replayer) report(w http.ResponseWriter, r *http.Request) {
	page, known := s.reports.Peek(r.PathValue("id")) // being read keeps no report longer
	if !known {
		api.Send(w, nil, &api.Problem{Status: http.StatusNotFound, Message: fmt.Sprintf("only the last %d reports are kept: replay the log again", maxReports)})
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", reportPolicy)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if r.URL.Query().Has("download") {
		h.Set("Content-Disposition", `attachment; filename="pglimit-replay.html"`)
	}
	_, _ = w.Write(page) // fails if the client is gone
}

// turn waits for a turn.
func (s *replayer) turn(ctx context.Context) error {
	ctx, enough := context.WithTimeout(ctx, s.wait)
	defer enough()
	select {
	case s.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return api.Unavailable(fmt.Sprintf("%d replays are running already: try again when one has ended", maxReplays))
	}
}
