package main

import (
	"context"
	"errors"
	"io"
)

// errInterrupted is what reading standard input gives after Ctrl-C.
var errInterrupted = errors.New("interrupted")

// interruptible is in until ctx ends. A read of a terminal or a pipe cannot be
// called off, so it is left behind then, and its bytes with it.
func interruptible(ctx context.Context, in io.Reader) io.Reader {
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
		return 0, errInterrupted
	}
	// Not into p itself: it is the caller's again once we have returned.
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
		return 0, errInterrupted
	}
}
