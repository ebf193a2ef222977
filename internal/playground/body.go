package playground

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// maxPause is how long a request's body may stand still.
const maxPause = 30 * time.Second

// body is a request's that fails when it stands still, so that who sends half of it
// keeps no room from others.
type body struct {
	io.ReadCloser
	ctx   context.Context
	out   *http.ResponseController
	pause time.Duration
	err   error // the first, which a reader may have kept to itself
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	_ = b.out.SetReadDeadline(time.Now().Add(b.pause)) // where there are deadlines
	if err := b.ctx.Err(); err != nil {                // what it ended is not to begin anew
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		_ = b.out.SetReadDeadline(time.Time{}) // net/http reads on, to see whether the client goes
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = &problem{status: http.StatusRequestTimeout, Message: "nothing more of the body came for " + b.pause.String() + ": send it again"}
	}
	b.err = err
	return n, err
}
