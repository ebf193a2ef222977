// Package accesslog parses web access logs, in the common and the combined format and in
// JSON: the key and the time of each request.
package accesslog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// MaxLine is the longest valid line in bytes.
const MaxLine = 1 << 20

// timeLayout is the layout of times in the common and combined formats.
const timeLayout = "02/Jan/2006:15:04:05 -0700"

// Example is a valid line.
const Example = `192.0.2.7 - - [17/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 200 5120`

// Parse returns the client's address (or host name) and the time of a line, as the zero
// Parser does.
func Parse(line string) (client string, at time.Time, err error) { return new(Parser).Parse(line) }

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

// quoted returns the quoted field of that number, from 0, after the status.
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
	in := bufio.NewReaderSize(r, 1<<16)
	var whole []byte
	for number := 1; ; number++ {
		whole = whole[:0]
		long := false
		part, err := in.ReadSlice('\n')
		for errors.Is(err, bufio.ErrBufferFull) {
			whole, long = grow(whole, part, long)
			part, err = in.ReadSlice('\n')
		}
		line := part
		if len(whole) > 0 {
			whole, long = grow(whole, bytes.TrimRight(part, "\r\n"), long)
			line = whole
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(line) > 0 {
			for n := len(line); n > 0 && (line[n-1] == '\n' || line[n-1] == '\r'); n-- {
				line = line[:n-1]
			}
			if err := f(number, line, long); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

// grow appends part to whole, up to MaxLine.
func grow(whole, part []byte, long bool) ([]byte, bool) {
	if room := MaxLine - len(whole); len(part) > room {
		return append(whole, part[:room]...), true
	}
	return append(whole, part...), long
}
