// Package status observes the status of an HTTP response.
package status

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/felixge/httpsnoop"
)

// Hijacked is no status: the handler has the connection, and nobody sees what it writes.
const Hijacked = -1

// Watch returns a ResponseWriter that writes to w and has the same optional interfaces.
// It calls answers with each status that is written, with 200 if the body begins without
// one, and with Hijacked if the connection is hijacked.
func Watch(w http.ResponseWriter, answers func(code int)) http.ResponseWriter {
	return httpsnoop.Wrap(w, httpsnoop.Hooks{
		WriteHeader: func(next httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
			return func(code int) { next(code); answers(code) }
		},
		Write: func(next httpsnoop.WriteFunc) httpsnoop.WriteFunc {
			return func(b []byte) (int, error) { answers(http.StatusOK); return next(b) }
		},
		WriteString: func(next httpsnoop.WriteStringFunc) httpsnoop.WriteStringFunc {
			return func(s string) (int, error) { answers(http.StatusOK); return next(s) }
		},
		ReadFrom: func(next httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc {
			return func(from io.Reader) (int64, error) { answers(http.StatusOK); return next(from) }
		},
		Flush: func(next httpsnoop.FlushFunc) httpsnoop.FlushFunc {
			return func() { answers(http.StatusOK); next() }
		},
		FlushError: func(next httpsnoop.FlushErrorFunc) httpsnoop.FlushErrorFunc {
			return func() error { answers(http.StatusOK); return next() }
		},
		Hijack: func(next httpsnoop.HijackFunc) httpsnoop.HijackFunc {
			return func() (net.Conn, *bufio.ReadWriter, error) {
				conn, buffered, err := next()
				if err == nil {
					answers(Hijacked)
				}
				return conn, buffered, err
			}
		},
	})
}
