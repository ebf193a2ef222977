// Package client asks a server, pglimit serve, by the methods of package limiter.
//
//	l, err := client.New("https://limits.example.com", &client.Config{Token: token})
//	r, err := l.Allow(ctx, client.Named("login"), userID)
//
// Methods, results and errors are those of limiter.Limiter, so code that declares an interface
// with the methods that it calls works with both. Three things differ:
//
//   - A policy is only its name. Its numbers are the server's.
//   - Result.Policy has only the Name.
//   - Wait, DoWait, WaitAll, Undo and transactions need the library. Reserve and Cancel give
//     back what Undo would.
//
// A request is sent once. If its error is limiter.ErrUnavailable, it may or may not have been
// counted; with an IdempotencyKey it can be sent again and counts once.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Config configures a Limiter. Nil and the zero value have the defaults that each field names.
type Config struct {
	// Token is the caller's, by pglimit serve token. Default: none.
	Token string
	// Timeout bounds a request, with the time in which the server waits for its database.
	// Default: 2s.
	Timeout time.Duration
	// HTTP sends the requests, such as one with a client certificate. Default: one that keeps
	// up to 100 idle connections.
	HTTP *http.Client
}

// Limiter asks a server. It is safe for concurrent use. One is enough for a program.
type Limiter struct {
	base    string
	token   string
	timeout time.Duration
	http    *http.Client
}

// New returns a Limiter for the server at a URL. It sends nothing. It returns limiter.ErrInvalid
// for what is no URL, or for a negative Timeout.
func New(server string, config *Config) (*Limiter, error) {
	at, err := url.Parse(server)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || at.RawQuery != "" {
		return nil, fmt.Errorf("%w: server %.80q: must be a URL such as https://limits.example.com", limiter.ErrInvalid, server)
	}
	if config == nil {
		config = &Config{}
	}
	if config.Timeout < 0 {
		return nil, fmt.Errorf("%w: Config.Timeout %v: must not be negative", limiter.ErrInvalid, config.Timeout)
	}
	l := &Limiter{strings.TrimSuffix(at.String(), "/"), config.Token, config.Timeout, config.HTTP}
	if l.timeout == 0 {
		l.timeout = 2 * time.Second
	}
	if l.http == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 100
		l.http = &http.Client{Transport: transport}
	}
	return l, nil
}

// Named returns a policy to pass to the methods: the one that the server has under name.
func Named(name string) limiter.Policy { return limiter.Policy{Name: name} }

// Close closes idle connections. It returns nil.
func (l *Limiter) Close() error {
	l.http.CloseIdleConnections()
	return nil
}

// codes are the errors of the server's codes.
var codes = map[string]error{
	"invalid": limiter.ErrInvalid, "too_large": limiter.ErrInvalid, "unsupported": limiter.ErrUnsupported, "no_policy": policies.ErrNoPolicy,
	"no_reservation": limiter.ErrNoReservation, "reservation_ended": limiter.ErrReservationEnded, "no_ticket": limiter.ErrNoTicket, "no_slot": limiter.ErrNoSlot,
	"locked": limiter.ErrLocked, "overloaded": limiter.ErrOverloaded, "misconfigured": limiter.ErrMisconfigured,
	"unauthorized": limiter.ErrMisconfigured, "scope": limiter.ErrMisconfigured, "no_route": limiter.ErrMisconfigured, "host": limiter.ErrMisconfigured,
}

// maxAnswer is the largest answer in bytes: 1,000 results and IDs.
const maxAnswer = 4 << 20

// send sends a request, a POST of body unless that is nil, and reads the answer into answer
// unless that is nil.
func (l *Limiter) send(ctx context.Context, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	method, text := http.MethodGet, []byte(nil)
	if body != nil {
		method = http.MethodPost
		var err error
		if text, err = json.Marshal(body); err != nil { // a number that JSON has not
			return fmt.Errorf("%w: %w", limiter.ErrInvalid, err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, l.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if l.token != "" {
		r.Header.Set("Authorization", "Bearer "+l.token)
	}
	got, err := l.http.Do(r)
	if err != nil {
		return unavailable(ctx, err)
	}
	defer got.Body.Close()
	content, err := io.ReadAll(io.LimitReader(got.Body, maxAnswer))
	if err != nil {
		return unavailable(ctx, err)
	}
	if got.StatusCode >= 300 {
		return problem(got.StatusCode, content)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(content, answer); err != nil {
		return fmt.Errorf("%w: the server's answer cannot be read: %w", limiter.ErrUnavailable, err)
	}
	return nil
}

// unavailable returns the error of a request without an answer.
func unavailable(ctx context.Context, err error) error {
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return cause
	}
	return fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
}

// problem returns the error of a server's problem.
func problem(status int, content []byte) error {
	var p struct{ Detail, Code string }
	if json.Unmarshal(content, &p) != nil || p.Code == "" {
		return fmt.Errorf("%w: status %d, and not from pglimit serve: check the URL", limiter.ErrUnavailable, status)
	}
	known := codes[p.Code]
	if known == nil {
		known = limiter.ErrUnavailable
	}
	return fmt.Errorf("%w: %s", known, strings.TrimPrefix(p.Detail, strings.TrimPrefix(known.Error(), "pglimit: ")+": "))
}
