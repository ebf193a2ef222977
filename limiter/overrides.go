package limiter

import (
	"slices"
	"time"
)

// Policies have the overrides of keys: package policies keeps them in the database. They are
// safe for concurrent use.
//
// A Limiter refuses, with ErrInvalid, Policies with a method Matches(secret []byte) bool that
// returns false for its Config.KeySecret.
type Policies interface {
	// Snapshot returns the overrides as they are now. A method of a Limiter asks once, so that
	// all its requests are decided under the same ones.
	Snapshot() Overrides
}

// Overrides change the policies of single keys, and let keys pass or block them. They do not
// change, and are safe for concurrent use.
type Overrides interface {
	// Override changes a request's policy to that of its key, and returns what is decided about
	// the key already. It calls now only if an override that it finds has an end.
	Override(p *Policy, key string, now func() time.Time) Ruling
}

// Ruling says what Overrides decide about a key. The zero value decides nothing.
type Ruling struct {
	Unlimited bool      // requests pass without a decision
	Blocked   bool      // requests are denied without one, unless Unlimited is set
	Until     time.Time // the end of the block; zero: none
}

func (r *Ruling) decides() bool { return r.Unlimited || r.Blocked }

// overriding applies overrides to requests.
type overriding struct {
	policies Policies         // nil: none
	current  func() time.Time // this process's time
}

// override applies the override of a request's key to its policy, and returns what is decided
// about it.
func (o *overriding) override(in *Request) (r Ruling) {
	if o.policies != nil {
		r = o.policies.Snapshot().Override(&in.Policy, in.Key, o.current)
	}
	return r
}

// overrideAll is override for several requests, at one moment. It returns a copy of the
// requests, and what is decided about each, nil for nothing.
func (o *overriding) overrideAll(requests []Request) (effective []Request, ruled []Ruling) {
	if o.policies == nil {
		return requests, nil
	}
	overrides, at := o.policies.Snapshot(), time.Time{}
	once := func() time.Time {
		if at.IsZero() {
			at = o.current()
		}
		return at
	}
	effective = slices.Clone(requests)
	for i := range effective {
		in := &effective[i]
		if r := overrides.Override(&in.Policy, in.Key, once); r.decides() {
			if ruled == nil {
				ruled = make([]Ruling, len(requests))
			}
			ruled[i] = r
		}
	}
	return effective, ruled
}

// ruled returns the answer to a valid request for a key that an override decides about.
func (o *overriding) ruled(in *Request, by Ruling) Result {
	r := undecided(in, SourceOverride, o.current())
	if by.Unlimited {
		r.Allowed, r.Granted, r.Remaining = true, in.Cost, r.Burst
		return r
	}
	r.Reason, r.RetryAfter = ReasonBlocked, Never
	if !by.Until.IsZero() {
		r.RetryAfter = duration(max(0, by.Until.UnixMicro()-r.At.UnixMicro()))
	}
	r.ResetAfter = r.RetryAfter
	return r
}

// matches reports whether a part of a Config has the same KeySecret, as far as it says.
func matches(part any, secret []byte) bool {
	p, says := part.(interface{ Matches(secret []byte) bool })
	return !says || p.Matches(secret)
}
