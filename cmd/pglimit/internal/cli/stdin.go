package cli

import (
	"context"
	"errors"
	"io"
)

// ErrInterrupted is the error of a command that Ctrl-C stopped.
var ErrInterrupted = errors.New("interrupted")

// Interruptible returns a reader of in whose reads fail with ErrInterrupted once
// ctx ends. A read of a terminal or a pipe cannot be cancelled: it continues in
// the background and its bytes are lost.
func Interruptible(ctx context.Context, in io.Reader) io.Reader {
	return &interruptibleReader{ctx: ctx, in: in, done: make(chan readResult, 1)}
}

type interruptibleReader struct {
	ctx  context.Context
	in   io.Reader
	buf  []byte
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

func (r *interruptibleReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, ErrInterrupted
	}
	// Do not read into p: the caller may reuse it once Read has returned.
	if len(r.buf) < len(p) {
		r.buf = make([]byte, len(p))
	}
	buf := r.buf[:len(p)]
	go func() {
		n, err := r.in.Read(buf)
		r.done <- readResult{n, err}
	}()
	select {
	case got := <-r.done:
		copy(p, buf[:got.n])
		return got.n, got.err
	case <-r.ctx.Done():
		return 0, ErrInterrupted
	}
}
