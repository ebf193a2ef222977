package httplimit

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/felixge/httpsnoop"

	"github.com/pglimit/pglimit/limiter"
)

// RefundIf gives back what a request was granted if the status of its answer is
// one that counts for nothing. To count failed logins alone, where the handler
// answers those with 401:
//
//	httplimit.RefundIf(func(status int) bool { return status != http.StatusUnauthorized })
//
// Requests count until they are answered, so that many at once do not get past the
// limit. A handler that writes nothing answers 200, one that panics before it has
// written 500, and 1xx are not the answer, but for 101 (Switching Protocols). The
// refund comes when the handler has returned, also if the client is gone, and takes
// limiter.Config.Timeout at most for each ask; an error is logged. The fields of the
// answer are as of before.
//
// It is limiter.Undo that gives back, so nothing passes twice: what has leaked while
// the handler ran is not given back, nor is anything of a window that has ended. What
// waits in a LeakyBucketQueue is not given back, nor what was answered by an earlier
// answer to the same limiter.Ask.IdempotencyKey.
func RefundIf(is func(status int) bool) Option {
	require(is != nil, "RefundIf: the function is nil")
	return func(m *middleware) { m.refundIf = is }
}

// serveRefunding serves a request whose asks were granted.
func (m *middleware) serveRefunding(w http.ResponseWriter, r *http.Request, next http.Handler, asks []limiter.Ask, all limiter.Results) {
	status := 0
	answers := func(code int) {
		if status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
			status = code
		}
	}
	defer func() { // without recover: a panic goes on as it is
		answers(http.StatusInternalServerError)
		if m.refundIf(status) {
			m.refund(context.WithoutCancel(r.Context()), asks, all)
		}
	}()
	next.ServeHTTP(watch(w, answers), r)
	answers(http.StatusOK)
}

// watch is w, telling of each status that is written, and of 200 where an answer
// goes out, or its connection is taken over, without one.
func watch(w http.ResponseWriter, answers func(code int)) http.ResponseWriter {
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
					answers(http.StatusOK)
				}
				return conn, buffered, err
			}
		},
	})
}

func (m *middleware) refund(ctx context.Context, asks []limiter.Ask, all limiter.Results) {
	for i, r := range all.Each {
		p := asks[i].Policy
		if p.Algorithm == limiter.LeakyBucketQueue || r.Replayed || r.Source == limiter.SourceDegraded {
			continue
		}
		if _, err := m.limiter.Undo(ctx, p, asks[i].Key, r); err != nil {
			m.logger().WarnContext(ctx, "httplimit: a refund failed", "policy", p.Name, "error", err)
		}
	}
}
