package store_test

import (
	"encoding/base64"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

var idForm = regexp.MustCompile(`^(leaky_bucket|token_bucket|gcra|fixed_window|sliding_window_log|sliding_window_counter):[0-9A-Za-z]{16,32}:[^:]*:[0-9A-Za-z_-]*$`)

// FuzzParseReservationID: an ID gives the parts that it was made of, and no other text does.
func FuzzParseReservationID(f *testing.F) {
	for _, key := range []string{"k", "", ":", "a:b", "ä", "\xff", "k\n", "???>>>", strings.Repeat("k", 1024)} {
		f.Add("p", key, "token_bucket:0123456789abcdef:p:aw")
	}
	for _, text := range []string{
		"", ":::", "token_bucket:0123456789abcdef:p:aw=", "token_bucket:0123456789abcdef:p:ax", "token_bucket:0123456789abcdef:p:aw:", "token_bucket:0123456789abcdef:p:a\nw", "token_bucket:0123456789abcdef:p:a",
		"token_bucket:0123456789abcdef:p:+/", "token_bucket:0123456789abcdef:p:_-8", "token_bucket:0123456789abcdef:p:", "token_bucket:0123456789abcde:p:aw", "TOKEN_BUCKET:0123456789abcdef:p:aw",
		"token_bucket:0123456789abcdef0123456789abcdef0:p:aw", "token_bucket:0123456789abcde-:p:aw", "token_bucket:0123456789'bcdef:p:aw", "leaky_bucket_queue:0123456789abcdef:p:aw", "uncounted:0123456789abcdef:p:aw",
	} {
		f.Add("tokens.a_b-c", "k", text)
	}
	f.Fuzz(func(t *testing.T, policy, key, text string) {
		if !strings.Contains(policy, ":") {
			for _, random := range []string{"0123456789abcdef", "0123456789abcdefXYZ", "0123456789abcdef0123456789ABCDEF"} {
				want := store.ReservationID{Algorithm: algorithm.SlidingWindowLog, Policy: policy, Key: key, ID: random}
				if got, ok := store.ParseReservationID(want.Public()); !ok || got != want {
					t.Errorf("%q is read as %+v, %v", want.Public(), got, ok)
				}
			}
		}
		if id, ok := store.ParseReservationID(text); ok && (id.Public() != text || !idForm.MatchString(text)) {
			t.Errorf("%q is read as %q", text, id.Public())
		}
	})
}

func TestReservationIDs(t *testing.T) {
	const random = "0123456789ABCDEFGHIJKLMNOP"
	id := store.ReservationID{Algorithm: algorithm.TokenBucket, Policy: "tokens", Key: "acme/7", ID: random}
	if got := id.Public(); got != "token_bucket:"+random+":tokens:YWNtZS83" {
		t.Error(got)
	}
	for _, text := range []string{
		"token_bucket", "token_bucket:" + random, "token_bucket:" + random + ":tokens", ":" + random + ":tokens:YQ", "leaky_bucket_queue:" + random + ":tokens:YQ",
		"token_bucket:" + random[:15] + ":tokens:YQ", "token_bucket:" + strings.Repeat("a", 33) + ":tokens:YQ", "token_bucket:" + random[:20] + "-_=:tokens:YQ",
		"token_bucket:" + random + ":tokens:YQ==", "token_bucket:" + random + ":tokens:YR", "token_bucket:" + random + ":tokens:YQ\n", "token_bucket:" + random + ":tokens:Y\rQ",
		"token_bucket:" + random + ":tokens:Y", "token_bucket:" + random + ":tokens:+/+/", "token_bucket:" + random + ":tokens:YQ:", " token_bucket:" + random + ":tokens:YQ",
	} {
		if id, ok := store.ParseReservationID(text); ok {
			t.Errorf("%q is read as %+v", text, id)
		}
	}

	// The longest of the SQL functions, whose random text is the longer one.
	id = store.ReservationID{Algorithm: algorithm.SlidingWindowCounter, Policy: strings.Repeat("p", 64), Key: strings.Repeat("\xf0\x9f\x98\x80", 256), ID: strings.Repeat("a", 32)}
	text := id.Public()
	if len(text) != 1487 {
		t.Errorf("%d characters", len(text))
	}
	if got, ok := store.ParseReservationID(text); !ok || got != id {
		t.Errorf("%q is read as %+v, %v", text, got, ok)
	}
	if url.PathEscape(text) != text {
		t.Errorf("%q has to be escaped in a URL", text)
	}
	id.Key = base64.RawURLEncoding.EncodeToString(make([]byte, 32)) // of a Config.KeySecret
	if n := len(id.Public()); n != 179 {
		t.Errorf("%d characters with a key secret", n)
	}
}
