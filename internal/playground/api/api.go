// Package api reads the playground's requests and writes its answers, all in JSON.
// Problem is an error as clients see it.
package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"time"
)

// maxJSON is the longest JSON body in bytes that is read.
const maxJSON = 64 << 10

// Answer makes a handler of a function that returns what is to be sent, as Send
// sends it.
func Answer(f func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		value, err := f(w, r)
		Send(w, value, err)
	}
}

// Send sends value as JSON or, if err is not nil, err. A value with a method
// HTTPStatus chooses its status; the default is 200. A *Problem is sent with its
// status, any other error with 500.
func Send(w http.ResponseWriter, value any, err error) {
	status := http.StatusOK
	if chosen, ok := value.(interface{ HTTPStatus() int }); ok {
		status = chosen.HTTPStatus()
	}
	if err != nil {
		var p *Problem
		if !errors.As(err, &p) {
			p = &Problem{Status: http.StatusInternalServerError, Message: Sentence(err)}
		}
		value, status = p, p.Status
		if status == 0 {
			status = http.StatusBadRequest
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // a client that has gone needs no answer
}

// Read reads a request's JSON body into value: all of it, and no unknown field.
func Read(w http.ResponseWriter, r *http.Request, value any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &Problem{Status: http.StatusUnsupportedMediaType, Message: "the body must be JSON: send Content-Type: application/json"}
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJSON))
	d.DisallowUnknownFields()
	if err := d.Decode(value); err != nil {
		return BadJSON("body", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return &Problem{Message: "the body is more than one JSON value"}
	}
	return nil
}

// MaxPause is how long a request's body may stand still.
const MaxPause = 30 * time.Second

// LimitPauses makes reading r's body fail when the body stands still for longer than
// pause, so that a client that sends half a body does not occupy the server.
func LimitPauses(w http.ResponseWriter, r *http.Request, pause time.Duration) {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &body{ReadCloser: r.Body, ctx: r.Context(), out: http.NewResponseController(w), pause: pause}
	}
}

// body is a request's body with bounded pauses.
type body struct {
	io.ReadCloser
	ctx   context.Context
	out   *http.ResponseController
	pause time.Duration
	err   error // the first one: its reader may have dropped it
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	_ = b.out.SetReadDeadline(time.Now().Add(b.pause)) // if the connection has deadlines
	if err := b.ctx.Err(); err != nil {                // the new deadline must not undo the end of the request
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		_ = b.out.SetReadDeadline(time.Time{}) // net/http reads on, to see whether the client goes
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &Problem{Status: http.StatusRequestTimeout, Message: "nothing more of the body came for " + b.pause.String() + ": send it again"}
	}
	b.err = err
	return n, err
}
