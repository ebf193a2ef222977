package playground

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// decision is the event of that name. Times are in seconds, null for never; At is
// in Unix milliseconds.
type decision struct {
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

func decided(ask limiter.Ask, r limiter.Result) decision {
	d := decision{
		Algorithm: ask.Policy.Algorithm, At: millis(r.At), Outcome: "allowed",
		Cost: ask.Cost, Limit: r.Limit, Burst: r.Burst, Level: r.Level, Remaining: r.Remaining,
		RetryAfter: seconds(r.RetryAfter), ResetAfter: seconds(r.ResetAfter), Delay: seconds(r.Delay), Reason: r.Reason,
	}
	asks, all := []limiter.Ask{ask}, limiter.Results{Allowed: r.Allowed, Binding: -1, Each: []limiter.Result{r}}
	client := &recorder{header: http.Header{}, status: http.StatusOK}
	if r.Allowed {
		if r.Delay > 0 {
			d.Outcome = "delayed"
		}
		httplimit.SetHeader(client.header, asks, all)
		allowed(client, nil)
		client.body.Reset() // it says nothing
	} else {
		d.Outcome, all.Binding = "denied", 0
		httplimit.Deny(client, asks, all)
	}
	d.Status, d.Headers, d.Body = client.status, client.lines(), client.body.String()
	return d
}

func seconds(d time.Duration) *float64 {
	if d == limiter.Never {
		return nil
	}
	s := d.Seconds()
	return &s
}

// recorder is a ResponseWriter that keeps what a client would see, but for what
// net/http adds: Date and Content-Length.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// lines are the header's, in the order that net/http sends them in.
func (r *recorder) lines() (lines [][2]string) {
	for name, values := range r.header {
		for _, value := range values {
			lines = append(lines, [2]string{name, value})
		}
	}
	slices.SortStableFunc(lines, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return lines
}
