package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/accesslog"
)

// expected is what a Read must return, computed line by line.
type expected struct {
	events  []string // time and client of each request, in order of time
	clients map[string]bool
	bad     []int
	tooMany TooLargeError // the zero value: within the bounds
}

func expect(text []byte, most Bounds) (want expected) {
	type request struct {
		at     int64
		client string
	}
	var requests []request
	want.clients = map[string]bool{}
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimRight(line, "\r")
		if line == "" {
			continue
		}
		client, at, err := accesslog.Parse(line)
		if year := at.UTC().Year(); err != nil || len(client) > 1024 || !utf8.ValidString(client) || strings.Contains(client, "\x00") || year < 1970 || year > 9999 {
			want.bad = append(want.bad, i+1)
			continue
		}
		if most.Requests > 0 && len(requests) == most.Requests {
			want.tooMany = TooLargeError{"requests", most.Requests, i + 1}
			break
		}
		if want.clients[client] = true; most.Clients > 0 && len(want.clients) > most.Clients {
			want.tooMany = TooLargeError{"clients", most.Clients, i + 1}
			break
		}
		requests = append(requests, request{at.UnixMicro(), client})
	}
	sort.SliceStable(requests, func(i, j int) bool { return requests[i].at < requests[j].at })
	for _, r := range requests {
		want.events = append(want.events, fmt.Sprint(r.at, r.client))
	}
	return want
}

// FuzzRead: each line of a log that is not empty is a request or is reported with its
// number, within the bounds, and compression changes nothing.
func FuzzRead(f *testing.F) {
	line := accesslog.Example + "\n"
	other := strings.Replace(line, "192.0.2.7", "192.0.2.8", 1)
	later, address := strings.Replace(other, "10:05:03", "10:05:04", 1), `{"ts":1779012303,"remote_addr":"`
	for _, text := range []string{
		"", "\n", line, line + other, line + "bad\n\n" + line, strings.Repeat(line+other, 5), line + "\x00 - - [17/May/2026:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n",
		address + strings.Repeat("a", 2000) + `"}`, `{"ts":9e10,"remote_addr":"a"}`, "\x1f\x8b", line + line, later + other + line, line + other + later + line, "bad\r\n\r\n" + other + "bad",
		line + address + strings.Repeat("a", 1024) + "\"}\n" + address + strings.Repeat("a", 1025) + "\"}\n" + address + "\\u0000\"}\n" + address + "-\"}",
		line + `{"time":"1969-12-31T23:59:59Z","remote_addr":"a"}` + "\n" + `{"time":"9999-12-31T23:59:59-01:00","remote_addr":"a"}`, line + "\xff" + line, address + "-\"}",
	} {
		for _, most := range []uint8{0, 1, 2, 3} {
			f.Add([]byte(text), most, uint8(9))
			f.Add([]byte(text), uint8(0), most)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, clients, requests uint8) {
		if bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
			_, _ = Read(context.Background(), bytes.NewReader(text), Bounds{}, nil) // an error or a log
			return
		}
		most := Bounds{Clients: int(clients), Requests: int(requests)}
		read := func(in []byte) (*Log, []int, error) {
			var bad []int
			log, err := Read(context.Background(), bytes.NewReader(in), most, func(number int, err error) {
				if err == nil || number < 1 || len(bad) > 0 && number <= bad[len(bad)-1] {
					t.Fatalf("%q: line %d after %v: %v", text, number, bad, err)
				}
				bad = append(bad, number)
			})
			return log, bad, err
		}
		log, bad, err := read(text)
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(text); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		again, badAgain, errAgain := read(packed.Bytes())
		if len(badAgain) != len(bad) || (errAgain == nil) != (err == nil) || err != nil && err.Error() != errAgain.Error() {
			t.Errorf("%q: %d bad lines, %v; compressed %d, %v", text, len(bad), err, len(badAgain), errAgain)
		}
		_, errAlone := Read(context.Background(), bytes.NewReader(text), most, nil)
		if (errAlone == nil) != (err == nil) || err != nil && err.Error() != errAlone.Error() {
			t.Errorf("%q: %v, but %v without a function for bad lines", text, err, errAlone)
		}
		want := expect(text, most)
		var tooMany *TooLargeError
		if errors.As(err, &tooMany) != (want.tooMany.What != "") || tooMany != nil && *tooMany != want.tooMany || (err == nil) != (want.tooMany.What == "" && len(want.events) > 0) {
			t.Errorf("%q within %+v: %v, want %+v", text, most, err, want)
		}
		if !slices.Equal(bad, want.bad) {
			t.Errorf("%q: the bad lines %v, want %v", text, bad, want.bad)
		}
		if err != nil {
			return
		}
		var events []string
		for _, e := range log.events {
			events = append(events, fmt.Sprint(e.at, log.keys[e.key]))
		}
		if !slices.Equal(events, want.events) || log.Clients() != len(want.clients) {
			t.Errorf("%q: %q of %d clients, want %+v", text, events, log.Clients(), want)
		}
		full := 0
		for part := range bytes.SplitSeq(text, []byte("\n")) {
			if len(bytes.TrimRight(part, "\r")) > 0 {
				full++
			}
		}
		if log.Requests()+log.BadLines() != full || log.BadLines() != len(bad) || log.Requests() != again.Requests() || log.Clients() > log.Requests() ||
			clients > 0 && log.Clients() > int(clients) || requests > 0 && log.Requests() > int(requests) {
			t.Errorf("%q: %d requests of %d clients and %d bad lines (%v) of %d, within %+v", text, log.Requests(), log.Clients(), log.BadLines(), bad, full, most)
		}
	})
}
