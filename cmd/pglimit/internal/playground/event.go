package playground

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// encodeEvent returns an event in the format of server-sent events.
func encodeEvent(name string, data any) []byte {
	text, err := json.Marshal(data)
	if err != nil { // cannot happen for numbers and strings
		panic(err)
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text)
}

// millis returns a time in Unix milliseconds.
func millis(at time.Time) float64 { return float64(at.UnixMicro()) / 1000 }

// levelsEvent is the event "levels": the state of a key under each algorithm.
type levelsEvent struct {
	Levels map[limiter.Algorithm]levelEvent `json:"levels"`
}

// levelEvent is the state of a key under one algorithm. At is in Unix milliseconds.
type levelEvent struct {
	At        float64        `json:"at"`
	Level     float64        `json:"level"`
	Remaining float64        `json:"remaining"`
	Usage     *limiter.Usage `json:"usage,omitempty"` // of a balance
}

// decisionEvent is the event "decision". At is in Unix milliseconds. The other times are in
// seconds, and null for never.
type decisionEvent struct {
	Algorithm  limiter.Algorithm `json:"algorithm"`
	At         float64           `json:"at"`
	Status     int               `json:"status"`
	Outcome    string            `json:"outcome"`
	Cost       float64           `json:"cost"`
	Limit      float64           `json:"limit"`
	Burst      float64           `json:"burst"`
	Level      float64           `json:"level"`
	Remaining  float64           `json:"remaining"`
	RetryAfter *float64          `json:"retry_after_s"`
	ResetAfter *float64          `json:"reset_after_s"`
	Delay      *float64          `json:"delay_s"`
	Reason     limiter.Reason    `json:"reason"`
	Headers    [][2]string       `json:"headers"`
	Body       string            `json:"body"`
}

// decided returns the event for a request's decision.
func decided(request limiter.Request, r limiter.Result) decisionEvent {
	d := decisionEvent{
		Algorithm: request.Policy.Algorithm, At: millis(r.At), Outcome: "allowed",
		Cost: request.Cost, Limit: r.Limit, Burst: r.Burst, Level: r.Level, Remaining: r.Remaining,
		RetryAfter: seconds(r.RetryAfter), ResetAfter: seconds(r.ResetAfter), Delay: seconds(r.Delay), Reason: r.Reason,
	}
	client := &recorder{header: http.Header{}, status: http.StatusOK}
	if r.Allowed {
		if r.Delay > 0 {
			d.Outcome = "delayed"
		}
		httplimit.SetHeader(client.header, r)
		answerAllowed(client, nil)
		client.body.Reset() // the same for all allowed requests
	} else {
		d.Outcome = "denied"
		httplimit.Deny(client, r.Err())
	}
	d.Status, d.Headers, d.Body = client.status, headerLines(client.header), client.body.String()
	return d
}

// answerAllowed answers a request of /limited/ that is allowed.
func answerAllowed(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("allowed\n")) // fails if the client is gone
}

func seconds(d time.Duration) *float64 {
	if d == limiter.Never {
		return nil
	}
	s := d.Seconds()
	return &s
}

// recorder is a ResponseWriter that keeps the answer, without the fields Date and
// Content-Length, which net/http adds.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// headerLines returns a header's lines in the order in which net/http sends them.
func headerLines(h http.Header) (lines [][2]string) {
	for name, values := range h {
		for _, value := range values {
			lines = append(lines, [2]string{name, value})
		}
	}
	slices.SortStableFunc(lines, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return lines
}
