package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// MaxPause is the longest pause of a client, within a request's body and before it reads
// more of the answer.
const MaxPause = 30 * time.Second

const (
	// minRate is the least number of bytes a second in which a body arrives, after the
	// longest pause: otherwise a byte now and then would keep the request alive.
	minRate = 16 << 10
	// maxWrite is the most bytes that are written before the client gets more time.
	maxWrite = 64 << 10
)

// Pace returns w and r with limits for a client that stalls, so that it does not occupy
// the server:
//
//   - Reading r's body fails after a pause longer than pause, if the body is slower than
//     16 KiB a second, and after EndBody.
//   - Writing to w fails if the client does not read for twice that long.
//
// The limits are deadlines of the connection, so they also bound what net/http reads and
// writes after the handler.
func Pace(w http.ResponseWriter, r *http.Request, pause time.Duration) (http.ResponseWriter, *http.Request) {
	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Time{}) // the last one of an earlier request on this connection
	if r.Body != nil && r.Body != http.NoBody {
		b := &body{ReadCloser: r.Body, out: out, pause: pause, begun: time.Now()}
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, b))
		r.Body, b.ctx = b, r.Context()
		_ = out.SetReadDeadline(b.begun.Add(pause)) // net/http reads what the handler leaves
	}
	return &writer{w, out, pause}, r
}

// EndBody makes reading the body of a request under Pace fail. ctx is the request's. A
// read in progress ends with the connection's read deadline, which the caller may set
// afterwards.
func EndBody(ctx context.Context) {
	if b, ok := ctx.Value(bodyKey{}).(*body); ok {
		b.ended.Store(true)
	}
}

// bodyKey is the context key of the request's body.
type bodyKey struct{}

// body is a request's body with bounded pauses.
type body struct {
	io.ReadCloser
	ctx   context.Context
	out   *http.ResponseController
	pause time.Duration
	begun time.Time
	n     int64 // bytes read
	ended atomic.Bool
	err   error // the first one, returned by all later reads
}

// errEnded is the error of a body after EndBody.
var errEnded = errors.New("the body was ended")

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	until := time.Now().Add(b.pause)
	if slowest := b.begun.Add(b.pause + time.Duration(b.n)*time.Second/minRate); slowest.Before(until) {
		until = slowest
	}
	_ = b.out.SetReadDeadline(until)    // if the connection has deadlines
	if err := b.ctx.Err(); err != nil { // the new deadline replaced one that ended the request
		return 0, err
	}
	if b.ended.Load() {
		return 0, errEnded
	}
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	if err == io.EOF {
		_ = b.out.SetReadDeadline(time.Time{}) // net/http still reads, to notice when the client disconnects
	}
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
	case b.ended.Load():
		err = errEnded
	default:
		err = &Problem{Status: http.StatusRequestTimeout, Message: fmt.Sprintf(
			"the body paused for more than %v, or came slower than %d KiB a second: send it again", b.pause, minRate>>10)}
	}
	b.err = err
	return n, err
}

// writer is a ResponseWriter whose client has to read.
type writer struct {
	http.ResponseWriter
	out   *http.ResponseController
	pause time.Duration
}

// Unwrap returns the connection's writer, for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (written int, err error) {
	for first := true; first || len(p) > 0; first = false {
		part := p[:min(len(p), maxWrite)]
		p = p[len(part):]
		w.extend()
		n, err := w.ResponseWriter.Write(part)
		if written += n; err != nil {
			return written, err
		}
	}
	return written, nil
}

// extend gives the client time for what is written next. Before net/http writes it, it may
// wait for the rest of the body, which is another pause.
func (w *writer) extend() {
	_ = w.out.SetWriteDeadline(time.Now().Add(2 * w.pause)) // if the connection has deadlines
}
