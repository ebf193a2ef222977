package playground

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/webpagetest"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecided checks the event of each kind of decision.
func TestDecided(t *testing.T) {
	t.Parallel()
	l := limiter.NewMemory(nil)
	send := func(policy string, cost float64) (d decisionEvent) {
		t.Helper()
		request := must.OK(parseRequest([]byte(policy), "k", cost))(t)
		r := must.OK(l.Do(t.Context(), request))(t)
		_, data, _ := strings.Cut(string(encodeEvent("decision", decided(request, r))), "\ndata: ")
		webpagetest.Strict(t, data, &d)
		if now := float64(time.Now().UnixMilli()); math.Abs(d.At-now) > 60_000 {
			t.Errorf("at %v, and now is %v", d.At, now)
		}
		return d
	}
	fixed := `{"algorithm":"fixed_window","limit":3,"period":"1000h"}`
	d := send(fixed, 2)
	if d.Status != 200 || d.Outcome != "allowed" || d.Cost != 2 || d.Limit != 3 || d.Burst != 3 || d.Level != 2 || d.Remaining != 1 ||
		*d.RetryAfter != 0 || *d.ResetAfter <= 0 || *d.Delay != 0 || d.Reason != "" || d.Body != "" {
		t.Errorf("allowed: %+v", d)
	}
	d = send(fixed, 2)
	if d.Status != 429 || d.Outcome != "denied" || d.Level != 2 || *d.RetryAfter <= 3599 || d.Reason != limiter.ReasonLimit || !strings.Contains(d.Body, `"status":429`) {
		t.Errorf("denied: %+v", d)
	}
	if d = send(fixed, 4); d.Status != 413 || !strings.Contains(d.Body, `"status":413`) || d.RetryAfter != nil || d.Reason != limiter.ReasonLimit {
		t.Errorf("denied for ever: %+v", d)
	}
	if d = send(`{"algorithm":"gcra","limit":1,"period":"1000h","block_for":"1h"}`, 1); d.Status != 200 {
		t.Errorf("before the block: %+v", d)
	}
	send(`{"algorithm":"gcra","limit":1,"period":"1000h","block_for":"1h"}`, 1)
	if d = send(`{"algorithm":"gcra","limit":1,"period":"1000h","block_for":"1h"}`, 1); d.Status != 429 || d.Reason != limiter.ReasonBlocked {
		t.Errorf("blocked: %+v", d)
	}
	queue := `{"algorithm":"leaky_bucket_queue","limit":1,"period":"1000h","burst":2}`
	if d = send(queue, 1); d.Outcome != "allowed" || *d.Delay != 0 {
		t.Errorf("first in the queue: %+v", d)
	}
	if d = send(queue, 1); d.Status != 200 || d.Outcome != "delayed" || *d.Delay < 3599*1000 {
		t.Errorf("second in the queue: %+v", d)
	}
}
