package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
)

// maxKey is the longest key of a limiter in bytes.
const maxKey = 1024

// Log has the requests of an access log in order of time. Read creates it, and it does
// not change, so any number of Runs may share it.
type Log struct {
	// Name is the log's name on the page, such as a file's name. Read leaves it empty.
	// Set it before Run.
	Name string

	field  string // that is the key; empty: accesslog.DefaultKey
	keys   []string
	events []event
	bad    int
	cut    outside
}

// outside has the requests that Read left out because of their times.
type outside struct {
	requests    int
	first, last int64
}

func (o *outside) add(at int64) {
	if o.requests == 0 {
		o.first, o.last = at, at
	}
	o.requests, o.first, o.last = o.requests+1, min(o.first, at), max(o.last, at)
}

// event is one request.
type event struct {
	at  int64 // Unix microseconds
	key int32 // an index of Log.keys
}

// Bounds limit what Read stores. A field that is not positive has its default.
type Bounds struct {
	Clients  int // default: DefaultClients
	Requests int // default: DefaultRequests

	// Read leaves out the requests before Since, and those from Until on. Default: none.
	Since, Until time.Time
}

// has reports whether the bounds include a time.
func (b Bounds) has(at time.Time) bool {
	return !at.Before(b.Since) && (b.Until.IsZero() || at.Before(b.Until))
}

// Defaults of Bounds. A client takes about 500 bytes and its name twice, the limiter's row
// included, and a request up to 36 bytes while the list of requests grows.
const (
	DefaultClients  = 1_000_000
	DefaultRequests = 50_000_000
)

// TooLargeError is Read's error if the log has more than its Bounds.
type TooLargeError struct {
	What string // "clients" or "requests"
	Most int
	Line int // the first line too many
}

// Error returns the bound and the line.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("line %d: more than %d %s", e.Line, e.Most, e.What)
}

// NoKeyError is Read's error if no request has the field that is the key.
type NoKeyError struct {
	Key    string // the field's name
	Lines  int    // number of requests
	Reason error  // of the first one
}

// Error returns the field, the number of requests and the first reason.
func (e *NoKeyError) Error() string {
	return fmt.Sprintf("none of its %d requests has the field %s: the first: %v", e.Lines, e.Key, e.Reason)
}

// Unwrap returns the reason.
func (e *NoKeyError) Unwrap() error { return e.Reason }

// NotALogError is Read's error if no line is a line of an access log.
type NotALogError struct{ Lines int } // number of lines that are not empty

// Error returns the number of lines, and an example of a valid one.
func (e *NotALogError) Error() string {
	return fmt.Sprintf("none of its %d lines is from an access log; a valid line: %s (JSON of Caddy and nginx is valid too)", e.Lines, accesslog.Example)
}

// OutsideError is Read's error if all requests were made before Bounds.Since, or from
// Bounds.Until on.
type OutsideError struct {
	Requests    int
	First, Last time.Time // in UTC
}

// Error returns the number of requests, and their times.
func (e *OutsideError) Error() string {
	return fmt.Sprintf("none of its %d requests is in the time to replay: they are from %s to %s UTC", e.Requests, e.First.Format(time.DateTime), e.Last.Format(time.DateTime))
}

// Read reads a whole log, whose lines parser parses, optionally compressed with gzip, and
// sorts it by time. Requests of the same second stay in the log's order.
// Empty lines are skipped. Lines that cannot be read are counted; if bad is not nil, Read
// calls it with the number and the error of each.
//
// The error is a *NotALogError, a *NoKeyError, an *OutsideError, a *TooLargeError, ctx's, r's or the
// decompression's. Read stops at the bounds, so that its memory is bounded for any input.
func Read(ctx context.Context, parser *accesslog.Parser, r io.Reader, most Bounds, bad func(number int, err error)) (*Log, error) {
	if most.Clients <= 0 {
		most.Clients = DefaultClients
	}
	if most.Requests <= 0 {
		most.Requests = DefaultRequests
	}
	text, err := accesslog.Open(r)
	if err != nil {
		return nil, err
	}
	log := &Log{field: parser.Key()}
	numbers := map[string]int32{}
	keyless := NoKeyError{Key: parser.Key()}
	err = accesslog.Lines(text, func(number int, line []byte, long bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		client, at, err := parse(parser, line, long)
		if err != nil {
			log.bad++
			if errors.Is(err, accesslog.ErrNoKey) {
				if keyless.Lines++; keyless.Lines == 1 {
					keyless.Reason = err
				}
			}
			if bad != nil {
				bad(number, err)
			}
			return nil
		}
		if !most.has(at) {
			log.cut.add(at.UnixMicro())
			return nil
		}
		key, known := numbers[client]
		switch {
		case len(log.events) >= most.Requests:
			return &TooLargeError{"requests", most.Requests, number}
		case !known && len(log.keys) >= most.Clients:
			return &TooLargeError{"clients", most.Clients, number}
		case !known:
			client = strings.Clone(client) // do not retain the whole line
			key = int32(len(log.keys))
			numbers[client] = key
			log.keys = append(log.keys, client)
		}
		log.events = append(log.events, event{at.UnixMicro(), key})
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(log.events) == 0 && log.cut.requests > 0:
		return nil, &OutsideError{log.cut.requests, utc(log.cut.first), utc(log.cut.last)}
	case len(log.events) == 0 && keyless.Lines > 0:
		return nil, &keyless
	case len(log.events) == 0:
		return nil, &NotALogError{Lines: log.bad}
	}
	slices.SortStableFunc(log.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return log, nil
}

// parse returns the key and the time of a line, if the request can be replayed.
func parse(parser *accesslog.Parser, line []byte, long bool) (key string, at time.Time, err error) {
	if long {
		return "", at, fmt.Errorf("longer than %d bytes", accesslog.MaxLine)
	}
	key, at, err = parser.Parse(string(line))
	switch year := at.UTC().Year(); {
	case err != nil:
	case len(key) > maxKey:
		err = fmt.Errorf("a %s of more than %d bytes", parser.Key(), maxKey)
	case strings.IndexByte(key, 0) >= 0 || !utf8.ValidString(key):
		err = fmt.Errorf("a %s that is not text", parser.Key())
	case year < 1970 || year > 9999:
		err = fmt.Errorf("the year %d: can be from 1970 to 9999", year)
	}
	return key, at, err
}

// Requests returns the number of requests.
func (l *Log) Requests() int { return len(l.events) }
