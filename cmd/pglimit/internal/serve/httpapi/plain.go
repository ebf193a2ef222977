package httpapi

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// plain reads the usual body of a request without reflection: each field at most once, texts
// without escapes, and a whole cost. ok is false for any other body, valid or not, and in is then
// empty.
func plain(text string) (in request, ok bool) {
	c := cursor{text: text}
	seen := 0 // fields
	for c.token('{'); !c.failed; {
		into, field := (*string)(nil), 0
		name := c.quoted()
		c.token(':')
		switch name {
		case "policy":
			into, field = &in.Policy, 1
		case "key":
			into, field = &in.Key, 2
		case "idempotency_key":
			into, field = &in.IdempotencyKey, 4
		case "cost":
			field = 8
			cost := c.whole()
			in.Cost = &cost
		default:
			c.failed = true
		}
		if into != nil {
			*into = c.quoted()
		}
		c.failed = c.failed || seen&field != 0
		seen |= field
		if c.space(); strings.HasPrefix(c.text, "}") {
			c.token('}')
			c.space()
			if ok = !c.failed && c.text == ""; ok {
				return in, true
			}
			break
		}
		c.token(',')
	}
	return request{}, false
}

// cursor is at a place in a text of JSON. It has failed where the text is not what was wanted.
type cursor struct {
	text   string
	failed bool
}

func (c *cursor) space() { c.text = strings.TrimLeft(c.text, " \t\r\n") }

// token steps over a byte and the space before it.
func (c *cursor) token(b byte) {
	if c.space(); c.text == "" || c.text[0] != b {
		c.failed, c.text = true, ""
		return
	}
	c.text = c.text[1:]
}

// quoted returns a text without escapes.
func (c *cursor) quoted() string {
	c.token('"')
	end := strings.IndexByte(c.text, '"')
	if end < 0 {
		c.failed = true
		return ""
	}
	text := c.text[:end]
	for i := range len(text) {
		c.failed = c.failed || text[i] < ' ' || text[i] == '\\'
	}
	c.failed = c.failed || !utf8.ValidString(text)
	c.text = c.text[end+1:]
	return text
}

// whole returns a whole number that a float64 has exactly.
func (c *cursor) whole() float64 {
	const digits = 15
	c.space()
	n := len(c.text) - len(strings.TrimLeft(c.text, "0123456789"))
	c.failed = c.failed || n == 0 || n > digits || n > 1 && c.text[0] == '0'
	v, _ := strconv.ParseFloat(c.text[:n], 64) // digits
	c.text = c.text[n:]
	return v
}
