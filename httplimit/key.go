package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pglimit/pglimit/limiter"
)

// A Key returns the key that a request is counted for: 1 to 1,024 bytes of UTF-8 without
// NUL. If the request has none, it returns ErrNoKey. It is called once for each request,
// must be safe for concurrent use, and must not change the request.
type Key func(*http.Request) (string, error)

// ErrNoKey is returned by a Key if the request has no key. WithNoKey sets how New handles
// it.
var ErrNoKey = errors.New("httplimit: the request has no key to be counted for")

const (
	maxValue = 256  // bytes of a header or a user's name in a key
	maxKey   = 1024 // bytes of a key: the limiter's
	hashed   = "sha256:"
)

// Header returns a Key that reads a header field, such as X-Api-Key. If the field has
// several values, the first counts. If it is missing or empty, the Key returns ErrNoKey.
// The key is "sha256:" and the SHA-256 of the value in base64 if the value
//
//   - has more than 256 bytes;
//   - is not UTF-8, or contains a NUL byte;
//   - begins with "sha256:", so that a client cannot send the hash of another value.
//
// Use a value only after it was verified, such as an API key behind the authentication
// that knows it. A client that makes values up gets a new limit, and writes a new row, with
// each of them.
//
// Keys are stored as they are: for secrets set limiter.Config.KeySecret. Host is not
// among the header fields of net/http. Header panics if name is empty.
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

// User returns a Key that is the name of the authenticated user. name reads it from where
// authentication put it, such as the request's context. It returns the same text for all
// spellings of one user's name. If name returns "", the Key returns ErrNoKey. Names are hashed
// under the same conditions as values by Header. User panics if name is nil.
func User(name func(*http.Request) string) Key {
	require(name != nil, "User: name is nil")
	return func(r *http.Request) (string, error) { return value(name(r)) }
}

// Join returns a Key that combines several keys with limiter.JoinKey, such as the tenant
// and the client's address. Above 1,024 bytes the result is hashed as by Header. If one of
// the keys returns an error, such as ErrNoKey, so does Join's. Join panics without keys,
// or if one is nil.
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

// Limits returns the limits that an HTTP request must pass, for New and Transport: policies,
// keys and costs, which are granted all or none. If it returns none, the HTTP request passes
// and nothing is counted. ErrNoKey means that the HTTP request has no key. Limits is called
// once for each HTTP request, must be safe for concurrent use, and must not change the
// HTTP request.
type Limits func(*http.Request) ([]limiter.Request, error)

// Each returns Limits of one key: it requests one unit of each policy for the HTTP
// request's key. It is for limits where all requests cost the same. It panics if key is
// nil, or without policies, because then every request would pass.
func Each(key Key, policies ...limiter.Policy) Limits {
	require(key != nil, "Each: key is nil")
	require(len(policies) > 0, "Each: no policies")
	return each(key, len(policies), func(i int) (limiter.Policy, error) { return policies[i], nil })
}

// EachNamed returns Limits as Each does, which request one unit of each named policy for the
// HTTP request's key. They read the policies at each HTTP request, so a changed
// policy applies to the next one. For a name that policies has neither in the database nor
// as a default, they return policies.ErrNoPolicy, which New answers with 500.
//
// Overrides of keys apply if the limiter has the same policies as its
// limiter.Config.Policies. EachNamed panics if key or policies is nil, or without names.
func EachNamed(key Key, policies interface {
	Get(name string) (limiter.Policy, error)
}, names ...string) Limits {
	require(key != nil, "EachNamed: key is nil")
	require(policies != nil, "EachNamed: policies is nil")
	require(len(names) > 0, "EachNamed: no names")
	names = slices.Clone(names)
	return each(key, len(names), func(i int) (limiter.Policy, error) { return policies.Get(names[i]) })
}

// each returns Limits that request one unit of each of n policies.
func each(key Key, n int, policy func(i int) (limiter.Policy, error)) Limits {
	return func(r *http.Request) ([]limiter.Request, error) {
		k, err := key(r)
		if err != nil {
			return nil, err
		}
		requests := make([]limiter.Request, n)
		for i := range requests {
			p, err := policy(i)
			if err != nil {
				return nil, err
			}
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

// bounded returns s, or its hash if s cannot be a key or looks like a hash.
func bounded(s string, most int) string {
	if storable(s, most) && !strings.HasPrefix(s, hashed) {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return hashed + base64.RawURLEncoding.EncodeToString(sum[:])
}

// storable reports whether s can be a key of at most most bytes.
func storable(s string, most int) bool {
	return len(s) <= most && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// require panics with a programming error if ok is false, as http.Handle does.
func require(ok bool, what string) {
	if !ok {
		panic("httplimit: " + what)
	}
}
