package httplimit

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func TestHeader(t *testing.T) {
	key := Header("x-api-key")
	seen := map[string]string{}
	for _, c := range []struct {
		value string
		raw   bool
	}{
		{"abc", true}, {"Ünïcode", true}, {strings.Repeat("k", 256), true}, {"sha256", true}, {"SHA256:x", true},
		{strings.Repeat("k", 257), false}, {strings.Repeat("k", 1<<20), false},
		{"\xff\xfe", false}, {"a\x00b", false}, {"a\x00c", false}, {"sha256:", false},
		{"sha256:f1UKyCbfzgU4Pm4jqBfm51GNOmx-DMgXCJyYjc5_WAs", false},
	} {
		got, err := key(from("", "X-Api-Key: "+c.value))
		if err != nil || (got == c.value) != c.raw || !c.raw && (len(got) != 50 || !strings.HasPrefix(got, "sha256:")) {
			t.Errorf("%.40q (%d bytes): got %q, %v", c.value, len(c.value), got, err)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%.40q and %.40q are both %q", c.value, other, got)
		}
		seen[got] = c.value
	}
	// The hash of a value, sent as a value, is a different key.
	long, _ := key(from("", "X-Api-Key: "+strings.Repeat("k", 257)))
	if forged, _ := key(from("", "X-Api-Key: "+long)); forged == long {
		t.Errorf("a sent hash has the key of the hashed value: %q", forged)
	}
	if got, err := key(from("", "X-Api-Key: first", "X-Api-Key: second")); got != "first" || err != nil {
		t.Errorf("two: got %q, %v", got, err)
	}
	for _, r := range []*http.Request{from(""), from("", "X-Api-Key: "), from("", "X-Other: x")} {
		if got, err := key(r); got != "" || !errors.Is(err, ErrNoKey) {
			t.Errorf("%q: got %q, %v", r.Header, got, err)
		}
	}
}

func TestUserAndJoin(t *testing.T) {
	user := User(func(r *http.Request) string { return r.Header.Get("User") })
	none := func(*http.Request) (string, error) { return "", ErrNoKey }
	wide := func(n int) Key {
		return func(*http.Request) (string, error) { return strings.Repeat(":", n), nil }
	}
	r := from("192.0.2.7:1", "User: a:b")
	for _, c := range []struct {
		key  Key
		want string
	}{
		{user, "a:b"},
		{Join(user), `a\:b`},
		{Join(user, Address{}.Key), `a\:b:192.0.2.7`},
		{Join(wide(512)), strings.Repeat(`\:`, 512)},
		{Join(wide(513)), "sha256:-dw5e2Ba6Y4FivllxCcc5o2g9q1A-Ac3_mlc-kv1B3o"},
	} {
		got, err := c.key(r)
		if got != c.want || err != nil {
			t.Errorf("got %.80q, %v, want %.80q", got, err, c.want)
		}
		if _, err := limiter.NewMemory(nil).Allow(t.Context(), limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}, got); err != nil {
			t.Error(err)
		}
	}
	for _, key := range []Key{User(func(*http.Request) string { return "" }), Join(user, none)} {
		if got, err := key(r); got != "" || !errors.Is(err, ErrNoKey) {
			t.Errorf("got %q, %v", got, err)
		}
	}
	// Two parts cannot make a hash either.
	parts := Join(func(*http.Request) (string, error) { return "sha256", nil }, func(*http.Request) (string, error) { return "x", nil })
	if got, _ := parts(r); got == "sha256:x" {
		t.Errorf("got %q", got)
	}
}

func TestEach(t *testing.T) {
	a, b := limiter.Policy{Name: "a"}, limiter.Policy{Name: "b"}
	requests, err := Each(Address{}.Key, a, b)(from("192.0.2.7:1"))
	if len(requests) != 2 || err != nil || requests[0] != a.Request("192.0.2.7", 1) || requests[1] != b.Request("192.0.2.7", 1) {
		t.Errorf("got %+v, %v", requests, err)
	}
	if requests, err := Each(Header("X"), a)(from("")); requests != nil || !errors.Is(err, ErrNoKey) {
		t.Errorf("got %+v, %v", requests, err)
	}
}

// TestEachNamed: a changed policy applies to the next request, and an unknown name is an error.
func TestEachNamed(t *testing.T) {
	a := limiter.Policy{Name: "a", Algorithm: limiter.TokenBucket, Limit: 2, Period: time.Minute}
	policies, err := limiter.NewPolicies(a)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"a", "b"}
	requests := EachNamed(Address{}.Key, policies, names...)
	names[1] = "a"
	client := from("192.0.2.7:1")
	if got, err := requests(client); got != nil || !errors.Is(err, limiter.ErrNoPolicy) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("without b: got %+v, %v", got, err)
	}
	b := limiter.Policy{Name: "b", Algorithm: limiter.GCRA, Limit: 3, Period: time.Hour}
	if err := policies.Default(b); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		got, err := requests(client)
		if len(got) != 2 || err != nil || got[0] != a.Request("192.0.2.7", 1) || got[1] != b.Request("192.0.2.7", 1) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	check()
	a.Limit = 7
	if _, err := policies.Apply(t.Context(), limiter.PolicyEdit{Set: []limiter.StoredPolicy{{Policy: a}}}); err != nil {
		t.Fatal(err)
	}
	check()
	if got, err := EachNamed(Header("X"), policies, "a")(from("")); got != nil || !errors.Is(err, ErrNoKey) {
		t.Errorf("without a key: got %+v, %v", got, err)
	}
}

// TestEachNamedUnknown: New answers an unknown name with 500, also with WithNoKey(Pass).
func TestEachNamedUnknown(t *testing.T) {
	policies, err := limiter.NewPolicies()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	next := &answering{status: 200}
	h := New(limiter.NewMemory(nil), EachNamed(Address{}.Key, policies, "gone"), WithNoKey(Pass), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))(next)
	if w := get(h, request()); w.Code != 500 || next.calls.Load() != 0 || !strings.Contains(log.String(), "gone") {
		t.Errorf("got %d, %d calls, logged %s", w.Code, next.calls.Load(), &log)
	}
}

// TestPanics checks that programming errors panic at the start, not at the first request.
func TestPanics(t *testing.T) {
	key := Address{}.Key
	requests := Each(key, limiter.Policy{Name: "p"})
	l := limiter.NewMemory(nil)
	for want, f := range map[string]func(){
		"httplimit: New: the limiter is nil":           func() { New(nil, requests) },
		"httplimit: New: requests is nil":              func() { New(l, nil) },
		"httplimit: New: the next handler is nil":      func() { New(l, requests)(nil) },
		"httplimit: Transport: the limiter is nil":     func() { Transport(nil, requests, nil) },
		"httplimit: Transport: requests is nil":        func() { Transport(l, nil, nil) },
		"httplimit: Each: key is nil":                  func() { Each(nil, limiter.Policy{}) },
		"httplimit: Each: no policies":                 func() { Each(key) },
		"httplimit: EachNamed: key is nil":             func() { EachNamed(nil, &limiter.Policies{}, "p") },
		"httplimit: EachNamed: policies is nil":        func() { EachNamed(key, nil, "p") },
		"httplimit: EachNamed: no names":               func() { EachNamed(key, &limiter.Policies{}) },
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
