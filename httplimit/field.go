package httplimit

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/pglimit/pglimit/limiter"
)

// Field names as http.Header keeps them.
const (
	policyField     = "Ratelimit-Policy"
	limitField      = "Ratelimit"
	retryField      = "Retry-After"
	xLimitField     = "X-Ratelimit-Limit"
	xRemainingField = "X-Ratelimit-Remaining"
	xResetField     = "X-Ratelimit-Reset"
)

// maxInteger is the largest Integer of structured fields: 15 digits.
const maxInteger = 999_999_999_999_999

// SetHeader tells a client in h how the asks were answered by all, the answer of
// AllowAll or of a single decision as Results:
//
//	RateLimit-Policy: "login";q=5;w=60;pglimit-burst=10
//	RateLimit: "login";r=0;t=12
//	Retry-After: 12
//
// RateLimit-Policy and RateLimit are those of draft-ietf-httpapi-ratelimit-headers-11,
// with an item for each policy name; of asks under the same name it is the one that
// denied for longest, else the one with less room. q is the policy's Limit and r what
// remains, rounded down to whole units; w is the Period, where it is whole seconds; of
// a bucket or queue both are multiples where that makes them whole, as q=5;w=2 for 2.5
// a second. pglimit-burst is the Burst where it is not q. t is in seconds, rounded up:
// RetryAfter of an ask that denied, ResetAfter of any other, though not later than
// Retry-After; it is left out where that is limiter.Never. Where another layer of
// limits has set these fields, a line is added to each if all is allowed; a denial
// stands alone.
//
// Retry-After is set when all is denied: the longest RetryAfter of the asks that
// denied, in seconds rounded up, and left out when that is limiter.Never.
//
// Asks that were allowed without a decision (limiter.SourceDegraded) are left out.
// http.Header writes the names as Ratelimit-Policy and Ratelimit; names of fields
// do not depend on case.
func SetHeader(h http.Header, requests []limiter.Request, all limiter.Results) {
	retry := retryAfter(all)
	if retry > 0 { // what other layers have told would be later than Retry-After
		h.Del(policyField)
		h.Del(limitField)
	}
	if retry > 0 && retry != limiter.Never {
		h.Set(retryField, strconv.FormatInt(ceilSeconds(retry), 10))
	}
	policies, limits := make([]byte, 0, 128), make([]byte, 0, 128) // on the stack
	for i, request := range requests[:min(len(requests), len(all.PerRequest))] {
		r := &all.PerRequest[i]
		if r.Source == limiter.SourceDegraded || overshadowed(requests, all, i) {
			continue
		}
		text := rendered(advertise(&request.Policy))
		if text.policy == "" { // no name that a header can hold
			continue
		}
		if len(policies) > 0 {
			policies, limits = append(policies, ", "...), append(limits, ", "...)
		}
		policies = append(policies, text.policy...)
		limits = append(append(limits, text.name...), ";r="...)
		limits = strconv.AppendInt(limits, remaining(r), 10)
		if t := until(r, retry); t != limiter.Never {
			limits = strconv.AppendInt(append(limits, ";t="...), ceilSeconds(t), 10)
		}
	}
	if len(policies) > 0 {
		add(h, policyField, string(policies))
		add(h, limitField, string(limits))
	}
}

// setXRateLimit sets what many clients knew before the draft: for one ask, which
// is the one that denied or has the smallest share of its burst left.
func setXRateLimit(h http.Header, all limiter.Results) {
	chosen := all.DeniedBy
	if all.Allowed {
		chosen = -1
		for i, r := range all.PerRequest {
			if r.Source != limiter.SourceDegraded && (chosen < 0 || r.Remaining/r.Burst < all.PerRequest[chosen].Remaining/all.PerRequest[chosen].Burst) {
				chosen = i
			}
		}
	}
	if chosen < 0 {
		return
	}
	r := &all.PerRequest[chosen]
	h.Set(xLimitField, strconv.FormatInt(units(r.Burst), 10))
	h.Set(xRemainingField, strconv.FormatInt(remaining(r), 10))
	if t := until(r, retryAfter(all)); t != limiter.Never {
		reset := r.At.Add(t).Add(time.Second - time.Nanosecond) // rounded up
		h.Set(xResetField, strconv.FormatInt(reset.Unix(), 10))
	}
}

// retryAfter is the longest of the asks that denied: 0 if all is allowed.
func retryAfter(all limiter.Results) time.Duration {
	if all.Allowed {
		return 0
	}
	longest := time.Duration(1) // to come back at once is no answer to a denial
	for i := range all.PerRequest {
		if r := &all.PerRequest[i]; !r.Allowed {
			longest = max(longest, r.RetryAfter)
		}
	}
	return longest
}

// until is when a client is told to look at that limit again, in an answer whose
// retryAfter is retry.
func until(r *limiter.Result, retry time.Duration) time.Duration {
	switch {
	case !r.Allowed:
		return r.RetryAfter
	case retry > 0:
		return min(r.ResetAfter, retry)
	}
	return r.ResetAfter
}

// overshadowed reports whether another ask speaks for the name of the i-th.
func overshadowed(requests []limiter.Request, all limiter.Results, i int) bool {
	a := &all.PerRequest[i]
	for j := range min(len(requests), len(all.PerRequest)) {
		if j == i || requests[j].Policy.Name != requests[i].Policy.Name {
			continue
		}
		switch b := &all.PerRequest[j]; {
		case a.Allowed != b.Allowed:
			if a.Allowed {
				return true
			}
		case cmp.Or(cmp.Compare(b.RetryAfter, a.RetryAfter), cmp.Compare(a.Remaining, b.Remaining), i-j) > 0:
			return true
		}
	}
	return false
}

func add(h http.Header, field, value string) {
	if !slices.Contains(h[field], value) { // the same again is no other layer
		h[field] = append(h[field], value)
	}
}

// remaining is how many whole units would be granted, the limiter's slack included:
// without it 3 units that have leaked to 2.9999999999 would be told as 2.
func remaining(r *limiter.Result) int64 {
	return units(r.Remaining + min(1e-6, 1e-9*r.Burst))
}

// units rounds down to what an Integer of structured fields can hold.
func units(v float64) int64 {
	if v > 0 {
		return int64(min(v, maxInteger))
	}
	return 0
}

func ceilSeconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	if d%time.Second > 0 {
		seconds++
	}
	return max(0, seconds)
}

// advertised is all of a policy that RateLimit-Policy tells.
type advertised struct {
	name                 string
	quota, window, burst int64 // window and burst are -1 where they are not told
}

func advertise(p *limiter.Policy) advertised {
	a := advertised{name: p.Name, window: -1, burst: -1}
	limit, period := wholly(p)
	a.quota = units(limit)
	if period > 0 && period%time.Second == 0 {
		a.window = int64(period / time.Second)
	}
	if burst := cmp.Or(p.Burst, p.Limit); burst != limit {
		a.burst = units(burst)
	}
	return a
}

// wholly is the policy's rate as whole units in whole seconds, if a small multiple
// of both is. A window of several periods would be another limit.
func wholly(p *limiter.Policy) (limit float64, period time.Duration) {
	switch p.Algorithm {
	case limiter.FixedWindow, limiter.SlidingWindowCounter, limiter.SlidingWindowLog:
		return p.Limit, p.Period
	}
	for n := 1; n <= 100 && p.Period > 0 && p.Period <= math.MaxInt64/100; n++ {
		limit, period = p.Limit*float64(n), p.Period*time.Duration(n)
		if whole := math.Round(limit); whole >= 1 && math.Abs(limit-whole) <= 1e-9*whole && period%time.Second == 0 {
			return whole, period
		}
	}
	return p.Limit, p.Period
}

// text is how structured fields write a policy's item, and its name alone. Both
// are empty for a name that they cannot hold, which no valid policy has.
type text struct{ policy, name string }

// texts are rendered once for each policy, of which plans can make many.
var texts, _ = lru.New[advertised, text](1024)

func rendered(a advertised) text {
	if t, ok := texts.Get(a); ok {
		return t
	}
	var t text
	item := httpsfv.NewItem(a.name)
	name, _ := httpsfv.Marshal(item)
	item.Params.Add("q", a.quota)
	if a.window >= 0 {
		item.Params.Add("w", a.window)
	}
	if a.burst >= 0 {
		item.Params.Add("pglimit-burst", a.burst)
	}
	if policy, err := httpsfv.Marshal(item); err == nil {
		t = text{policy, name}
	}
	texts.Add(a, t)
	return t
}
