package httplimit

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/pglimit/pglimit/limiter"
)

// The problem type and title of a denial, from the draft that SetHeader names.
const (
	quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	quotaTitle    = "Request cannot be satisfied as assigned quota has been exceeded"
)

// problem is the body of a response that New writes: RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

// Deny answers a denied request as New does, for a handler that decides itself. It reports
// whether err is a *limiter.DeniedError or wraps one; if not, it does nothing. Result.Err and
// Results.Err make such an error, and RunTx returns that of its work:
//
//	hold, err := l.Reserve(ctx, request, time.Minute)
//	if err == nil {
//		err = hold.Result.Err()
//	}
//	if httplimit.Deny(w, err) {
//		return
//	}
//
// Deny calls SetHeader with all results of the error. It writes status 429 (Too Many Requests)
// with a body of application/problem+json, which names the policies that denied:
//
//	{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
//	 "title":"Request cannot be satisfied as assigned quota has been exceeded",
//	 "status":429,"detail":"Try again in 12 s.","violated-policies":["login"]}
//
// If a request costs more than the burst, or than its Floor leaves of it, it can never be granted
// (limiter.Never). Then the status is 413 (Content Too Large) without Retry-After, and the type is
// about:blank, so that clients do not repeat the request. To them it is larger than the server
// accepts, whether its cost comes from its content or not. A block without an end is a 429 without
// Retry-After.
func Deny(w http.ResponseWriter, err error) bool {
	var denied *limiter.DeniedError
	if !errors.As(err, &denied) {
		return false
	}
	results := denied.PerRequest
	if results == nil {
		results = []limiter.Result{denied.Result}
	}
	SetHeader(w.Header(), results...)
	p := problem{Type: quotaExceeded, Title: quotaTitle, Status: http.StatusTooManyRequests}
	blocked := func(r limiter.Result) bool {
		return r.Reason == limiter.ReasonBlocked && !r.Allowed && r.RetryAfter == limiter.Never
	}
	if retry := retryAfter(results); slices.ContainsFunc(results, blocked) {
		p.Detail = "The client is blocked."
	} else if retry == limiter.Never {
		p.Type, p.Title, p.Status = "about:blank", "Content Too Large", http.StatusRequestEntityTooLarge
		p.Detail = "The request costs more than the limit ever allows: do not repeat it."
	} else {
		p.Detail = "Try again in " + strconv.FormatInt(ceilSeconds(retry), 10) + " s."
	}
	for i := range results {
		if r := &results[i]; !r.Allowed && shown(r) && !slices.Contains(p.Violated, r.Policy.Name) {
			p.Violated = append(p.Violated, r.Policy.Name)
		}
	}
	p.write(w)
	return true
}

// fail answers with a status and, if not empty, a detail.
func fail(w http.ResponseWriter, status int, detail string) {
	p := problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
	p.write(w)
}

func (p *problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // strings and a number
		panic(err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store") // it is about this client, now
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n')) // a client that has gone needs no answer
}
