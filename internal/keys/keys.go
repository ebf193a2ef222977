// Package keys maps a caller's key to the stored key.
package keys

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
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
