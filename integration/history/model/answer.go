package model

import (
	"fmt"
	"math"
	"strings"
)

// Answer has the fields of a limiter.Result. Times are microseconds.
type Answer struct {
	Allowed                     bool
	Granted, Limit, Burst       float64
	Remaining, Level            float64
	RetryAfter, ResetAfter      int64
	Delay                       int64
	Full                        bool
	Reason                      string
	Replayed, Expired, Shadowed bool
	At                          int64
}

// standing returns the part of an answer that says how a key stands.
func (k *Key) standing(r *Rules, now int64) Answer {
	level := k.used(r, now)
	a := Answer{
		Limit: r.Limit, Burst: r.Burst, Level: level, Remaining: max(0, r.Burst-level),
		Full: level >= r.Burst, At: now,
		ResetAfter: max(0, max(k.empty(r, now), k.Blocked)-now),
	}
	if k.blocked(now) {
		a.Remaining = 0
	}
	return a
}

// wait sets how long to wait for need units.
func (k *Key) wait(r *Rules, now int64, need float64, a *Answer) {
	at := k.at(now)
	if need > 0 {
		at = k.fits(r, now, need)
	}
	if a.RetryAfter = Never; at != Never {
		a.RetryAfter = max(0, max(at, k.Blocked)-now)
	}
}

// Differs names the fields in which two answers differ, or is empty. SQL functions return
// only a part of them. If loose, rounding is forgiven: a millionth of a unit and a
// microsecond.
func (a Answer) Differs(got Answer, sql, loose bool) string {
	var all []string
	note := func(field string, differs bool, want, got any) {
		if differs {
			all = append(all, fmt.Sprintf("%s %v, want %v", field, got, want))
		}
	}
	units := func(field string, want, got float64) {
		note(field, want != got && !(loose && math.Abs(want-got) <= 1e-6), want, got)
	}
	us := func(field string, want, got int64) {
		note(field, want != got && !(loose && want != Never && got != Never && max(want-got, got-want) <= 1), want, got)
	}
	note("Allowed", a.Allowed != got.Allowed, a.Allowed, got.Allowed)
	units("Granted", a.Granted, got.Granted)
	units("Remaining", a.Remaining, got.Remaining)
	units("Level", a.Level, got.Level)
	us("RetryAfter", a.RetryAfter, got.RetryAfter)
	us("ResetAfter", a.ResetAfter, got.ResetAfter)
	us("Delay", a.Delay, got.Delay)
	note("Reason", a.Reason != got.Reason, a.Reason, got.Reason)
	note("Replayed", a.Replayed != got.Replayed, a.Replayed, got.Replayed)
	note("Expired", a.Expired != got.Expired, a.Expired, got.Expired)
	note("Shadowed", a.Shadowed != got.Shadowed, a.Shadowed, got.Shadowed)
	if !sql {
		units("Limit", a.Limit, got.Limit)
		units("Burst", a.Burst, got.Burst)
		note("Full", a.Full != got.Full && !(loose && math.Abs(a.Level-a.Burst) <= 1e-6), a.Full, got.Full)
		note("At", a.At != got.At, a.At, got.At)
	}
	return strings.Join(all, "; ")
}
