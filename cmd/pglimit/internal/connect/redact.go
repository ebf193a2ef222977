package connect

import (
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// redacted replaces a password.
const redacted = "…"

// minSecret is the shortest password that Redact looks for: shorter ones are in most words.
const minSecret = 4

// Redact returns an error's message without the passwords of the database that was opened,
// of args and of the environment, in case a library or a server quotes one. It finds them
// as they are, percent-encoded and with Go's escapes.
func (d *Database) Redact(message string, args []string) string {
	all := []string{d.password}
	for _, name := range []string{"PGPASSWORD", "PGSSLPASSWORD"} {
		all = append(all, os.Getenv(name))
	}
	for _, text := range append(slices.Clone(args), os.Getenv(databaseEnv)) {
		all = append(all, passwordsIn(text)...)
	}
	var forms []string
	for _, secret := range all {
		if len(secret) < minSecret {
			continue
		}
		quoted, ascii := strconv.Quote(secret), strconv.QuoteToASCII(secret)
		forms = append(forms, secret, url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword("", secret).String()[1:],
			quoted[1:len(quoted)-1], ascii[1:len(ascii)-1])
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // a part of another one comes later
	for _, form := range forms {
		message = strings.ReplaceAll(message, form, redacted)
	}
	return message
}

// passwordsIn returns what may be a password in a connection string, or in a text that is
// similar to one, as written and decoded. The user of a URL is left out: it is shown anyway.
func passwordsIn(text string) (all []string) {
	user := ""
	if _, rest, ok := strings.Cut(text, ":/"); ok {
		rest = strings.TrimLeft(rest, "/")
		if end := strings.LastIndexByte(rest, '@'); end >= 0 {
			var password string
			user, password, _ = strings.Cut(rest[:end], ":")
			all = append(all, password)
		}
	}
	for rest := text; ; {
		at := strings.Index(strings.ToLower(rest), "password")
		if at < 0 {
			break
		}
		rest = rest[at+len("password"):]
		value := strings.TrimLeft(rest, spaces)
		if !strings.HasPrefix(value, "=") {
			continue
		}
		value = strings.TrimLeft(value[1:], spaces)
		raw, decoded := pairValue(value)
		all = append(all, raw, decoded)
		if end := strings.IndexAny(value, "&"+spaces); end >= 0 {
			value = value[:end]
		}
		all = append(all, value)
	}
	for _, p := range slices.Clone(all) {
		if decoded, err := url.QueryUnescape(p); err == nil {
			all = append(all, decoded)
		}
		if decoded, err := url.PathUnescape(p); err == nil {
			all = append(all, decoded)
		}
	}
	return slices.DeleteFunc(all, func(p string) bool { return p == user })
}

// spaces separate key=value pairs.
const spaces = " \t\n\r\v\f"

// pairValue returns the value at the start of text, of a key=value pair: as written, without
// quotes, and with its backslashes resolved.
func pairValue(text string) (raw, decoded string) {
	text, quoted := strings.CutPrefix(text, "'")
	var value strings.Builder
	i := 0
	for ; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			value.WriteByte(text[i])
			continue
		case quoted && c == '\'', !quoted && strings.IndexByte(spaces, c) >= 0:
			return text[:i], value.String()
		default:
			value.WriteByte(c)
		}
	}
	return text, value.String()
}
