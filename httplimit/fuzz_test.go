package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

// FuzzKey: whatever a client sends, a Key is one that the limiter accepts, and different
// values are different keys.
func FuzzKey(f *testing.F) {
	hash := sha256.Sum256([]byte("x\x00"))
	for _, pair := range [][2]string{{"a", "b"}, {"\xff", "\xfe"}, {"a\x00b", "a\x00c"}, {"sha256:", "sha256:x"}, {strings.Repeat("k", 257), strings.Repeat("k", 258)}, {"a:b", `a\:b`}, {"", "a"},
		{"x\x00", "sha256:" + base64.RawURLEncoding.EncodeToString(hash[:])}, // the second is the first one's key
		{strings.Repeat(":", 256), "a"},                                      // joined and escaped, 1,025 bytes
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		header := Header("X")
		joined := Join(header, User(func(r *http.Request) string { return r.Header.Get("X") }))
		l := limiter.NewMemory(nil)
		for _, key := range []Key{header, joined} {
			var keys [2]string
			for i, value := range []string{one, two} {
				k, err := key(&http.Request{Header: http.Header{"X": {value}}})
				if (err == ErrNoKey) != (value == "") || err != nil && err != ErrNoKey {
					t.Fatalf("%q: %q, %v", value, k, err)
				}
				if err == nil {
					if _, err := l.Allow(t.Context(), three, k); err != nil {
						t.Errorf("%q is the key %q: %v", value, k, err)
					}
				}
				keys[i] = k
			}
			if (keys[0] == keys[1]) != (one == two) {
				t.Errorf("%q and %q are the keys %q", one, two, keys)
			}
		}
	})
}
