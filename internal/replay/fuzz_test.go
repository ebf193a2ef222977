package replay

import (
	"bytes"
	"compress/gzip"
	"context"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/accesslog"
)

// FuzzRead: each line of a log that is not empty is a request or is reported with its
// number, within the bounds, and compression changes nothing.
func FuzzRead(f *testing.F) {
	line := accesslog.Example + "\n"
	other := strings.Replace(line, "192.0.2.7", "192.0.2.8", 1)
	for _, text := range []string{"", "\n", line, line + other, line + "bad\n\n" + line, strings.Repeat(line+other, 5), line + "\x00 - - [17/May/2026:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1\n", `{"ts":1779012303,"remote_addr":"` + strings.Repeat("a", 2000) + `"}`, `{"ts":9e10,"remote_addr":"a"}`, "\x1f\x8b"} {
		f.Add([]byte(text), uint8(3), uint8(9))
		f.Add([]byte(text), uint8(0), uint8(1))
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
		if err != nil {
			return
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
