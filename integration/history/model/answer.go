package model

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// standing returns the part of an answer that says how a key stands.
func (k *Key) standing(r *Rules, now int64) limiter.Result {
	c, at := k.present(r, now)
	return c.answer(r, c.State.Seen(&r.Rules, now, at, r.Capacity, 0), now)
}

// answer is standing by a view of the key.
func (k *Key) answer(r *Rules, v algorithm.View, now int64) limiter.Result {
	at := max(k.Clock, now)
	level := v.Level(&r.Rules, at)
	a := limiter.Result{
		Limit: r.Limit, Burst: r.Burst, Level: level, Remaining: max(0, r.Burst-level), Full: level >= r.Burst,
		ResetAfter: after(now, max(v.EmptyAt(&r.Rules, at), k.Blocked)), At: time.UnixMicro(now),
	}
	if k.blocked(now) {
		a.Remaining = 0
	}
	return a
}

// wait returns the time until need units fit into a room.
func (k *Key) wait(r *Rules, now int64, room, need float64) time.Duration {
	c, at := k.present(r, now)
	fits := at
	if need > 0 {
		fits = c.State.Seen(&r.Rules, now, at, room, need).FitsAt(&r.Rules, at, room, need)
	}
	return after(now, max(fits, k.Blocked))
}

// delay returns how long units ahead stay in a queue.
func (r *Rules) delay(ahead float64) time.Duration {
	if !r.queue() {
		return 0
	}
	return time.Duration(math.Round(ahead/r.Leak)) * time.Microsecond
}

func after(now, us int64) time.Duration {
	if us == algorithm.Never {
		return limiter.Never
	}
	return time.Duration(max(0, us-now)) * time.Microsecond
}

func reason(blocked bool) limiter.Reason {
	if blocked {
		return limiter.ReasonBlocked
	}
	return limiter.ReasonLimit
}

// Answer is what a call has returned.
type Answer struct {
	Fault   string // an error that changes nothing
	Result  limiter.Result
	Held    int // a Reserve's reservation; 0 is none
	Expires time.Time
	Usage   limiter.Usage
	All     limiter.Results // of an AllowAll
}

// The faults.
const (
	Invalid = "invalid"
	Unknown = "no reservation"
	Ended   = "reservation ended"
)

// Results returns all results of an answer.
func (a *Answer) Results() []limiter.Result {
	return append([]limiter.Result{a.Result, a.Usage.Result}, a.All.PerRequest...)
}

// At returns the reading of the clock that an answer names, or 0.
func (a *Answer) At() int64 {
	for _, r := range a.Results() {
		if !r.At.IsZero() {
			return r.At.UnixMicro()
		}
	}
	return 0
}

// Differs names the fields in which two answers differ, or is empty. If loose, rounding is
// forgiven: a millionth of a unit and a microsecond.
func Differs(want, got any, loose bool) string {
	return strings.Join(differing("", reflect.ValueOf(want), reflect.ValueOf(got), loose), "; ")
}

func differing(name string, want, got reflect.Value, loose bool) (all []string) {
	same := true
	switch want.Kind() {
	case reflect.Struct:
		if w, ok := want.Interface().(time.Time); ok {
			same = w.Equal(got.Interface().(time.Time))
			break
		}
		if r, ok := want.Interface().(limiter.Result); ok && loose && math.Abs(r.Level-r.Burst) <= 1e-6 {
			r.Full = got.Interface().(limiter.Result).Full
			want = reflect.ValueOf(r)
		}
		for i := range want.NumField() {
			if f := want.Type().Field(i); f.IsExported() && f.Name != "Source" {
				all = append(all, differing(name+"."+f.Name, want.Field(i), got.Field(i), loose)...)
			}
		}
		return all
	case reflect.Slice:
		if same = want.Len() == got.Len(); same {
			for i := range want.Len() {
				all = append(all, differing(fmt.Sprintf("%s[%d]", name, i), want.Index(i), got.Index(i), loose)...)
			}
		}
	case reflect.Float64:
		same = want.Float() == got.Float() || loose && math.Abs(want.Float()-got.Float()) <= 1e-6
	case reflect.Int64: // a time
		w, g := want.Int(), got.Int()
		never := int64(limiter.Never)
		same = w == g || loose && w != never && g != never && max(w-g, g-w) <= int64(time.Microsecond)
	default:
		same = want.Equal(got)
	}
	if !same {
		all = append(all, fmt.Sprintf("%s %v, want %v", name, got, want))
	}
	return all
}
