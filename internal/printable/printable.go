// Package printable escapes characters that a terminal obeys or does not show. Clients can
// often choose their key.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Shown returns a key for display: in quotes if it has such characters.
func Shown(key string) string {
	if strings.IndexFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return strconv.Quote(key)
	}
	return key
}

// Escape returns text with such characters as \u202e, but for line feeds and tabs. JSON and
// texts in double quotes in YAML keep their values. Characters above U+FFFF stay: JSON and
// YAML have no form of them in common.
func Escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' || r > 0xFFFF {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Shell quotes a word for a POSIX shell if needed.
func Shell(word string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !safe(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
