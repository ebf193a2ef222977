package httpapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// check answers the sub-request of a gateway. The gateway's configuration writes the path. The
// query may be that of its client, so it means nothing.
//
//	/check/{policy}/by=address&by=header:X-Api-Key&cost=2&denied=403
//
// by says what the key is made of. Default: address.
func (h *Handler) check(w http.ResponseWriter, r *http.Request) error {
	at := r.URL.EscapedPath()
	next, known := h.checks.Get(at)
	if !known {
		policy, options, _ := strings.Cut(at[len(checkPath):], "/")
		policy, err := url.PathUnescape(policy)
		if err == nil {
			next, err = h.newCheck(policy, options)
		}
		if err != nil {
			return err
		}
		h.checks.Add(at, next)
	}
	ctx, cancel := context.WithTimeout(r.Context(), maxWait)
	defer cancel()
	next.ServeHTTP(w, r.WithContext(ctx))
	return nil
}

// maxWait bounds the wait for a turn in a queue. A later turn is a denial.
const maxWait = 20 * time.Second

// newCheck returns the handler of a policy's sub-requests with options.
func (h *Handler) newCheck(policy, options string) (http.Handler, error) {
	in, err := url.ParseQuery(options)
	if err != nil {
		return nil, api.BadField("options", "cannot be read: %v", err)
	}
	for name, values := range in {
		switch name {
		case "by":
		case "cost", "floor", "denied":
			if len(values) > 1 {
				return nil, api.BadField(name, "is given %d times: give it once", len(values))
			}
		default:
			return nil, api.BadField(shortened(name), "is no option of this route, which has by, cost, floor and denied")
		}
	}
	key, err := h.keyOf(in["by"])
	if err != nil {
		return nil, err
	}
	numbers := map[string]float64{"cost": 1, "floor": 0}
	for name := range numbers {
		if text := in.Get(name); text != "" {
			if numbers[name], err = strconv.ParseFloat(text, 64); err != nil {
				return nil, api.BadField(name, "is %.40q: must be a number", text)
			}
		}
	}
	limits := func(r *http.Request) ([]limiter.Request, error) {
		p, err := h.policy(policy)
		if err != nil {
			return nil, err
		}
		k, err := key(r)
		return []limiter.Request{{Policy: p, Key: k, Cost: numbers["cost"], Floor: numbers["floor"]}}, err
	}
	with := []httplimit.Option{httplimit.WithOnError(func(w http.ResponseWriter, r *http.Request, err error) {
		if err == httplimit.ErrNoKey {
			err = &problem{Status: http.StatusForbidden, Code: "no_key", Detail: "the request has nothing to be counted for: see by", Field: "by"}
		}
		h.fail(w, r, err)
	})}
	switch text := in.Get("denied"); text {
	case "":
	case "401", "403", "503": // nginx passes on 401 and 403 only
		status, _ := strconv.Atoi(text)
		with = append(with, httplimit.WithOnDeny(func(w http.ResponseWriter, _ *http.Request, denied *limiter.DeniedError) {
			if out, ok := w.(*recorder); ok {
				out.status = http.StatusTooManyRequests // for metrics and the log, where 403 is an error
			}
			httplimit.Deny(statusWriter{w, status}, denied)
		}))
	default:
		return nil, api.BadField("denied", "is %.40q: must be 401, 403 or 503, or left out for 429", text)
	}
	passes := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header()["Cache-Control"] = noStore })
	return httplimit.New(h.Limiter, limits, with...)(passes), nil
}

// keyOf returns the key that is made of parts.
func (h *Handler) keyOf(by []string) (httplimit.Key, error) {
	if len(by) == 0 {
		by = []string{"address"}
	}
	parts := make([]httplimit.Key, len(by))
	for i, part := range by {
		name, isHeader := strings.CutPrefix(part, "header:")
		switch {
		case isHeader && validHeader(name):
			parts[i] = httplimit.Header(name)
		case part == "address" && len(h.Address.Proxies) == 0:
			return nil, api.BadField("by", "is address, and the client's address is only known with --trusted-proxies, the networks of the gateways: without, all clients of a gateway would share a limit")
		case part == "address":
			parts[i] = h.Address.Key
		default:
			return nil, api.BadField("by", "is %.80q: must be address or header:NAME", part)
		}
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return httplimit.Join(parts...), nil
}

// validHeader reports whether a request may have a header called name.
func validHeader(name string) bool {
	return name != "" && len(name) <= 100 && strings.Trim(name, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// statusWriter writes a status instead of that of a denial.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader writes the status.
func (w statusWriter) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }
