package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// MaxPause is the longest pause of a client: before its request's body arrives, and before it
// reads more of the answer.
const MaxPause = 30 * time.Second

// minRate is the least number of bytes a second in which a body arrives, after the longest
// pause.
const minRate = 64 << 10

// Pace sets limits for a client that stalls, so that it does not occupy the server. It
// returns the writer to use instead of w:
//
//   - Reading r's body fails if, after pause, it came slower than 64 KiB a second.
//   - Writing to w fails if the client does not read for twice the pause.
//
// The limits are deadlines of the connection, so they also bound what net/http reads and
// writes after the handler.
func Pace(w http.ResponseWriter, r *http.Request, pause time.Duration) http.ResponseWriter {
	conn := http.NewResponseController(w)
	out := &writer{w, conn, pause}
	out.extend()
	if r.Body != nil && r.Body != http.NoBody {
		b := &body{r.Body, r.Context(), conn, time.Now().Add(pause)}
		_ = conn.SetReadDeadline(b.until) // net/http reads what the handler leaves
		r.Body = b
	}
	return out
}

// body is a request's body that has to come quickly.
type body struct {
	io.ReadCloser
	ctx   context.Context
	conn  *http.ResponseController
	until time.Time // later with each byte read
}

func (b *body) Read(p []byte) (int, error) {
	_ = b.conn.SetReadDeadline(b.until) // if the connection has deadlines
	if err := b.ctx.Err(); err != nil { // the new deadline replaced one that ended the request
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	b.until = b.until.Add(time.Duration(n) * time.Second / minRate)
	switch {
	case err == io.EOF:
		_ = b.conn.SetReadDeadline(time.Time{}) // net/http still reads, to notice when the client disconnects
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = &Problem{Status: http.StatusRequestTimeout, Message: fmt.Sprintf(
			"the body came slower than %d KiB a second: send it again", minRate>>10)}
	}
	return n, err
}

// writer is a ResponseWriter whose client has to read.
type writer struct {
	http.ResponseWriter
	conn  *http.ResponseController
	pause time.Duration
}

// Unwrap returns the connection's writer, for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// extend gives the client time for what is written next. Before net/http writes it, it may
// wait for the rest of the body, which is another pause.
func (w *writer) extend() {
	_ = w.conn.SetWriteDeadline(time.Now().Add(2 * w.pause)) // if the connection has deadlines
}
