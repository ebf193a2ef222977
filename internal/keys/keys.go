// Package keys maps a caller's key to the stored key, and finds keys in JSON that
// encoding/json would change.
package keys

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"sync"
	"unicode/utf8"
)

// MinSecret is the length of the shortest secret in bytes. A shorter one can be guessed by
// trying, and with it the keys.
const MinSecret = 16

// Stored returns the text under which key is stored: key itself, or its HMAC if there is
// a secret.
func Stored(key string, secret []byte) string {
	if len(secret) == 0 {
		return key
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(key))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// escapes matches escaped backslashes, pairs of surrogates, and the first four bytes of half
// a pair.
var escapes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\\\\|\\ud[89ab]..\\ud[c-f]|\\ud[89a-f]`)
})

// Decodable reports whether encoding/json decodes the strings in text as they are. It would
// replace bytes that are not UTF-8 and half pairs of surrogates, and keys would become equal.
func Decodable(text []byte) bool {
	for _, found := range escapes().FindAll(text, -1) {
		if len(found) == len(`\ud8`) {
			return false
		}
	}
	return utf8.Valid(text)
}
