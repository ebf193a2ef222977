package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/pglimit/pglimit/limiter"
)

// Key tells whom a request is counted for: 1 to 1,024 bytes of UTF-8 without NUL,
// or ErrNoKey where a request has nobody. It is called once for each request, from
// many goroutines, and changes nothing of the request.
type Key func(*http.Request) (string, error)

// ErrNoKey: the request has no key. NoKey says what becomes of it.
var ErrNoKey = errors.New("httplimit: the request has no key to be counted for")

const (
	maxValue = 256  // bytes of a header or a user's name in a key
	maxKey   = 1024 // bytes of a key: the limiter's
	hashed   = "sha256:"
)

// Header is the Key that is the value of a header field, such as X-Api-Key: the
// first, where there are several. A missing or empty one is ErrNoKey. A value above
// 256 bytes, or that is not UTF-8 or holds a NUL byte, is replaced by
// "sha256:" and its SHA-256 in base64; so is one that begins with "sha256:", so
// that nobody can send the hash of another's value instead of it. Host is not among
// the header fields of net/http. It panics if name is empty.
//
// Keys are stored as they are: for secrets set limiter.Config.KeySecret.
func Header(name string) Key {
	require(name != "", "Header: the name is empty")
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) {
		if values := r.Header[name]; len(values) > 0 {
			return value(values[0])
		}
		return "", ErrNoKey
	}
}

// User is the Key that is the name of the authenticated user, which name takes from
// the request, or from its context where authentication has left it. An empty name
// is ErrNoKey; what Header says of long ones and such holds here too. It panics if
// name is nil.
func User(name func(*http.Request) string) Key {
	require(name != nil, "User: name is nil")
	return func(r *http.Request) (string, error) { return value(name(r)) }
}

// Join is the Key of several together, such as the tenant and the client's
// address: limiter.Key of theirs, hashed as by Header where that is above 1,024
// bytes. If one of them has no key there is none. It panics without keys and if one
// is nil.
func Join(keys ...Key) Key {
	require(len(keys) > 0, "Join: no keys")
	for _, key := range keys {
		require(key != nil, "Join: a key is nil")
	}
	return func(r *http.Request) (string, error) {
		parts := make([]string, len(keys))
		for i, key := range keys {
			var err error
			if parts[i], err = key(r); err != nil {
				return "", err
			}
		}
		return bounded(limiter.JoinKey(parts...), maxKey), nil
	}
}

// Each asks for one unit of each policy for the request's key: what New takes
// where all requests cost the same. It panics without policies, which would let
// everything pass, and if key is nil.
func Each(key Key, policies ...limiter.Policy) func(*http.Request) ([]limiter.Request, error) {
	require(key != nil, "Each: key is nil")
	require(len(policies) > 0, "Each: no policies")
	return func(r *http.Request) ([]limiter.Request, error) {
		k, err := key(r)
		if err != nil {
			return nil, err
		}
		requests := make([]limiter.Request, len(policies))
		for i, p := range policies {
			requests[i] = p.Request(k, 1)
		}
		return requests, nil
	}
}

func value(v string) (string, error) {
	if v == "" {
		return "", ErrNoKey
	}
	return bounded(v, maxValue), nil
}

// bounded is s, or its hash where it cannot be a key or could pass for a hash.
func bounded(s string, most int) string {
	if len(s) <= most && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 && !strings.HasPrefix(s, hashed) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return hashed + base64.RawURLEncoding.EncodeToString(sum[:])
}

// require panics about what no program can mean, as http.Handle does.
func require(ok bool, what string) {
	if !ok {
		panic("httplimit: " + what)
	}
}
