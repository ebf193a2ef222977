package httplimit

import (
	"fmt"
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
	denied := func(p limiter.Policy, retry time.Duration) limiter.Result {
		return limiter.Result{Policy: p, Burst: 1, RetryAfter: retry, At: at}
	}
	fits := limiter.Result{Policy: b, Allowed: true, Burst: 1, Remaining: 1, At: at}
	for _, test := range []struct {
		c      limiter.Result
		status int
		retry  string
		want   string
	}{
		{denied(c, 12*time.Second), 429, "12", `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Try again in 12 s.",`},
		// A status that invites no retry, although others could be repeated.
		{denied(c, limiter.Never), 413, "", `{"type":"about:blank","title":"Content Too Large","status":413,` +
			`"detail":"The request costs more than the limit ever allows: do not repeat it.",`},
	} {
		w := httptest.NewRecorder()
		all := limiter.Results{PerRequest: []limiter.Result{denied(a, time.Second), fits, test.c, denied(a, time.Second), {Policy: shadow, Source: limiter.SourceSkipped}}, DeniedBy: 2}
		if !Deny(w, fmt.Errorf("here: %w", all.Err())) {
			t.Error("not answered")
		}
		want := test.want + `"violated-policies":["a","c"]}` + "\n"
		if w.Code != test.status || w.Header().Get(retryField) != test.retry || w.Body.String() != want || w.Header().Get("Content-Type") != "application/problem+json" ||
			w.Header().Get("Cache-Control") != "no-store" || w.Header().Get(limitField) == "" {
			t.Errorf("got %d %q\n%s, want\n%s", w.Code, w.Header(), w.Body, want)
		}
	}
}
