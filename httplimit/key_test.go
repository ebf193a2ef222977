package httplimit

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// three is a limit that accepts every valid key.
var three = limiter.Policy{Name: "three", Algorithm: limiter.FixedWindow, Limit: 3, Period: time.Hour}

// TestHeader: a value is the key itself, up to 256 bytes; what cannot be a key, or looks like
// a hash, is hashed. So are parts that together look like one.
func TestHeader(t *testing.T) {
	key := Header("x-api-key")
	for _, c := range []struct {
		value string
		raw   bool
	}{
		{"abc", true}, {"Ünïcode", true}, {strings.Repeat("k", 256), true}, {"sha256", true}, {"SHA256:x", true},
		{strings.Repeat("k", 257), false}, {strings.Repeat("k", 1<<20), false},
		{"\xff\xfe", false}, {"a\x00b", false}, {"sha256:", false},
	} {
		got, err := key(from("", "X-Api-Key: "+c.value))
		if err != nil || (got == c.value) != c.raw || !c.raw && (len(got) != 50 || !strings.HasPrefix(got, "sha256:")) {
			t.Errorf("%.40q (%d bytes): got %q, %v", c.value, len(c.value), got, err)
		}
	}
	if got, err := key(from("", "X-Api-Key: first", "X-Api-Key: second")); got != "first" || err != nil {
		t.Errorf("two: got %q, %v", got, err)
	}
	if got, err := key(from("", "X-Other: x")); got != "" || !errors.Is(err, ErrNoKey) {
		t.Errorf("none: got %q, %v", got, err)
	}
	part := func(text string) Key { return func(*http.Request) (string, error) { return text, nil } }
	if got, _ := Join(part("sha256"), part("x"))(nil); got == "sha256:x" {
		t.Errorf("two parts are the hash %q", got)
	}
	if got, _ := Join(part("a:b"), part("c"))(nil); got != `a\:b:c` {
		t.Errorf("joined: got %q", got)
	}
}

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

// TestEachNamed: a changed policy applies to the next request, and an unknown name is an
// error, which New answers with 500, also with WithNoKey(Pass).
func TestEachNamed(t *testing.T) {
	a := limiter.Policy{Name: "a", Algorithm: limiter.TokenBucket, Limit: 2, Period: time.Minute}
	b := limiter.Policy{Name: "b", Algorithm: limiter.GCRA, Limit: 3, Period: time.Hour}
	live := must.OK(policies.New(a))(t)
	names := []string{"a", "b"}
	requests := EachNamed(Address{}.Key, live, names...)
	names[1] = "a"
	var log bytes.Buffer
	next := &answering{status: 200}
	if w := get(New(limiter.NewMemory(nil), requests, WithNoKey(Pass), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))(next), request()); w.Code != 500 || next.calls.Load() != 0 || !strings.Contains(log.String(), `\"b\"`) {
		t.Errorf("without b: got %d, %d calls, logged %s", w.Code, next.calls.Load(), &log)
	}
	for _, a.Limit = range []float64{2, 7} {
		must.OK(live.Apply(t.Context(), policies.Edit{Set: []policies.Stored{{Policy: a}, {Policy: b}}}))(t)
		got, err := requests(from("192.0.2.7:1"))
		if len(got) != 2 || err != nil || got[0] != a.Request("192.0.2.7", 1) || got[1] != b.Request("192.0.2.7", 1) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	for _, requests := range []Limits{Each(Header("X"), a), EachNamed(Header("X"), live, "a")} {
		if got, err := requests(from("")); got != nil || !errors.Is(err, ErrNoKey) {
			t.Errorf("without a key: got %+v, %v", got, err)
		}
	}
}

// TestPanics checks that programming errors panic at the start, not at the first request.
func TestPanics(t *testing.T) {
	key := Address{}.Key
	requests := Each(key, limiter.Policy{Name: "p"})
	l := limiter.NewMemory(nil)
	for want, f := range map[string]func(){
		"httplimit: New: the limiter is nil":           func() { New(nil, requests) },
		"httplimit: New: limits is nil":                func() { New(l, nil) },
		"httplimit: New: the next handler is nil":      func() { New(l, requests)(nil) },
		"httplimit: Transport: the limiter is nil":     func() { Transport(nil, requests, nil) },
		"httplimit: Transport: limits is nil":          func() { Transport(l, nil, nil) },
		"httplimit: Each: key is nil":                  func() { Each(nil, limiter.Policy{}) },
		"httplimit: Each: no policies":                 func() { Each(key) },
		"httplimit: EachNamed: key is nil":             func() { EachNamed(nil, &policies.Policies{}, "p") },
		"httplimit: EachNamed: policies is nil":        func() { EachNamed(key, nil, "p") },
		"httplimit: EachNamed: no names":               func() { EachNamed(key, &policies.Policies{}) },
		"httplimit: Join: no keys":                     func() { Join() },
		"httplimit: Join: a key is nil":                func() { Join(key, nil) },
		"httplimit: User: name is nil":                 func() { User(nil) },
		"httplimit: Header: the name is empty":         func() { Header("") },
		"httplimit: WithRefundIf: the function is nil": func() { WithRefundIf(nil) },
		"httplimit: WithNoKey: must be Refuse or Pass": func() { WithNoKey(2) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got %v, want %s", got, want)
				}
			}()
			f()
		}()
	}
}
