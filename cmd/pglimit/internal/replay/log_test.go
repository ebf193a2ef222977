package replay

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/internal/must"
)

// line returns a line of an access log.
func line(client, at string) string {
	return fmt.Sprintf("%s - - [%s] \"GET / HTTP/1.1\" 200 1\n", client, at)
}

func read(t *testing.T, text string) *Log {
	t.Helper()
	log := must.OK(Read(t.Context(), new(accesslog.Parser), strings.NewReader(text), Bounds{}, nil))(t)
	return log
}

// order returns the clients in the order of their requests.
func order(log *Log) string {
	var s []string
	for _, e := range log.events {
		s = append(s, log.keys[e.key])
	}
	return strings.Join(s, " ")
}

// TestReadOrders: requests are sorted by time, in any time zone. Requests of one second
// stay in order.
func TestReadOrders(t *testing.T) {
	log := read(t, line("e", "17/May/2026:12:00:09 +0200")+
		line("a", "17/May/2026:10:00:00 +0000")+line("b", "17/May/2026:12:00:00 +0200")+line("c", "17/May/2026:04:30:00 -0530")+
		line("first", "17/May/2026:11:59:59 +0200")+line("a", "17/May/2026:10:00:00 +0000")+line("d", "17/May/2026:10:00:08 +0000"))
	if got := order(log); got != "first a b c a d e" || log.Requests() != 7 || log.bad != 0 {
		t.Errorf("got %q, %d requests, %d bad lines", got, log.Requests(), log.bad)
	}
	var text strings.Builder
	var want [3]string // by the second
	for i := range 300 {
		client, second := fmt.Sprintf("k%d ", i), i*i%7%3
		text.WriteString(line(strings.TrimSpace(client), fmt.Sprintf("17/May/2026:10:00:%02d +0000", second)))
		want[second] += client
	}
	if got := order(read(t, text.String())) + " "; got != want[0]+want[1]+want[2] {
		t.Errorf("the requests of one second are %s", got)
	}
	report := run(t, log, bucket(1))
	if got := report.First.String() + " " + report.Last.String(); got != "2026-05-17 09:59:59 +0000 UTC 2026-05-17 10:00:09 +0000 UTC" {
		t.Error("got", got)
	}
}

func TestReadPacked(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	must.OK(io.WriteString(w, line("a", "17/May/2026:10:00:00 +0000")))(t)
	must.Succeed(t, w.Close())
	if got := order(read(t, packed.String())); got != "a" {
		t.Errorf("got %q", got)
	}
	cut := packed.Bytes()[:packed.Len()-9]
	if _, err := Read(t.Context(), new(accesslog.Parser), bytes.NewReader(cut), Bounds{}, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut off: %v", err)
	}
}

// TestReadBadLines: Read reports the number and the error of each bad line, and continues.
// A line with an invalid key or year is bad too, not an error later.
func TestReadBadLines(t *testing.T) {
	good := line("a", "17/May/2026:10:00:00 +0000")
	bad := []struct{ line, want string }{
		{"rubbish\n", "client"},
		{line(strings.Repeat("x", 1025), "17/May/2026:10:00:00 +0000"), "1024 bytes"},
		{line("a\xff", "17/May/2026:10:00:00 +0000"), "not text"},
		{line("a\x00", "17/May/2026:10:00:00 +0000"), "not text"},
		{`{"ts":1779012303,"remote_addr":"\ud800"}` + "\n", "not text"},
		{`{"ts":1779012303,"remote_addr":"` + "\xff\"}\n", "not text"},
		{line("a", "31/Dec/1969:23:59:59 +0000"), "the year 1969"},
		{line("a", "01/Jan/1970:00:59:59 +0100"), "the year 1969"},
		{line("a", "31/Dec/9999:23:59:59 -0100"), "the year 10000"},
		{strings.Repeat("y", accesslog.MaxLine+1) + "\n", "longer than"},
	}
	text := good + "\n"
	for _, b := range bad {
		text += b.line
	}
	var reported []string
	log, err := Read(t.Context(), new(accesslog.Parser), strings.NewReader(text+good), Bounds{}, func(number int, err error) {
		reported = append(reported, fmt.Sprintf("%d %v", number, err))
	})
	if err != nil || log.Requests() != 2 || log.bad != len(bad) || len(reported) != len(bad) {
		t.Fatalf("%v, %q", err, reported)
	}
	for i, b := range bad {
		if !strings.HasPrefix(reported[i], fmt.Sprintf("%d ", i+3)) || !strings.Contains(reported[i], b.want) {
			t.Errorf("%.60q: reported %q, want line %d and %q", b.line, reported[i], i+3, b.want)
		}
	}
	run(t, read(t, line(strings.Repeat("x", 1024), "01/Jan/1970:00:00:00 +0000")+line("b", "31/Dec/9999:23:59:59 +0000")), bucket(1))
}

func TestReadNoLog(t *testing.T) {
	for text, lines := range map[string]int{"": 0, "\n\n": 0, "\x89PNG\r\n\x1a\n\x00\x00": 3, "no\n\nlog\n": 2} {
		_, err := Read(t.Context(), new(accesslog.Parser), strings.NewReader(text), Bounds{}, nil)
		var not *NotALogError
		if !errors.As(err, &not) || not.Lines != lines || !strings.Contains(err.Error(), accesslog.Example) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestReadErrors(t *testing.T) {
	good := line("a", "17/May/2026:10:00:00 +0000")
	broken := errors.New("the disk is gone")
	if _, err := Read(t.Context(), new(accesslog.Parser), io.MultiReader(strings.NewReader(good), iotest.ErrReader(broken)), Bounds{}, nil); !errors.Is(err, broken) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, new(accesslog.Parser), strings.NewReader(good), Bounds{}, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestReadBounds: Read stops at the first line above a bound, and names it.
func TestReadBounds(t *testing.T) {
	const at = "17/May/2026:10:00:00 +0000"
	text := line("a", at) + line("b", at) + line("a", at) + "rubbish\n" + line("c", at)
	for _, c := range []struct {
		most Bounds
		want TooLargeError
	}{
		{Bounds{Clients: 2}, TooLargeError{"clients", 2, 5}},
		{Bounds{Clients: 1}, TooLargeError{"clients", 1, 2}},
		{Bounds{Requests: 3}, TooLargeError{"requests", 3, 5}},
		{Bounds{Clients: 3, Requests: 2}, TooLargeError{"requests", 2, 3}},
	} {
		in := io.MultiReader(strings.NewReader(text), endless(line("d", at)))
		_, err := Read(t.Context(), new(accesslog.Parser), in, c.most, nil)
		var large *TooLargeError
		if !errors.As(err, &large) || *large != c.want {
			t.Errorf("%+v: got %v, want %v", c.most, err, &c.want)
		}
	}
	for _, most := range []Bounds{{}, {Clients: 3, Requests: 4}} {
		if log, err := Read(t.Context(), new(accesslog.Parser), strings.NewReader(text), most, nil); err != nil || len(log.keys) != 3 || log.Requests() != 4 {
			t.Errorf("%+v: %v", most, err)
		}
	}
}

// TestReadTimes: a log is cut at its times, which bounds of requests and clients do not count.
func TestReadTimes(t *testing.T) {
	const four = "a,b,c,d"
	text := ""
	for i, client := range strings.Split(four, ",") {
		text += line(client, fmt.Sprintf("17/May/2026:10:00:0%d +0000", i))
	}
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	for _, c := range []struct {
		most Bounds
		want string
		cut  int
	}{
		{Bounds{}, "a b c d", 0},
		{Bounds{Since: at(0), Until: at(4)}, "a b c d", 0},
		{Bounds{Since: at(1), Requests: 3, Clients: 3}, "b c d", 1},
		{Bounds{Until: at(3)}, "a b c", 1},
		{Bounds{Since: at(1), Until: at(2)}, "b", 3},
	} {
		log := must.OK(Read(t.Context(), new(accesslog.Parser), strings.NewReader(text), c.most, nil))(t)
		if got := order(log); got != c.want || run(t, log, bucket(1)).LeftOut != c.cut {
			t.Errorf("%+v: %q, %d left out, want %q, %d", c.most, got, log.cut.requests, c.want, c.cut)
		}
	}
	for _, most := range []Bounds{{Since: at(4)}, {Until: at(0)}} {
		_, err := Read(t.Context(), new(accesslog.Parser), strings.NewReader(text), most, nil)
		var none *OutsideError
		if !errors.As(err, &none) || *none != (OutsideError{4, at(0), at(3)}) {
			t.Errorf("%+v: %v", most, err)
		}
	}
}

// endless repeats a text for ever.
type endless string

func (e endless) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		n += copy(p[n:], e)
	}
	return n, nil
}

// FuzzRead: each line of a log that is not empty is a request or is reported with its
// number, within the bounds. Requests are in order, and compression changes nothing.
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
			_, _ = Read(context.Background(), new(accesslog.Parser), bytes.NewReader(text), Bounds{}, nil) // an error or a log
			return
		}
		most := Bounds{Clients: int(clients), Requests: int(requests)}
		read := func(in []byte) (*Log, []int, error) {
			var bad []int
			log, err := Read(context.Background(), new(accesslog.Parser), bytes.NewReader(in), most, func(number int, err error) {
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
		if err != nil {
			return
		}
		if !slices.IsSortedFunc(log.events, func(a, b event) int { return cmp.Compare(a.at, b.at) }) {
			t.Errorf("%q: the events are %v", text, log.events)
		}
		full := 0
		for part := range bytes.SplitSeq(text, []byte("\n")) {
			if len(bytes.TrimRight(part, "\r")) > 0 {
				full++
			}
		}
		if log.Requests()+log.bad != full || log.bad != len(bad) || log.Requests() != again.Requests() || len(log.keys) > log.Requests() ||
			clients > 0 && len(log.keys) > int(clients) || requests > 0 && log.Requests() > int(requests) {
			t.Errorf("%q: %d requests of %d clients and %d bad lines (%v) of %d, within %+v", text, log.Requests(), len(log.keys), log.bad, bad, full, most)
		}
	})
}
