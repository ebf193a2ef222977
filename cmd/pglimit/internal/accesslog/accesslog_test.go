package accesslog

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

func TestParse(t *testing.T) {
	at := time.Date(2026, 5, 17, 10, 5, 3, 0, time.UTC)
	for line, client := range map[string]string{
		Example: "192.0.2.7",
		`2001:db8::7 - alice [17/May/2026:12:05:03 +0200] "GET /a?b=\"c\" HTTP/2.0" 304 - "-" "Mozilla/5.0 (X11; \"x\")"`: "2001:db8::7",
		`host.example.org - - [17/May/2026:04:05:03 -0600] "-" 408 -`:                                                     "host.example.org",
		`198.51.100.1 - a b [17/May/2026:10:05:03 +0000] "\\" 200`:                                                        "198.51.100.1",
	} {
		got, when, err := new(Parser).Parse(line)
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
		if _, _, err := new(Parser).Parse(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error about %q", line, err, want)
		}
	}
}

// TestLines: a line above MaxLine is cut, and the next ones are read.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", 3*MaxLine)
	text := "\ufeffone\r\n\ntwo\n" + long + "\nlast"
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
	must.OK(w.Write([]byte("a log")))(t)
	must.Succeed(t, w.Close())
	for _, in := range [][]byte{packed.Bytes(), []byte("a log")} {
		r := must.OK(Open(bytes.NewReader(in)))(t)
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

// FuzzParse: any line is an error, or has a client without spaces and a time.
func FuzzParse(f *testing.F) {
	for end := range len(Example) + 1 { // a log that was cut
		f.Add(Example[:end])
	}
	f.Add(`a - - [17/May/2026:10:05:03 +0000] "\`)
	f.Fuzz(func(t *testing.T, line string) {
		client, at, err := new(Parser).Parse(line)
		if err == nil && (client == "" || strings.Contains(client, " ") || at.IsZero() && !strings.Contains(line, "0001")) {
			t.Errorf("%q gave %q at %v", line, client, at)
		}
	})
}

// Lines as Caddy and nginx write them.
const (
	combined = `192.0.2.7 - alice [17/May/2026:10:05:03 +0000] "GET /a?b=\"c\" HTTP/2.0" 304 - "https://example.org/x" "Mozilla/5.0 (X11; \"x\")"`
	common   = `192.0.2.7 - alice [17/May/2026:10:05:03 +0000] "GET /a?b=c HTTP/2.0" 304 12`
	caddy    = `{"level":"info","ts":1779012303.25,"logger":"http.log.access.log0","msg":"handled request","request":{"remote_ip":"192.0.2.99","remote_port":"41142","client_ip":"192.0.2.7","proto":"HTTP/2.0","method":"GET","host":"example.com","uri":"/a?b=c","headers":{"User-Agent":["curl/8.0"],"Accept":["*/*"],"X-Api-Key":["k1","k2"],"Authorization":["REDACTED"],"Referer":["https://example.org/x"]},"tls":{"resumed":false}},"bytes_read":0,"user_id":"alice","duration":0.000929675,"size":10900,"status":304,"resp_headers":{"Server":["Caddy"]}}`
	oldCaddy = `{"level":"info","ts":"2026-05-17T10:05:03.250Z","msg":"handled request","request":{"remote_addr":"[2001:db8::7]:41342","proto":"HTTP/1.1","method":"POST","host":"localhost:8080","uri":"/","headers":{"User-Agent":["curl/7.82.0"]}},"common_log":"x","user_id":"","status":200}`
	nginx    = `{"time_local":"17/May/2026:10:05:03 +0000","time_iso8601":"2026-05-17T10:05:03+00:00","msec":"1779012303.250","remote_addr":"192.0.2.7","remote_user":"alice","request":"GET /a?b=c HTTP/1.1","status":"304","body_bytes_sent":"12","http_referer":"https://example.org/x","http_user_agent":"curl/8.0","http_x_api_key":"k1","host":"example.com"}`
	split    = ` {"time_iso8601":"2026-05-17T12:05:03+02:00","remote_addr":"2001:db8::7","request_method":"PUT","request_uri":"/b/c","status":201,"user":{"id":7,"plan":"pro"},"tags":["x","y"],"ok":true,"none":null,"a.b":{"c.d":"dotted"}}`
)

func TestParserKeys(t *testing.T) {
	t.Parallel()
	second := time.Date(2026, 5, 17, 10, 5, 3, 0, time.UTC)
	precise := second.Add(250 * time.Millisecond)
	for _, c := range []struct {
		line string
		at   time.Time
		want map[string]string // by field; "": ErrNoKey
	}{
		{combined, second, map[string]string{"": "192.0.2.7", "remote_addr": "192.0.2.7", "user": "alice", "method": "GET", "path": "/a", "status": "304", "host": "", "X-Api-Key": "",
			"referer": "https://example.org/x", "user_agent": `Mozilla/5.0 (X11; \"x\")`, "USER_AGENT": `Mozilla/5.0 (X11; \"x\")`}},
		{common, second, map[string]string{"user": "alice", "path": "/a", "referer": "", "user_agent": ""}},
		{Example, second, map[string]string{"user": "", "path": "/", "method": "GET"}},
		{`a - - [17/May/2026:10:05:03 +0000] "-" 408 - "-" "-"`, second, map[string]string{"": "a", "path": "", "method": "", "user_agent": "", "referer": ""}},
		{`a - b c [17/May/2026:10:05:03 +0000] "GET /a b c HTTP/1.1" 200 -`, second, map[string]string{"user": "b c", "path": "/a b c"}},
		{caddy, precise, map[string]string{"": "192.0.2.7", "user": "alice", "method": "GET", "path": "/a", "host": "example.com", "status": "304", "user_agent": "curl/8.0", "referer": "https://example.org/x",
			"request.headers.X-Api-Key": "k1", "X-Api-Key": "k1", "x-api-key": "k1", "Authorization": "", "request.remote_ip": "192.0.2.99", "request.tls.resumed": "false", "request.uri": "/a?b=c",
			"resp_headers.Server": "Caddy", "size": "10900", "request": "", "request.headers": "", "X-None": "", "request.method.x": "", "request.none.x": ""}},
		{oldCaddy, precise, map[string]string{"": "2001:db8::7", "user": "", "method": "POST", "path": "/", "host": "localhost:8080", "referer": ""}},
		{nginx, precise, map[string]string{"": "192.0.2.7", "user": "alice", "method": "GET", "path": "/a", "host": "example.com", "status": "304", "user_agent": "curl/8.0", "referer": "https://example.org/x",
			"X-Api-Key": "k1", "http_x_api_key": "k1", "body_bytes_sent": "12"}},
		{split, second, map[string]string{"": "2001:db8::7", "method": "PUT", "path": "/b/c", "status": "201", "user": "", "user.id": "7", "user.plan": "pro", "tags": "x", "ok": "true", "none": "", "a.b.c.d": "dotted"}},
	} {
		for name, want := range c.want {
			p := must.OK(NewParser(name))(t)
			key, at, err := p.Parse(c.line)
			if want == "" && (!errors.Is(err, ErrNoKey) || key != "") || want != "" && (err != nil || key != want || !at.Equal(c.at)) {
				t.Errorf("%s of %.200s: got %q at %v, %v; want %q", name, c.line, key, at, err, want)
			}
		}
	}
}

// TestParserTimes: every form of a time that Caddy or nginx writes.
func TestParserTimes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`"ts":1779012303.1234567`:                      "2026-05-17T10:05:03.123457Z",
		`"ts":1.7790123031234567e9`:                    "2026-05-17T10:05:03.123457Z",
		`"ts":1779012303`:                              "2026-05-17T10:05:03Z",
		`"ts":"1779012303.5"`:                          "2026-05-17T10:05:03.5Z",
		`"ts":1779012303123.4`:                         "2026-05-17T10:05:03.1234Z",
		`"ts":1779012303123456`:                        "2026-05-17T10:05:03.123456Z",
		`"ts":1779012303123456789`:                     "2026-05-17T10:05:03.123457Z",
		`"ts":"2026-05-17T12:05:03.123+0200"`:          "2026-05-17T10:05:03.123Z",
		`"ts":"2026-05-17T10:05:03.123456789Z"`:        "2026-05-17T10:05:03.123456789Z",
		`"ts":"2026/05/17 10:05:03.123"`:               "2026-05-17T10:05:03.123Z",
		`"ts":"2026-05-17 10:05:03"`:                   "2026-05-17T10:05:03Z",
		`"ts":"17/May/2026:12:05:03 +0200"`:            "2026-05-17T10:05:03Z",
		`"ts":"Sun, 17 May 2026 10:05:03 GMT"`:         "2026-05-17T10:05:03Z",
		`"msec":"1779012303.250"`:                      "2026-05-17T10:05:03.25Z",
		`"msec":1779012303.250`:                        "2026-05-17T10:05:03.25Z",
		`"time_local":"17/May/2026:10:05:03 +0000"`:    "2026-05-17T10:05:03Z",
		`"time_iso8601":"2026-05-17T10:05:03+00:00"`:   "2026-05-17T10:05:03Z",
		`"@timestamp":"2026-05-17T10:05:03.000Z"`:      "2026-05-17T10:05:03Z",
		`"timestamp":"2026-05-17T10:05:03.000Z"`:       "2026-05-17T10:05:03Z",
		`"time":"2026-05-17T10:05:03.000Z"`:            "2026-05-17T10:05:03Z",
		`"ts":null,"time":"2026-05-17T10:05:03.000Z"`:  "2026-05-17T10:05:03Z",
		`"ts":"","msec":"1779012303","time_local":"x"`: "2026-05-17T10:05:03Z",
	} {
		_, at, err := new(Parser).Parse(`{"remote_addr":"a",` + text + `}`)
		if got := at.UTC().Format(time.RFC3339Nano); err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", text, got, err, want)
		}
	}
	for line, want := range map[string]string{
		`{"remote_addr":"a"}`:                                    "no time: none of the fields ts, msec, ",
		`{"remote_addr":"a","ts":"soon"}`:                        `ts is "soon": not a time`,
		`{"remote_addr":"a","ts":"NaN"}`:                         "not a time",
		`{"remote_addr":"a","ts":"-Inf"}`:                        "not a time",
		`{"remote_addr":"a","ts":1e300}`:                         "not a time",
		`{"remote_addr":"a","ts":-5}`:                            "not a time",
		`{"remote_addr":"a","ts":0}`:                             "not a time",
		`{"remote_addr":"a","ts":1e999}`:                         "not a time",
		`{"remote_addr":"a","ts":true}`:                          "not a time",
		`{"remote_addr":"a","ts":{}}`:                            "ts is an object",
		`{"remote_addr":"a","ts":[[1]]}`:                         "list of lists",
		`{"ts":1779012303`:                                       "not a JSON object",
		`{"ts":1779012303}{"ts":1779012303}`:                     "not a JSON object",
		`{}`:                                                     "no time",
		`{"ts":1779012303}`:                                      "no remote_addr",
		`{"ts":1779012303,"remote_addr":""}`:                     "no remote_addr",
		`{"ts":1779012303,"remote_addr":"-"}`:                    "no remote_addr",
		`{"ts":1779012303,"remote_addr":{"ip":1}}`:               "no remote_addr",
		`{"ts":1779012303,"msg":"server running"}`:               "no remote_addr",
		`["ts",1779012303]`:                                      "no client's address",
		strings.Repeat(`{"a":`, 20000):                           "not a JSON object",
		`{"ts":1,"a":` + strings.Repeat("[", 9000) + `}`:         "not a JSON object",
		`{"ts":1779012303,"remote_addr":` + "\"\x00\xff\"" + `}`: "not a JSON object",
	} {
		if _, _, err := new(Parser).Parse(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %q", line, err, want)
		}
	}
}

func TestNewParserErrors(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{" user": "spaces at its ends", "user\n": "spaces at its ends or control characters", "a..b": "a dot without a name", ".a": "a dot", "a.": "a dot"} {
		if _, err := NewParser(key); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("%q", key)) {
			t.Errorf("%q: got %v, want %q", key, err, want)
		}
	}
	if p, err := NewParser(""); err != nil || p.Key() != "remote_addr" || fmt.Sprint(KeyNames()) != "[remote_addr user method path host status referer user_agent]" {
		t.Errorf("%v, %v, %v", p, err, KeyNames())
	}
}

// TestParserReasons: the error says why a request has no key.
func TestParserReasons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, line, want string }{
		{"user", Example, "no user"},
		{"host", common, "a line in the common or combined format has no host: it has remote_addr, user, method, path, status, referer, user_agent"},
		{"Authorization", caddy, "Authorization is redacted: let the server log credentials (log_credentials in Caddy), or choose another field"},
		{"request.headers", caddy, "request.headers is an object: name a field in it, such as request.headers.Accept"},
		{"X-None", caddy, "no X-None"},
	} {
		p := must.OK(NewParser(c.key))(t)
		if _, _, err := p.Parse(c.line); !errors.Is(err, ErrNoKey) || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.key, err, c.want)
		}
	}
}

// FuzzParser: no line and no key makes a parser fail in another way than with an error, or
// gives an empty key.
func FuzzParser(f *testing.F) {
	for _, line := range []string{combined, common, caddy, oldCaddy, nginx, split, Example, "{", `{"ts":1,"request":1}`, `{"ts":1779012303,"request":"GET"}`, `{"ts":[1779012303],"request":[{}]}`, `{"ts":1779012303,"remote_addr":[[]]}`, "\xff{", `{"":{"":1}}`, `{"ts":1e-400}`,
		`{"ts":1779012303,"remote_addr":[],"http_referer":[null]}`, common[:len(common)-1], Example + ` "`} {
		for _, key := range []string{"", "path", "referer", ".", "a..b", "request.headers.X-Api-Key", "host", "user", "a.b.c.d", "X"} {
			f.Add(line, key)
		}
	}
	f.Fuzz(func(t *testing.T, line, name string) {
		p, err := NewParser(name)
		if err != nil {
			return
		}
		key, at, err := p.Parse(line)
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, "..") {
			t.Errorf("%q is taken as the name of a field", name)
		}
		if (key == "") != (err != nil) || err == nil && key == "-" {
			t.Errorf("%s of %q gave %q at %v, %v", name, line, key, at, err)
		}
		if err != nil && (len(err.Error()) > 1000+len(name)*2 || !at.IsZero()) {
			t.Errorf("%s of %q: %v, %v", name, line, at, err)
		}
	})
}
