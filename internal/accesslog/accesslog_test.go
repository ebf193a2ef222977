package accesslog

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	at := time.Date(2026, 5, 17, 10, 5, 3, 0, time.UTC)
	for line, client := range map[string]string{
		Example: "192.0.2.7",
		`2001:db8::7 - alice [17/May/2026:12:05:03 +0200] "GET /a?b=\"c\" HTTP/2.0" 304 - "-" "Mozilla/5.0 (X11; \"x\")"`: "2001:db8::7",
		`host.example.org - - [17/May/2026:04:05:03 -0600] "-" 408 -`:                                                     "host.example.org",
		`198.51.100.1 - a b [17/May/2026:10:05:03 +0000] "\\" 200`:                                                        "198.51.100.1",
	} {
		got, when, err := Parse(line)
		if err != nil || got != client || !when.Equal(at) {
			t.Errorf("%s: got %q, %v, %v", line, got, when, err)
		}
	}
	for line, want := range map[string]string{
		"":                                  "client",
		"nobody":                            "client",
		" - - [17/May/2026:10:05:03 +0000]": "client",
		"- - - [17/May/2026:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1": "client",
		"192.0.2.7 - - 17/May/2026":                                   "[time]",
		"192.0.2.7 - - [17/May/2026":                                  "]",
		"192.0.2.7 - - [yesterday] \"GET /\" 200 1":                   "yesterday",
		"192.0.2.7 - - [31/Feb/2026:10:05:03 +0000] \"GET /\" 200 1":  "31/Feb",
		"192.0.2.7 - - [17/May/2026:10:05:03 +0000] GET / 200 1":      "request",
		"192.0.2.7 - - [17/May/2026:10:05:03 +0000] \"GET / 200 1":    "request",
		"192.0.2.7 - - [17/May/2026:10:05:03 +0000] \"GET /\" - 1":    "status",
		"192.0.2.7 - - [17/May/2026:10:05:03 +0000] \"GET /\" 2000 1": "status",
		"192.0.2.7 - - [17/May/2026:10:05:03 +0000] \"GET /\" ":       "status",
	} {
		if _, _, err := Parse(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error about %q", line, err, want)
		}
	}
}

func TestLines(t *testing.T) {
	long := strings.Repeat("x", 3*MaxLine)
	text := "one\r\n\ntwo\n" + long + "\nlast"
	var got []string
	var longs []bool
	err := Lines(strings.NewReader(text), func(_ int, line []byte, isLong bool) error {
		got, longs = append(got, string(line)), append(longs, isLong)
		return nil
	})
	if err != nil || len(got) != 5 || got[0] != "one" || got[1] != "" || got[2] != "two" || len(got[3]) != MaxLine || !longs[3] || got[4] != "last" || longs[4] {
		t.Errorf("got %d lines, %v, %v", len(got), longs, err)
	}
}

func TestOpenUnpacks(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte("a log")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, in := range [][]byte{packed.Bytes(), []byte("a log")} {
		r, err := Open(bytes.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(r); err != nil || string(text) != "a log" {
			t.Errorf("got %q, %v", text, err)
		}
	}
	for _, in := range []string{"", "x"} {
		if r, err := Open(strings.NewReader(in)); err != nil || r == nil {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// TestLinesLongest: a line's end does not count for its length.
func TestLinesLongest(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"", "\n", "\r\n"} {
		for more, wantLong := range map[int]bool{-1: false, 0: false, 1: true} {
			err := Lines(strings.NewReader(strings.Repeat("x", MaxLine+more)+end), func(number int, line []byte, long bool) error {
				if number != 1 || len(line) != min(MaxLine, MaxLine+more) || long != wantLong {
					t.Errorf("MaxLine%+d and %q: line %d has %d bytes, long %v", more, end, number, len(line), long)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for end := range len(Example) + 1 { // a log that was cut
		f.Add(Example[:end])
	}
	f.Add(`a - - [17/May/2026:10:05:03 +0000] "\`)
	f.Fuzz(func(t *testing.T, line string) {
		client, at, err := Parse(line)
		if err == nil && (client == "" || strings.Contains(client, " ") || at.IsZero() && !strings.Contains(line, "0001")) {
			t.Errorf("%q gave %q at %v", line, client, at)
		}
	})
}
