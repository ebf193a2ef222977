package accesslog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/must"
)

// FuzzCombined: each field that a server writes into a line in the combined format is read
// from it, escaped as the server left it.
func FuzzCombined(f *testing.F) {
	f.Add("192.0.2.7", "alice", "GET", "/a?b=c", "https://example.com/", "curl/8", int64(1_779_012_303), uint16(200))
	f.Add("::1", "a b", "POST", `/"\`, `\"`, "Mozilla/5.0 (X11; [x])", int64(0), uint16(999))
	f.Add("host", "-", "-", "/ HTTP/1.1", "-", "-", int64(253402300799), uint16(100))
	f.Add("h", "", "PROPFIND", "", "\xff", "\t", int64(-1), uint16(404))
	f.Add("h", " a ", "GET", "/", "-", "-", int64(1), uint16(1000))
	f.Add("h", " a ", "GET", "/", "-", "-", int64(1), uint16(200))
	f.Add("h", "a", "GET", "/", "-", "-", int64(1), uint16(99))
	f.Add("-", "a", "GET", "/", "-", "-", int64(1), uint16(200))
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace // as nginx and Apache do
	f.Fuzz(func(t *testing.T, client, user, method, path, referer, agent string, unix int64, status uint16) {
		at := time.Unix(unix, 0).UTC()
		if client == "" || strings.ContainsAny(client, " \n{") || strings.ContainsAny(user, "[\n") || at.Year() < 0 || at.Year() > 9999 {
			return // a server writes no such line
		}
		if method == "" || strings.Contains(escape(method), " ") {
			return
		}
		line := fmt.Sprintf(`%s - %s [%s] "%s %s HTTP/1.1" %d 5120 "%s" "%s"`, client, user, at.Format(timeLayout), escape(method), escape(path), status, escape(referer), escape(agent))
		target, _, _ := strings.Cut(escape(path), "?")
		noLine := client == "-" || status < 100 || status > 999
		for name, want := range map[string]string{
			"remote_addr": client, "user": user, "method": escape(method), "path": target, "status": fmt.Sprint(status), "referer": escape(referer), "user_agent": escape(agent),
		} {
			if noLine {
				want = ""
			}
			checkField(t, line, name, want, at)
		}
	})
}

// checkField checks that a parser finds a field, or that it says that there is none.
func checkField(t *testing.T, line, name, want string, at time.Time) {
	t.Helper()
	p := must.OK(NewParser(name))(t)
	key, got, err := p.Parse(line)
	if want == "" || want == "-" || want == "REDACTED" {
		if err == nil {
			t.Errorf("%s of %q: %q, want an error", name, line, key)
		}
		return
	}
	if err != nil || key != want || !got.Equal(at) {
		t.Errorf("%s of %q: %q at %v, %v; want %q at %v", name, line, key, got, err, want, at)
	}
}

// FuzzJSONLine: each field that Caddy or nginx writes into a line of JSON is read from it
// as encoding/json reads it.
func FuzzJSONLine(f *testing.F) {
	f.Add("192.0.2.7", "alice", "GET", "/a?b=c", "example.com", "secret", int64(1_779_012_303_123_456))
	f.Add("::1", `"\`, "\u2028", "/<>&", "-", "REDACTED", int64(200_000_000_000_000))
	f.Add("a", "\x00", "G T", "?", "\ufffd", "é", int64(4_000_000_000_000_000))
	f.Add("2001:db8::1", "a", "GET", "/", "h", "t", int64(100_000_000_000_000)) // 1e11 ms
	f.Add("a", "a", "GET", "/", "h", "t", int64(1_779_012_303_123_457))
	f.Add("a", "a", "\xce", "\x8d", "h", "t", int64(1_779_012_303_999_999)) // together UTF-8
	f.Add("a", "a", "GET", "/", "h", "t", int64(1_779_012_303_999_999))
	f.Fuzz(func(t *testing.T, client, user, method, uri, host, token string, us int64) {
		const first, last = 100_000_000_000_000, 99_999_999_999_000_000 // 1973 to 5138
		if us < first || us > last {
			return
		}
		for _, text := range []string{client, user, method, uri, host, token} {
			if !utf8.ValidString(text) {
				return
			}
		}
		if _, _, port := cutPort(client); port {
			return // an old Caddy's port, which is left out
		}
		path, _, _ := strings.Cut(uri, "?")
		want := map[string]string{"remote_addr": client, "user": user, "method": method, "path": path, "host": host, "X-Token": token}
		at := time.UnixMicro(us / 1e6 * 1e6)
		ts := us / 1e6
		for _, value := range []map[string]any{
			{"ts": ts, "user_id": user, "request": map[string]any{"client_ip": client, "method": method, "uri": uri, "host": host, "headers": map[string][]string{"X-Token": {token, "other"}}}},
			{"msec": fmt.Sprintf("%d.000", ts), "remote_user": user, "remote_addr": client, "request_method": method, "request_uri": uri, "host": host, "http_x_token": token},
		} {
			line := must.OK(json.Marshal(value))(t)
			for name, text := range want {
				checkField(t, string(line), name, text, at)
			}
		}
		checkTimes(t, us)
		line := func(address any) string {
			text := must.OK(json.Marshal(map[string]any{"ts": ts, "remote_addr": address}))(t)
			return string(text)
		}
		for _, none := range []any{nil, []any{}, []any{nil}, []any{[]any{client}}, map[string]any{"address": client}} {
			checkField(t, line(none), DefaultKey, "", at)
		}
		if a, err := netip.ParseAddr(client); err == nil { // an old Caddy's port
			checkField(t, line(netip.AddrPortFrom(a, 4711).String()), DefaultKey, a.String(), at)
		}
	})
}

// checkTimes checks that a time is read in each unit, and that none is read from a number
// which is none.
func checkTimes(t *testing.T, us int64) {
	t.Helper()
	line := func(ts string) string { return `{"remote_addr":"a","ts":` + ts + `}` }
	seconds := us / 1e6
	for _, zeros := range []string{"", "000", "000000", "000000000"} {
		checkField(t, line(fmt.Sprint(seconds)+zeros), DefaultKey, "a", time.Unix(seconds, 0))
	}
	if us <= 4e15 { // above it a float64 has no microseconds
		checkField(t, line(fmt.Sprintf("%d.%06d", seconds, us%1e6)), DefaultKey, "a", time.UnixMicro(us))
	}
	for _, none := range []string{"0", "-1", fmt.Sprint(-us), "1e22", `"NaN"`, `"Inf"`} {
		checkField(t, line(none), DefaultKey, "", time.Time{})
	}
}

// cutPort cuts the port from an address.
func cutPort(s string) (host, port string, found bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.Count(s, ":") > 1 && !strings.HasPrefix(s, "[") {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// FuzzLines: Lines gives the lines that bytes.Split gives, with their numbers, whatever the
// size of the reads, and text that is not gzip passes Open unchanged.
func FuzzLines(f *testing.F) {
	for _, text := range []string{"", "a", "a\n", "a\nb", "\n\na\r\n\r\n", "a\r\rb\n", " a \n\tb\t", "\x1f", "\x1f\x8c", strings.Repeat("x", 1<<17) + "\ny", "\x00\n\xff"} {
		f.Add([]byte(text), uint8(1))
		f.Add([]byte(text), uint8(255))
	}
	f.Fuzz(func(t *testing.T, text []byte, size uint8) {
		if len(text) > MaxLine || bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
			return
		}
		opened, err := Open(chunks{bytes.NewReader(text), int(size)/16 + 1})
		if err != nil {
			t.Fatal(err)
		}
		want := bytes.Split(text, []byte("\n"))
		next := 0
		err = Lines(opened, func(number int, line []byte, long bool) error {
			if number != next+1 || number > len(want) || long || !bytes.Equal(line, bytes.TrimRight(want[number-1], "\r")) {
				t.Fatalf("line %d of %q is %q, long %v; %d came before", number, text, line, long, next)
			}
			next = number
			return nil
		})
		if rest := len(want) - next; err != nil || rest > 1 || rest == 1 && len(want[next]) > 0 {
			t.Errorf("%d of %d lines of %q, %v", next, len(want), text, err)
		}
	})
}

// chunks reads at most size bytes at a time.
type chunks struct {
	io.Reader
	size int
}

func (c chunks) Read(p []byte) (int, error) { return c.Reader.Read(p[:min(len(p), c.size)]) }
