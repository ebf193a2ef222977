// Package accesslog parses web access logs, in the common and the combined format and in
// JSON: the key and the time of each request.
package accesslog

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// MaxLine is the longest valid line in bytes.
const MaxLine = 1 << 20

// timeLayout is the layout of times in the common and combined formats.
const timeLayout = "02/Jan/2006:15:04:05 -0700"

// Example is a valid line.
const Example = `192.0.2.7 - - [17/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 200 5120`

// plainLine is a line in the common or the combined log format. Both begin with: client,
// identity, user, [time], "request", status, bytes. The combined one has two quoted fields
// more.
type plainLine struct {
	client, names string // names: identity and user
	at            time.Time
	request       string // without its quotes; escapes are kept
	status, rest  string
}

// parsePlain parses a line. The error names the missing part. What follows the status is
// not checked.
func parsePlain(line string) (l plainLine, err error) {
	client, rest, ok := strings.Cut(line, " ")
	if !ok || client == "" || client == "-" {
		return l, errors.New("no client's address at its start")
	}
	l.client = client
	// The identity and the user may have any characters except [ and the line's end.
	// The time is in the first brackets.
	l.names, rest, ok = strings.Cut(rest, "[")
	if !ok {
		return l, errors.New("no [time]")
	}
	text, rest, ok := strings.Cut(rest, "]")
	if !ok {
		return l, errors.New("no ] after the time")
	}
	l.at, err = time.Parse(timeLayout, text)
	if err != nil {
		return l, fmt.Errorf("the time %.40q is not like [17/May/2026:10:05:03 +0000]", text)
	}
	rest, spaced := strings.CutPrefix(rest, " ")
	l.request, rest, ok = quoted(rest)
	status, follows := strings.CutPrefix(rest, " ")
	if !spaced || !ok || !follows {
		return l, errors.New(`no "request" after the time`)
	}
	if len(status) < 3 || !isStatus(status[:3]) || len(status) > 3 && status[3] != ' ' {
		return l, errors.New("no status after the request")
	}
	l.status, l.rest = status[:3], status[3:]
	return l, nil
}

// user returns the user's name.
func (l plainLine) user() string {
	_, user, _ := strings.Cut(l.names, " ")
	return strings.TrimSuffix(user, " ")
}

// quoted returns a quoted field after the status; 0 is the first.
func (l plainLine) quoted(number int) (text string) {
	rest, ok := l.rest, true
	for range number + 1 {
		at := strings.IndexByte(rest, '"')
		if at < 0 {
			return ""
		}
		if text, rest, ok = quoted(rest[at:]); !ok {
			return ""
		}
	}
	return text
}

// quoted returns the text of a quoted field, and what follows it. Quotes in it are escaped.
func quoted(s string) (text, rest string, ok bool) {
	s, ok = strings.CutPrefix(s, `"`)
	if !ok {
		return "", "", false
	}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i], s[i+1:], true
		}
	}
	return "", "", false
}

func isStatus(s string) bool {
	return s[0] >= '1' && s[0] <= '9' && s[1] >= '0' && s[1] <= '9' && s[2] >= '0' && s[2] <= '9'
}

// Open returns a reader of r's text. It decompresses gzip, which it detects by content.
func Open(r io.Reader) (io.Reader, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	magic, err := buffered.Peek(2)
	if err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		unpacked, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		return unpacked, nil
	}
	return buffered, nil
}

// Lines calls f with the number, from 1, and the text of each line of r, without its
// end. It stops when r ends or f returns an error. A line above MaxLine is cut to
// MaxLine; long is then true.
func Lines(r io.Reader, f func(number int, line []byte, long bool) error) error {
	in := bufio.NewReaderSize(r, MaxLine+len("\r\n"))
	for number := 1; ; number++ {
		line, more, err := in.ReadLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r")
		if number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff")) // a byte order mark
		}
		if err := f(number, line[:min(len(line), MaxLine)], more || len(line) > MaxLine); err != nil {
			return err
		}
		for more && err == nil { // the rest of a long line
			_, more, err = in.ReadLine()
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
}

// DefaultKey is the name of the field with the client's address.
const DefaultKey = "remote_addr"

// ErrNoKey is a Parser's error for a request without the field that is its key. The line
// is one of an access log. The message names the field and the reason.
var ErrNoKey = errors.New("the request has no key")

// noKey is an ErrNoKey.
type noKey string

func (e noKey) Error() string        { return string(e) }
func (e noKey) Is(target error) bool { return target == ErrNoKey }

// Parser parses the lines of one log. Its zero value takes the client's address as key. It
// does not change, and is safe for concurrent use.
type Parser struct {
	key string
}

// NewParser returns a parser that takes the named field as the key of a request: one of
// KeyNames, the name of a request header, or the path of a field in JSON, such as
// request.headers.X-Api-Key. Empty means DefaultKey. The error names what is not valid.
func NewParser(key string) (*Parser, error) {
	if strings.TrimSpace(key) != key || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' }) {
		return nil, fmt.Errorf("%q has spaces at its ends or control characters", key)
	}
	if strings.HasPrefix(key, ".") || strings.HasSuffix(key, ".") || strings.Contains(key, "..") {
		return nil, fmt.Errorf("%q has a dot without a name: write a path such as request.headers.X-Api-Key", key)
	}
	return &Parser{key: key}, nil
}

// Key returns the name of the field that is the key.
func (p *Parser) Key() string { return cmp.Or(p.key, DefaultKey) }

// field describes a field that has a name in all formats.
type field struct {
	name string
	// plain returns the field of a line in the common or combined format; nil: none.
	plain func(plainLine) string
	// paths are where a line in JSON may have the field; the first that exists counts.
	// request reads the field from a request line such as "GET / HTTP/1.1". It is nil for a
	// field that no request line has.
	paths   []string
	request func(text string) string
}

// fields has the fields with a name in all formats. The paths that begin with request. are
// Caddy's; the others are the variables of nginx, and names that are common in its logs.
var fields = []field{
	{DefaultKey, func(l plainLine) string { return l.client },
		[]string{"request.client_ip", "request.remote_ip", "request.remote_addr", "remote_addr", "client_ip", "remote_ip", "clientip", "client"}, nil},
	{"user", plainLine.user, []string{"user_id", "remote_user", "user"}, nil},
	{"method", func(l plainLine) string { return requestMethod(l.request) }, []string{"request.method", "request_method", "method"}, requestMethod},
	{"path", func(l plainLine) string { return requestPath(l.request) }, []string{"request.uri", "request_uri", "uri", "path", "url"}, requestPath},
	{"host", nil, []string{"request.host", "host", "http_host", "server_name"}, nil},
	{"status", func(l plainLine) string { return l.status }, []string{"status"}, nil},
	{"referer", func(l plainLine) string { return l.quoted(0) }, []string{"request.headers.Referer", "http_referer", "referer", "referrer"}, nil},
	{"user_agent", func(l plainLine) string { return l.quoted(1) }, []string{"request.headers.User-Agent", "http_user_agent", "user_agent", "agent"}, nil},
}

// KeyNames returns the names of the fields that a Parser finds in every format: host is in
// JSON only, referer and user_agent are not in the common format.
func KeyNames() (names []string) {
	for _, f := range fields {
		names = append(names, f.name)
	}
	return names
}

// Parse returns the key and the time of a request. A line that begins with { is JSON, as
// Caddy writes it and nginx with escape=json; any other is in the common or the combined
// format. The error is ErrNoKey if only the key is missing, else it names what is wrong.
// Key is never empty without an error; it may have any characters.
func (p *Parser) Parse(line string) (key string, at time.Time, err error) {
	known := slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.name, p.Key()) })
	if object, wrong := parseObject(line); wrong == nil {
		key, at, err = p.parseJSON(object, known)
	} else if key, at, err = p.parsePlain(line, known); err != nil && wrong != errNoObject && !errors.Is(err, ErrNoKey) {
		err = wrong
	}
	if err != nil {
		return "", time.Time{}, err
	}
	switch key {
	case "", "-":
		return "", time.Time{}, noKey("no " + p.Key())
	case "REDACTED": // Caddy's headers with credentials
		return "", time.Time{}, noKey(p.Key() + " is redacted: let the server log credentials (log_credentials in Caddy), or choose another field")
	}
	return key, at, nil
}

func (p *Parser) parsePlain(text string, known int) (key string, at time.Time, err error) {
	line, err := parsePlain(text)
	switch {
	case err != nil:
		return "", at, err
	case known < 0 || fields[known].plain == nil:
		return "", at, noKey(fmt.Sprintf("a line in the common or combined format has no %s: it has %s", p.Key(), strings.Join(plainNames(), ", ")))
	}
	return fields[known].plain(line), line.at, nil
}

func (p *Parser) parseJSON(line object, known int) (key string, at time.Time, err error) {
	if at, err = line.time(); err != nil {
		return "", at, err
	}
	if known < 0 {
		key, err = line.field(p.key)
		return key, at, err
	}
	f := fields[known]
	for _, path := range f.paths {
		if key, err = line.text(path); err == nil && key != "" && key != "-" {
			break
		}
	}
	if request, err := line.text("request"); err == nil && key == "" && f.request != nil {
		key = f.request(request)
	}
	switch f.name {
	case DefaultKey: // old versions of Caddy add the port
		if a, err := netip.ParseAddrPort(key); err == nil {
			key = a.Addr().String()
		}
	case "path":
		key, _, _ = strings.Cut(key, "?")
	}
	return key, at, nil
}

// plainNames returns the names of the fields of the common and the combined format.
func plainNames() (names []string) {
	for _, f := range fields {
		if f.plain != nil {
			names = append(names, f.name)
		}
	}
	return names
}

// requestMethod returns the method of "GET / HTTP/1.1".
func requestMethod(request string) string {
	method, _, ok := strings.Cut(request, " ")
	if !ok {
		return ""
	}
	return method
}

// requestPath returns the path of "GET /a?b=c HTTP/1.1", which may have spaces.
func requestPath(request string) string {
	_, target, ok := strings.Cut(request, " ")
	if !ok {
		return ""
	}
	if at := strings.LastIndex(target, " HTTP/"); at >= 0 {
		target = target[:at]
	}
	path, _, _ := strings.Cut(target, "?")
	return path
}
