package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/policies"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestDeliver: the receiver finds the event, and a signature over ID, time and body that it can
// check by the published scheme.
func TestDeliver(t *testing.T) {
	t.Parallel()
	event := policies.Event{ID: "evt_1", Policy: "spend", Key: "acme", Mark: 0.8, Level: 8, Limit: 10, At: time.Unix(1, 0).UTC()}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		mac := hmac.New(sha256.New, key)
		at := r.Header.Get("webhook-timestamp")
		mac.Write([]byte(r.Header.Get("webhook-id") + "." + at + "." + string(body)))
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); r.Header.Get("webhook-signature") != want {
			t.Errorf("the signature is %s, not %s", r.Header.Get("webhook-signature"), want)
		}
		if s, err := strconv.ParseInt(at, 10, 64); err != nil || time.Since(time.Unix(s, 0)).Abs() > time.Minute {
			t.Errorf("the timestamp is %q", at)
		}
		var got struct {
			Type string         `json:"type"`
			Data policies.Event `json:"data"`
		}
		if err := json.Unmarshal(body, &got); err != nil || got.Type != "mark.reached" || got.Data != event || r.Method != "POST" {
			t.Errorf("%s %+v, %v", r.Method, got, err)
		}
	}))
	defer receiver.Close()
	s := must.OK(New(receiver.URL, secret))(t)
	if err := s.Deliver(t.Context(), event); err != nil || testutil.ToFloat64(s.Deliveries.WithLabelValues("delivered")) != 1 {
		t.Errorf("%v", err)
	}
}

// TestDeliverFollowsNoRedirect: a status other than 2xx is an error, and nothing is sent to where
// a redirect points.
func TestDeliverFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	for _, status := range []int{302, 307, 404, 500} {
		receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(status)
		}))
		s := must.OK(New(receiver.URL, secret))(t)
		if err := s.Deliver(t.Context(), policies.Event{ID: "e"}); err == nil || !strings.Contains(err.Error(), strconv.Itoa(status)) {
			t.Errorf("status %d: %v", status, err)
		}
		if n := testutil.ToFloat64(s.Deliveries.WithLabelValues("failed")); n != 1 {
			t.Errorf("%v deliveries failed", n)
		}
		receiver.Close()
	}
}

// TestDeliverHidesTheQuery: the error of a receiver that is away, which is logged, has no secret of
// the URL.
func TestDeliverHidesTheQuery(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.NotFoundHandler())
	s := must.OK(New(receiver.URL+"/?token=hidden", secret))(t)
	receiver.Close()
	if err := s.Deliver(t.Context(), policies.Event{ID: "e"}); err == nil || strings.Contains(err.Error(), "hidden") {
		t.Errorf("the error is %v", err)
	}
}

// TestNewRefuses: only URLs of http and https, and long secrets. Errors show no secret.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, secret string }{
		{"ftp://example.com", secret}, {"file:///etc/passwd", secret}, {"http://", secret}, {"https://u:pw@example.com", secret}, {"https://example.com/#x", secret}, {"http://[", secret},
		{"https://example.com", ""}, {"https://example.com", "short"}, {"https://example.com", "whsec_c2hvcnQ="}, {"https://example.com", "whsec_%%%%%%%%%%%%%%%%%%%%%%%%"},
	} {
		if _, err := New(c.url, c.secret); err == nil || strings.Contains(err.Error(), "pw") || c.secret != "" && strings.Contains(err.Error(), c.secret) {
			t.Errorf("%v: %v", c, err)
		}
	}
}
