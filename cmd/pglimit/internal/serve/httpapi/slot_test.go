package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// TestSlot: two slots are held at once, for their ttl. A denial is an answer with Retry-After.
// Renew moves an end, and a slot that was released is a 404.
func TestSlot(t *testing.T) {
	t.Parallel()
	h := newHandler(t, nil)
	type slot struct {
		ID        *string
		Fence     *int64
		ExpiresAt *time.Time `json:"expires_at"`
		Result    struct {
			Allowed bool
			At      time.Time
			Level   float64
			Reason  string
		}
	}
	send := func(status int, route, body string) (got slot, header http.Header) {
		t.Helper()
		r, text := call(t, h, "POST", route, body)
		if r.StatusCode != status {
			t.Fatalf("%s: %d %s, want %d", route, r.StatusCode, text, status)
		}
		if status == 200 {
			must.Succeed(t, json.Unmarshal([]byte(text), &got))
		}
		return got, r.Header
	}
	first, _ := send(200, "/v1/acquire", `{"policy":"exports","key":"a"}`)
	second, _ := send(200, "/v1/acquire", `{"policy":"exports","key":"a","cost":1,"ttl":"2h"}`)
	if !first.Result.Allowed || !second.Result.Allowed || *second.Fence <= *first.Fence || first.ExpiresAt.Sub(first.Result.At) != time.Hour || second.ExpiresAt.Sub(second.Result.At) != 2*time.Hour {
		t.Errorf("got %+v and %+v", first, second)
	}
	denied, header := send(200, "/v1/acquire", `{"policy":"exports","key":"a"}`)
	if denied.Result.Allowed || denied.ID != nil || denied.Fence != nil || denied.ExpiresAt != nil || denied.Result.Reason != "limit" || header.Get("Retry-After") != "3600" {
		t.Errorf("a third slot: %+v %v", denied, header)
	}
	id := fmt.Sprintf(`{"id":%q}`, *first.ID)
	if renewed, _ := send(200, "/v1/renew", strings.Replace(id, "}", `,"ttl":"4h"}`, 1)); renewed.ExpiresAt.Sub(*first.ExpiresAt) < 3*time.Hour-time.Second {
		t.Errorf("renewed until %v", renewed.ExpiresAt)
	}
	send(204, "/v1/release", id)
	send(404, "/v1/release", id)
	send(404, "/v1/renew", id)
	if r, body := call(t, h, "GET", "/v1/usage?policy=exports&key=a", ""); !strings.Contains(body, `"level":1,`) || !strings.Contains(body, `"reservations":1,`) {
		t.Errorf("usage: %d %s", r.StatusCode, body)
	}
}
