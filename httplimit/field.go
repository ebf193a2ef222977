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

// maxInteger is the largest Integer in structured fields: 15 digits.
const maxInteger = 999_999_999_999_999

// SetHeader sets response fields in h that report a decision to the client: a Result, or the
// PerRequest of an AllowAll or WaitAll. Deny and New call it.
//
//	RateLimit-Policy: "login";q=5;w=60;pglimit-burst=10
//	RateLimit: "login";r=0;t=12
//	Retry-After: 12
//
// RateLimit-Policy and RateLimit follow draft-ietf-httpapi-ratelimit-headers-11, with one
// item for each policy name. Of several requests under one name, the item describes the
// one that denied for the longest time, or else the one with the least remaining.
//
//   - q is the Result's Limit, rounded down to whole units, and w the Period, if it is whole
//     seconds.
//   - A bucket's or queue's q and w are multiplied until they say the rate in whole numbers, to
//     a billionth of it: q=5;w=2 for 2.5 a second, q=1;w=1000 for 0.001.
//   - pglimit-burst is the Result's Burst, if it differs from q. Attempts have none.
//   - r is the remaining units, rounded down.
//   - t is in seconds, rounded up: RetryAfter of a denied request; ResetAfter of any
//     other, but at most Retry-After. It is left out if it would be limiter.Never.
//
// Retry-After is set if a result is denied: the longest RetryAfter of the denied requests, in
// seconds, rounded up. It is left out if that is limiter.Never.
//
// If another layer has already set the fields, an allowed decision adds a line to each
// and a denial replaces them. Limits that do not limit the client are left out: those of
// requests allowed without a decision (limiter.SourceDegraded), of unlimited keys
// (limiter.SourceOverride) and of shadow policies. http.Header writes the names as
// Ratelimit-Policy and Ratelimit; field names are not case-sensitive.
func SetHeader(h http.Header, results ...limiter.Result) {
	retry := retryAfter(results)
	if retry > 0 { // the t of other layers could be later than Retry-After
		h.Del(policyField)
		h.Del(limitField)
	}
	switch {
	case retry == limiter.Never:
		h.Del(retryField)
	case retry > 0:
		h.Set(retryField, strconv.FormatInt(ceilSeconds(retry), 10))
	}
	policies, limits := make([]byte, 0, 128), make([]byte, 0, 128) // on the stack
	for i := range results {
		r := &results[i]
		if !shown(r) || overshadowed(results, i) {
			continue
		}
		p := effective(r)
		text := rendered(advertise(&p))
		if text.policy == "" { // a header cannot contain the name
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

// effective returns the policy that decided. A replayed result has the numbers of the earlier
// answer, and those of tests may lack a Limit.
func effective(r *limiter.Result) limiter.Policy {
	p := r.Policy
	if r.Limit > 0 {
		p.Limit, p.Burst = r.Limit, r.Burst
	}
	return p
}

// shown reports whether the numbers of a result mean something to the client: it was
// decided or an override blocks the key, and the policy that decided is known and no shadow.
func shown(r *limiter.Result) bool {
	switch r.Source {
	case limiter.SourceDegraded, limiter.SourceSkipped:
		return false
	case limiter.SourceOverride:
		if r.Allowed {
			return false
		}
	}
	if r.Policy.Algorithm == limiter.Balance { // it has no quota for a time
		return false
	}
	return r.Policy.Name != "" && !r.Shadowed && !r.Policy.Shadow
}

// setXRateLimit sets the fields of WithXRateLimit, for the request that denied or else has
// the smallest share of its burst left.
func setXRateLimit(h http.Header, all limiter.Results) {
	chosen := all.DeniedBy
	if all.Allowed {
		chosen = -1
		for i := range all.PerRequest {
			if r := &all.PerRequest[i]; shown(r) && (chosen < 0 || r.Remaining/r.Burst < all.PerRequest[chosen].Remaining/all.PerRequest[chosen].Burst) {
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
	if t := until(r, retryAfter(all.PerRequest)); t != limiter.Never {
		reset := r.At.Add(t).Add(time.Second - time.Nanosecond) // rounded up
		h.Set(xResetField, strconv.FormatInt(reset.Unix(), 10))
	}
}

// retryAfter returns the longest RetryAfter of the denied requests: 0 if all are allowed.
func retryAfter(results []limiter.Result) (longest time.Duration) {
	for i := range results {
		if r := &results[i]; !r.Allowed {
			longest = max(longest, 1, r.RetryAfter) // a denial never suggests an immediate retry
		}
	}
	return longest
}

// until returns the t of r, in a response whose retryAfter is retry.
func until(r *limiter.Result, retry time.Duration) time.Duration {
	switch {
	case !r.Allowed:
		return r.RetryAfter
	case retry > 0:
		return min(r.ResetAfter, retry)
	}
	return r.ResetAfter
}

// overshadowed reports whether the item of the i-th policy's name describes another
// result.
func overshadowed(results []limiter.Result, i int) bool {
	a := &results[i]
	for j := range results {
		b := &results[j]
		if j == i || b.Policy.Name != a.Policy.Name || !shown(b) {
			continue
		}
		switch {
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
	if !slices.Contains(h[field], value) { // an equal line is not from another layer
		h[field] = append(h[field], value)
	}
}

// remaining returns the whole units that would be granted. It adds the limiter's
// tolerance: otherwise 3 units rounded to 2.9999999999 would be reported as 2.
func remaining(r *limiter.Result) int64 {
	return units(r.Remaining + min(1e-6, 1e-9*r.Burst))
}

// units rounds v down to an Integer of structured fields.
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

// advertised is the part of a policy that RateLimit-Policy reports.
type advertised struct {
	name                 string
	quota, window, burst int64 // window and burst are -1 if left out
}

func advertise(p *limiter.Policy) advertised {
	a := advertised{name: p.Name, window: -1, burst: -1}
	limit, seconds := wholly(p)
	a.quota = units(limit)
	if seconds >= 1 && seconds == math.Floor(seconds) {
		a.window = int64(seconds)
	}
	if burst := cmp.Or(p.Burst, p.Limit); burst != limit && p.Algorithm != limiter.Attempts {
		a.burst = units(burst)
	}
	return a
}

// wholly returns the policy's rate as whole units in whole seconds, if such numbers fit into
// Integers. Windows are not multiplied: several periods would be a different limit.
func wholly(p *limiter.Policy) (limit, seconds float64) {
	limit, seconds = p.Limit, p.Period.Seconds()
	switch p.Algorithm {
	case limiter.FixedWindow, limiter.SlidingWindowCounter, limiter.SlidingWindowLog, limiter.Attempts:
		return limit, seconds
	case limiter.Concurrency:
		return limit, 0 // of no time
	}
	// Multiples of ofLimit make the limit whole, and multiples of ofPeriod the period.
	whole, ofLimit := fraction(limit)
	ofPeriod := int64(time.Second / gcd(p.Period, time.Second))
	n := float64(ofPeriod / gcd(int64(ofLimit), ofPeriod)) // times ofLimit
	if q, w := whole*n, math.Round(seconds*ofLimit*n); q >= 1 && q <= maxInteger && w <= maxInteger {
		return q, w
	}
	return limit, seconds
}

// fraction returns two whole numbers whose quotient is x, to a billionth of it: a convergent
// of its continued fraction.
func fraction(x float64) (above, below float64) {
	lastAbove, lastBelow := 0.0, 1.0
	above, below = 1, 0
	for rest, n := x, 0; n < 64; n++ { // it takes less than half of that, or never ends for a NaN
		whole := math.Floor(rest * (1 + 1e-12)) // 1 / 1e-9 is a little less than 1e9
		above, lastAbove = whole*above+lastAbove, above
		below, lastBelow = whole*below+lastBelow, below
		if math.Abs(above-x*below) <= 1e-9*x*below {
			break
		}
		rest = 1 / (rest - whole)
	}
	return above, below
}

// gcd returns the greatest common divisor, or 1 if both are 0.
func gcd[T ~int64](a, b T) T {
	for b != 0 {
		a, b = b, a%b
	}
	return max(1, a)
}

// text is a policy's item and its name in the syntax of structured fields. Both are empty
// if the name cannot be written, which is never so for a valid policy.
type text struct{ policy, name string }

// texts caches the text of each policy. It is bounded because plans can make many.
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
