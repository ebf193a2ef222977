package httplimit

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/pglimit/pglimit/internal/valid"
	"github.com/pglimit/pglimit/limiter"
)

// WithPause pauses all processes when the server asks one of them to wait. If a response asks for
// a pause, Transport blocks the key of the first request that limits returned, by Limiter.Block. A
// later response can extend the block and never shortens it. Let limits return first the request
// whose key stands for what the server limits, such as its host or your account there.
//
// The pause is the longest that Pause and the functions of also return, and at most longest. The
// functions of also may read other header fields of the response, and must not read its body.
// Default: Pause alone.
//
// A response that asks for a pause is returned like any other. The caller decides whether to send
// the request again. If the block cannot be stored, the response is returned too, and
// Config.Observe gets the error. These still send during a pause:
//
//   - requests that are in flight, or have a turn in a LeakyBucketQueue
//   - a process with the rest of a Policy.Lease
//   - keys with an unlimited override, and Shadow policies
//   - FailOpen policies while the database is away
//
// WithPause panics if longest is not whole microseconds from one microsecond to a hundred
// years, or a function is nil.
func WithPause(longest time.Duration, also ...func(*http.Response) time.Duration) TransportOption {
	require(longest > 0 && valid.Duration(longest) == "", "WithPause: longest must be positive whole microseconds, at most a hundred years")
	for _, f := range also {
		require(f != nil, "WithPause: a function is nil")
	}
	return func(t *transport) {
		t.pauses, t.longest = append([]func(*http.Response) time.Duration{Pause}, also...), longest
	}
}

func (t *transport) pause(ctx context.Context, res *http.Response, request limiter.Request) {
	var d time.Duration
	for _, f := range t.pauses {
		d = max(d, f(res))
	}
	if d = min(d, t.longest).Round(time.Microsecond); d > 0 {
		// The caller may leave; the others want to know.
		_ = t.limiter.Block(context.WithoutCancel(ctx), request.Policy, request.Key, d)
	}
}

// unsaid is the Pause of a 429 that does not say how long.
const unsaid = time.Second

// Pause returns how long a response asks its client not to send further requests, or 0. It is the
// longest of:
//
//   - Retry-After of 429 (Too Many Requests) and 503 (Service Unavailable), in seconds or as a
//     date, which is compared with the response's Date
//   - items of RateLimit without remaining units, as r=0;t=30 of
//     draft-ietf-httpapi-ratelimit-headers-11, with any status
//   - a second, for a 429 from which neither gives a pause
//
// Other fields differ from server to server: see WithPause.
func Pause(res *http.Response) time.Duration {
	d := rateLimitPause(res.Header.Values(limitField))
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		d = max(d, retryPause(res.Header))
	}
	if d == 0 && res.StatusCode == http.StatusTooManyRequests {
		d = unsaid
	}
	return d
}

// retryPause returns the time of Retry-After; 0 without a valid one.
func retryPause(h http.Header) time.Duration {
	text := strings.TrimSpace(h.Get(retryField))
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return seconds(n)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date")) // its clock may differ from ours
	if err != nil {
		now = time.Now()
	}
	return max(0, at.Sub(now))
}

// rateLimitPause returns the longest time of items with nothing left; 0 without one.
func rateLimitPause(values []string) (d time.Duration) {
	list, err := httpsfv.UnmarshalList(values)
	if err != nil {
		return 0
	}
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		left, _ := item.Params.Get("r")
		wait, _ := item.Params.Get("t")
		if n, ok := wait.(int64); ok && left == int64(0) && n > 0 {
			d = max(d, seconds(uint64(n)))
		}
	}
	return d
}

// seconds returns n seconds, or the longest duration of a block if that is shorter.
func seconds(n uint64) time.Duration {
	return time.Duration(min(n, uint64(valid.MaxDuration/time.Second))) * time.Second
}
