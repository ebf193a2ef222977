package limiter_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestFloorIsValidated: an error names the field and the value, and nothing is counted.
func TestFloorIsValidated(t *testing.T) {
	t.Parallel()
	l, p := limiter.NewMemory(nil), limiter.PerHour("p", 10)
	for value, floor := range map[string]float64{"-0.1": -0.1, "1": 1, "0.9999996": 0.9999996, "NaN": math.NaN(), "+Inf": math.Inf(1)} {
		in := limiter.Request{Policy: p, Key: "k", Cost: 1, Floor: floor}
		_, one := l.Do(t.Context(), in)
		_, all := l.AllowAll(t.Context(), in, p.Request("other", 1))
		_, reserve := l.Reserve(t.Context(), in, time.Minute)
		for _, err := range []error{one, all, reserve} {
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "Floor "+value) {
				t.Errorf("%v: %v", floor, err)
			}
		}
	}
	_, err := l.AllowAll(t.Context(), p.Request("k", 1), limiter.Request{Policy: p, Key: "k", Cost: 1, Floor: 0.5})
	if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "requests[0].Floor 0 and requests[1].Floor 0.5") {
		t.Errorf("two floors of one key: %v", err)
	}
	if r, err := l.Check(t.Context(), p, "k", 0); err != nil || r.Level != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestCostAboveAFloor: what fits only without its Floor is denied for good, and the error is as for a
// cost above the burst.
func TestCostAboveAFloor(t *testing.T) {
	t.Parallel()
	l, p := limiter.NewMemory(nil), limiter.PerHour("p", 10)
	for _, in := range []limiter.Request{{Policy: p, Key: "k", Cost: 9, Floor: 0.2}, p.Request("k", 11)} {
		r, err := l.Do(t.Context(), in)
		if err != nil || r.RetryAfter != limiter.Never || r.Err().Error() != "pglimit: denied by p: the cost is more than the limit ever allows" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// TestFloorIsObeyedByEveryVerb: a request that takes a Floor passes up to it, and others after
// it.
func TestFloorIsObeyedByEveryVerb(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(*limiter.Limiter, limiter.Request) (limiter.Result, error){
		"Do": func(l *limiter.Limiter, in limiter.Request) (limiter.Result, error) { return l.Do(t.Context(), in) },
		"once": func(l *limiter.Limiter, in limiter.Request) (limiter.Result, error) {
			in.IdempotencyKey = time.Now().String()
			return l.Do(t.Context(), in)
		},
		"Reserve": func(l *limiter.Limiter, in limiter.Request) (limiter.Result, error) {
			r, err := l.Reserve(t.Context(), in, time.Hour)
			return r.Result, err
		},
		"AllowAll": func(l *limiter.Limiter, in limiter.Request) (limiter.Result, error) {
			all, err := l.AllowAll(t.Context(), in)
			return all.PerRequest[0], err
		},
		"AllowAll of two": func(l *limiter.Limiter, in limiter.Request) (limiter.Result, error) {
			half := in
			half.Cost /= 2
			all, err := l.AllowAll(t.Context(), half, half)
			return all.PerRequest[1], err
		},
	} {
		l, p := limiter.NewMemory(nil), limiter.PerHour("p", 10)
		for i := range 11 {
			floor := 0.2
			if i > 8 {
				floor = 0
			}
			r, err := take(l, limiter.Request{Policy: p, Key: "k", Cost: 1, Floor: floor})
			if err != nil || r.Allowed == (i == 8) {
				t.Errorf("%s %d: %+v, %v", name, i, r, err)
			}
		}
	}
}

// TestFloorInAQueue: DoWait denies what would leave less of the queue free, also under a deadline.
func TestFloorInAQueue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	p := limiter.Policy{Name: "q", Algorithm: limiter.LeakyBucketQueue, Limit: 1e6, Burst: 4, Period: time.Hour}
	if r, err := l.Charge(t.Context(), p, "k", 2); err != nil || r.Level != 2 {
		t.Fatal(r, err)
	}
	in := limiter.Request{Policy: p, Key: "k", Cost: 2, Floor: 0.5}
	r, err := l.DoWait(t.Context(), in)
	if err != nil || r.Allowed || r.RetryAfter <= 0 || r.RetryAfter == limiter.Never {
		t.Errorf("%+v, %v", r, err)
	}
	in.Floor = 0
	if r, err := l.DoWait(t.Context(), in); err != nil || !r.Allowed {
		t.Errorf("%+v, %v", r, err)
	}
}
