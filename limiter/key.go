package limiter

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/keys"
)

// maxKey is the longest key in bytes: a row of an index holds about 2,700.
const maxKey = 1024

// Key joins parts into one key so that different parts never give the same
// key: Key("a:b", "c") differs from Key("a", "b:c"). Parts are separated by
// colons; a colon or backslash inside a part is escaped by a backslash. One
// part without either is its own key.
func Key(parts ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`)
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escape.Replace(p)
	}
	return strings.Join(escaped, ":")
}

func validateKey(key string) error {
	switch {
	case key == "":
		return invalid("key", `""`, "is empty; use a constant such as \"all\" for a limit that everybody shares")
	case len(key) > maxKey:
		return invalid("key", quote(key), fmt.Sprintf("is longer than %d bytes; hash it first", maxKey))
	case strings.IndexByte(key, 0) >= 0:
		return invalid("key", quote(key), "holds a NUL byte")
	case !utf8.ValidString(key):
		return invalid("key", quote(key), "is not valid UTF-8; encode it first")
	}
	return nil
}

// storedKey is what reaches the store: the key, or its HMAC.
func storedKey(key string, secret []byte) string { return keys.Stored(key, secret) }
