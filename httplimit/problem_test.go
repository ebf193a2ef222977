package httplimit

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestDeny(t *testing.T) {
	a := limiter.Policy{Name: "a", Algorithm: limiter.GCRA, Limit: 1, Period: time.Minute}
	b, c := a, a
	b.Name, c.Name = "b", "c"
	shadow := limiter.Policy{Name: "shadow", Algorithm: limiter.GCRA, Limit: 1, Period: time.Minute, Shadow: true}
	requests := []limiter.Request{a.Request("k", 1), b.Request("k", 1), c.Request("k", 1), a.Request("l", 1), shadow.Request("k", 1)}
	denied := func(retry time.Duration) limiter.Result { return limiter.Result{Burst: 1, RetryAfter: retry, At: at} }
	fits := limiter.Result{Allowed: true, Burst: 1, Remaining: 1, At: at}
	for _, test := range []struct {
		c      limiter.Result
		status int
		retry  string
		want   string
	}{
		{denied(12 * time.Second), 429, "12", `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Try again in 12 s.",`},
		// A status that invites no retry, although others could be repeated.
		{denied(limiter.Never), 413, "", `{"type":"about:blank","title":"Content Too Large","status":413,` +
			`"detail":"The request costs more than the limit ever allows: do not repeat it.",`},
	} {
		w := httptest.NewRecorder()
		Deny(w, requests, limiter.Results{PerRequest: []limiter.Result{denied(time.Second), fits, test.c, denied(time.Second), {Source: limiter.SourceSkipped}}, DeniedBy: 2})
		want := test.want + `"violated-policies":["a","c"]}` + "\n"
		if w.Code != test.status || w.Header().Get(retryField) != test.retry || w.Body.String() != want || w.Header().Get("Content-Type") != "application/problem+json" ||
			w.Header().Get("Cache-Control") != "no-store" || w.Header().Get(limitField) == "" {
			t.Errorf("got %d %q\n%s, want\n%s", w.Code, w.Header(), w.Body, want)
		}
	}
}
