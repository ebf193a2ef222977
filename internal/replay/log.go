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

	"github.com/pglimit/pglimit/internal/accesslog"
)

// maxKey is the longest client in bytes that can be a limiter's key.
const maxKey = 1024

// Log is an access log as it is replayed: who asked, and when, in order of time.
// It is made by Read and does not change, so any number of Runs may share it.
type Log struct {
	// Name is what the page calls the log, such as a file's name. Read leaves it
	// empty; set it before Run.
	Name string

	keys   []string
	events []event
	bad    int
}

// event is one request.
type event struct {
	at  int64 // Unix microseconds
	key int32 // an index of Log.keys
}

// NotALogError is Read's error where no line is one of an access log.
type NotALogError struct {
	Lines int // how many there are, empty ones left out
}

// Error tells how many lines there were, and what one should look like.
func (e *NotALogError) Error() string {
	return fmt.Sprintf("none of its %d lines is of an access log; one looks like %s", e.Lines, accesslog.Example)
}

// Read reads a whole log in the common or the combined format, packed by gzip or
// not, and puts it in order of time; requests of one second stay in the order
// they were logged in. Empty lines are passed over. A line that cannot be read
// is counted, and bad, unless it is nil, is told its number and why.
//
// The error is a *NotALogError, ctx's, or what r or the unpacking said. It takes
// 16 bytes of memory for each request, and each client's name once: to bound
// that for packed input of strangers, unpack it by accesslog.Open and bound that.
func Read(ctx context.Context, r io.Reader, bad func(number int, err error)) (*Log, error) {
	text, err := accesslog.Open(r)
	if err != nil {
		return nil, err
	}
	log := &Log{}
	numbers := map[string]int32{}
	err = accesslog.Lines(text, func(number int, line []byte, long bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(line) == 0 {
			return nil
		}
		client, at, err := parse(line, long)
		if err != nil {
			log.bad++
			if bad != nil {
				bad(number, err)
			}
			return nil
		}
		key, known := numbers[client]
		if !known {
			client = strings.Clone(client) // not the whole line
			key = int32(len(log.keys))
			numbers[client] = key
			log.keys = append(log.keys, client)
		}
		log.events = append(log.events, event{at.UnixMicro(), key})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(log.events) == 0 {
		return nil, &NotALogError{Lines: log.bad}
	}
	slices.SortStableFunc(log.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return log, nil
}

// parse takes from a line what can be replayed.
func parse(line []byte, long bool) (client string, at time.Time, err error) {
	if long {
		return "", at, fmt.Errorf("longer than %d bytes", accesslog.MaxLine)
	}
	client, at, err = accesslog.Parse(string(line))
	switch year := at.UTC().Year(); {
	case err != nil:
	case len(client) > maxKey:
		err = fmt.Errorf("a client's address of more than %d bytes", maxKey)
	case strings.IndexByte(client, 0) >= 0 || !utf8.ValidString(client):
		err = errors.New("a client's address that is no text")
	case year < 1970 || year > 9999:
		err = fmt.Errorf("the year %d: can be from 1970 to 9999", year)
	}
	return client, at, err
}

// Requests returns how many requests the log has.
func (l *Log) Requests() int { return len(l.events) }

// Clients returns how many addresses the requests came from.
func (l *Log) Clients() int { return len(l.keys) }

// BadLines returns how many lines could not be read.
func (l *Log) BadLines() int { return l.bad }
