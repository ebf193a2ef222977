package httplimit

import (
	"net/http"
	"strings"
)

// forwarded reads the entries of a header that proxies append to, from the right,
// so that what they have appended is read the same whatever stands left of it.
type forwarded struct {
	lines []string // not begun yet
	line  string
	open  bool // line has another entry
	pairs bool // entries are those of RFC 7239
}

func newForwarded(h http.Header, name string) forwarded {
	if name == "" {
		name = "X-Forwarded-For"
	}
	name = http.CanonicalHeaderKey(name)
	return forwarded{lines: h[name], pairs: name == "Forwarded"}
}

// next is the next entry's address as it is written, and whether there was an
// entry. Empty ones count: nothing that a client can send moves the others.
func (f *forwarded) next() (entry string, ok bool) {
	if !f.open {
		if len(f.lines) == 0 {
			return "", false
		}
		f.line, f.lines = f.lines[len(f.lines)-1], f.lines[:len(f.lines)-1]
	}
	separator := strings.LastIndexByte(f.line, ',')
	if f.pairs {
		separator = lastUnquoted(f.line, ',')
	}
	entry, f.open = strings.Trim(f.line[separator+1:], " \t"), separator >= 0
	if f.open {
		f.line = f.line[:separator]
	}
	if f.pairs {
		entry = forPair(entry)
	}
	return entry, true
}

// forPair is the value of the one "for" of an entry such as for=192.0.2.60;proto=http.
// It is empty where there is none, or more than one.
func forPair(entry string) (node string) {
	for separator := len(entry); separator >= 0; {
		rest := entry[:separator]
		separator = lastUnquoted(rest, ';')
		name, value, _ := strings.Cut(rest[separator+1:], "=")
		if strings.EqualFold(strings.Trim(name, " \t"), "for") {
			if node != "" {
				return ""
			}
			node = strings.Trim(value, " \t")
		}
	}
	return node
}

// lastUnquoted is the index of the last separator that is not in a quoted string,
// or -1. It reads from the right: quotes that do not match at the left, where the
// client writes, change nothing of what is right of them.
func lastUnquoted(s string, separator byte) int {
	for i := len(s) - 1; i >= 0; i-- {
		switch s[i] {
		case separator:
			return i
		case '"': // it ends a quoted string: on to where that begins
			for i--; i >= 0 && (s[i] != '"' || i > 0 && s[i-1] == '\\'); i-- { // only escaped ones are within
			}
		}
	}
	return -1
}
